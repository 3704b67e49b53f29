#include "dashboard_option.hpp"

#include "command_line.hpp"

#include <cstdio>
#include <utility>

namespace troupe::apps {

namespace {

constexpr auto any_port = "127.0.0.1:0";

} // namespace

dashboard_option::dashboard_option(CLI::App& app) {
  auto* listens = app.add_option("--dashboard", listen_,
                                 "Serve a page about the runs in --storage, for browsers; without a value on any free "
                                 "port of this machine. Beyond loopback it needs a token and a certificate")
                      ->type_name("HOST:PORT")
                      ->expected(0, 1)
                      ->default_str(any_port);
  app.add_option("--dashboard-token-file", token_file_, "A file with the token that who opens the page must know")
      ->needs(listens);
  auto* certificate =
      app.add_option("--dashboard-certificate", certificate_, "PEM file of the page's certificate chain, for HTTPS")
          ->needs(listens);
  auto* key = app.add_option("--dashboard-key", key_, "PEM file of its private key")->needs(certificate);
  certificate->needs(key);
}

dashboard_option::~dashboard_option() = default;

std::optional<int> dashboard_option::open(const std::filesystem::path& storage) {
  const auto serve = [&]() -> expected<void> {
    TROUPE_TRY(auto given, options());
    if (!given)
      return {};
    given->storage = storage;
    TROUPE_TRY(page_, runtime::dashboard::open(std::move(*given)));
    return {};
  };
  if (const auto served = serve(); !served) {
    std::fprintf(stderr, "--dashboard: %s\n", served.error().message.c_str());
    return exit_usage;
  }
  if (page_)
    std::fprintf(stderr, "the dashboard is at %s\n", page_->url().c_str());
  return std::nullopt;
}

expected<std::optional<runtime::dashboard_options>> dashboard_option::options() const {
  if (listen_.empty())
    return std::optional<runtime::dashboard_options>{};
  runtime::dashboard_options result;
  TROUPE_TRY(result.listen, parse_endpoint(listen_));
  result.certificate = certificate_;
  result.key = key_;
  if (!token_file_.empty()) {
    TROUPE_TRY(result.token, runtime::read_token_file(token_file_));
  }
  return std::optional{std::move(result)};
}

} // namespace troupe::apps
