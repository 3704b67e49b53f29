#include "monitoring/mlflow_client.hpp"

#include <fmt/format.h>
#include <httplib.h>

#include <cstdlib>
#include <string_view>
#include <utility>

namespace troupe::runtime {

namespace {

/// Answers are small; who sends more is no tracking server.
constexpr std::size_t most_bytes = std::size_t{4} << 20;

struct split_uri {
  std::string server;
  /// Without a '/' at its end.
  std::string path;
};

split_uri split(const std::string& uri) {
  const auto begin = uri.find("://") + 3;
  const auto slash = uri.find('/', begin);
  split_uri result{uri.substr(0, slash), slash == std::string::npos ? std::string{} : uri.substr(slash)};
  while (result.path.ends_with('/'))
    result.path.pop_back();
  return result;
}

std::string variable(const char* name) {
  const auto* value = std::getenv(name); // NOLINT(concurrency-mt-unsafe): nobody sets it
  return value == nullptr ? std::string{} : value;
}

error refusal(const std::string& where, int status, const std::string& body) {
  const auto text = nlohmann::json::parse(body, nullptr, false);
  const auto said = [&text](const char* key) {
    return text.is_object() && text.contains(key) && text[key].is_string() ? text[key].get<std::string>()
                                                                           : std::string{};
  };
  const auto message = said("message").substr(0, 300);
  const auto code = status == 429 || status >= 500                    ? errc::timed_out
                    : said("error_code") == "RESOURCE_DOES_NOT_EXIST" ? errc::not_found
                                                                      : errc::invalid_argument;
  return {code, fmt::format("{} answers with status {}{}{}", where, status, message.empty() ? "" : ": ", message)};
}

} // namespace

class mlflow_client::impl {
 public:
  impl(const split_uri& uri, std::chrono::milliseconds patience)
      : client_(uri.server), where_(uri.server), base_(uri.path + "/api/2.0/mlflow/") {
    client_.set_connection_timeout(patience);
    client_.set_read_timeout(patience);
    client_.set_write_timeout(patience);
    client_.set_keep_alive(true);
    client_.set_tcp_nodelay(true);
    if (const auto token = variable("MLFLOW_TRACKING_TOKEN"); !token.empty())
      client_.set_bearer_token_auth(token);
    else if (const auto user = variable("MLFLOW_TRACKING_USERNAME"); !user.empty())
      client_.set_basic_auth(user, variable("MLFLOW_TRACKING_PASSWORD"));
  }

  expected<nlohmann::json> ask(std::string method, const std::string& what, std::string body) {
    httplib::Request request;
    request.method = std::move(method);
    request.path = base_ + what;
    request.body = std::move(body);
    if (!request.body.empty())
      request.set_header("Content-Type", "application/json");
    std::string answer;
    request.content_receiver = [&answer](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
      answer.append(data, size);
      return answer.size() <= most_bytes;
    };
    const auto result = client_.send(request);
    if (!result)
      return fail(errc::unreachable,
                  fmt::format("{} does not answer ({})", where_, httplib::to_string(result.error())));
    if (result->status != 200)
      return fail(refusal(where_, result->status, answer));
    auto parsed = nlohmann::json::parse(answer, nullptr, false);
    if (!parsed.is_object())
      return fail(errc::invalid_argument,
                  fmt::format("{} does not answer as an MLflow tracking server does: is that its address?", where_));
    return parsed;
  }

 private:
  httplib::Client client_;
  std::string where_;
  std::string base_;
};

mlflow_client::mlflow_client(const std::string& tracking_uri, std::chrono::milliseconds patience)
    : impl_(std::make_unique<impl>(split(tracking_uri), patience)) {}
mlflow_client::~mlflow_client() = default;

expected<nlohmann::json> mlflow_client::get(const std::string& what, const std::map<std::string, std::string>& query) {
  httplib::Params params{query.begin(), query.end()};
  return impl_->ask("GET", httplib::append_query_params(what, params), {});
}

expected<nlohmann::json> mlflow_client::post(const std::string& what, const nlohmann::json& body) {
  return impl_->ask("POST", what, body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

} // namespace troupe::runtime
