#pragma once

#include <troupe/serving/server.hpp>

#include <http_client.hpp>
#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// A server in the test's own process, with a predictor that the test controls.
namespace troupe::testing {

/// What the predictors of a test share: a gate that holds them, and the sizes of the batches that they got.
struct predictor_script {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_open = true;
  std::uint64_t entered = 0;
  std::vector<std::uint64_t> batches;
  /// Added to each sum.
  std::atomic<float> offset = 0;
  std::atomic<int> alive = 0;
  std::atomic<int> loads = 0;
  /// Called with the first number of each row, if it is set.
  std::function<void(float)> on_row;
  /// Whether models load, or wait until they may.
  bool loads_freely = true;

  void set_loading(bool freely) {
    {
      const auto lock = std::lock_guard{mutex};
      loads_freely = freely;
    }
    changed.notify_all();
  }

  void load() {
    auto lock = std::unique_lock{mutex};
    ++loads;
    changed.wait(lock, [this] { return loads_freely; });
  }

  void set_open(bool open) {
    {
      const auto lock = std::lock_guard{mutex};
      is_open = open;
    }
    changed.notify_all();
  }

  void pass(std::uint64_t rows) {
    auto lock = std::unique_lock{mutex};
    ++entered;
    changed.notify_all();
    changed.wait(lock, [this] { return is_open; });
    batches.push_back(rows);
  }

  /// Ends the test program after a minute: what waits at the gate could not be ended otherwise.
  void await_entered(std::uint64_t count) {
    auto lock = std::unique_lock{mutex};
    if (changed.wait_for(lock, std::chrono::minutes{1}, [&] { return entered >= count; }))
      return;
    std::fprintf(stderr, "%llu predictions have begun, not %llu\n", static_cast<unsigned long long>(entered),
                 static_cast<unsigned long long>(count));
    std::abort();
  }
};

/// Gives the sum and the product of two numbers. A negative first one is an error, a second one of 1000 to 3000
/// another, or an exception.
class sum_predictor final : public inference::predictor {
 public:
  explicit sum_predictor(predictor_script& script) : script_(script), offset_(script.offset) { ++script_.alive; }
  ~sum_predictor() override { --script_.alive; }

  const std::vector<std::string>& outputs() const noexcept override { return outputs_; }

  expected<void> predict(data::batch& rows, std::span<float> out) override {
    const auto numbers = rows.values<float>("x");
    // A row of zeros alone is the server's own check.
    if (rows.size() > 1 || numbers[0] != 0)
      script_.pass(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (script_.on_row)
        script_.on_row(numbers[2 * i]);
      if (numbers[2 * i] < 0)
        return fail(errc::invalid_argument, "the first number is negative");
      if (numbers[2 * i + 1] == 1000)
        throw std::runtime_error{"a thousand"};
      if (numbers[2 * i + 1] == 2000)
        return fail(errc::unsatisfiable, "no memory on the device");
      if (numbers[2 * i + 1] == 3000)
        throw 3000; // NOLINT(hicpp-exception-baseclass): what others' code may do
      out[2 * i] = numbers[2 * i] + numbers[2 * i + 1] + offset_;
      out[2 * i + 1] = numbers[2 * i] * numbers[2 * i + 1];
    }
    return {};
  }

 private:
  predictor_script& script_;
  float offset_;
  std::vector<std::string> outputs_{"sum", "product"};
};

/// A server in this process, on a free port, that says nothing.
struct running_server {
  explicit running_server(serving::server_config config = {}) : server(quiet(std::move(config)), model()) {
    value_or_throw(server.start());
  }

  serving::server_config quiet(serving::server_config config) {
    config.listen.port = 0;
    config.notice = [](std::string_view) {};
    return config;
  }

  serving::program_model model() {
    return {[this]() -> expected<serving::served_model> {
      script.load();
      return serving::served_model{std::make_unique<sum_predictor>(script), {{"x", dtype::f32, {2}, {}}}};
    }};
  }

  [[nodiscard]] http_response get(const std::string& path) const {
    return http_exchange(server.port(), http_request("GET", path));
  }
  [[nodiscard]] http_response predict(const std::string& rows) const {
    return http_exchange(server.port(), predict_request(rows));
  }
  static std::string predict_request(const std::string& rows) {
    return http_request("POST", "/v1/predict", R"({"inputs": )" + rows + "}");
  }
  /// A metric's value.
  [[nodiscard]] double metric(const std::string& name) const {
    const auto text = "\n" + get("/metrics").body;
    const auto at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }

  predictor_script script;
  serving::server server;
};

inline nlohmann::json outputs_of(const http_response& response) {
  return nlohmann::json::parse(response.body).at("outputs");
}

inline std::string message_of(const http_response& response) {
  const auto document = nlohmann::json::parse(response.body, nullptr, false);
  return document.is_object() && document.contains("error") ? document["error"]["message"].get<std::string>() : "none";
}

} // namespace troupe::testing
