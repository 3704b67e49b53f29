#include "monitoring/mlflow_queue.hpp"
#include "monitoring/mlflow_tracker.hpp"

#include <processes.hpp>

#include <doctest/doctest.h>
#include <httplib.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using namespace troupe;
using namespace troupe::runtime;
using nlohmann::json;
using troupe::testing::becomes_true;
using troupe::testing::scratch_directory;

namespace {

/// A small tracking server, which keeps what it is told.
class tracking_server {
 public:
  tracking_server() {
    const auto serve = [this](const std::string& what, auto answer) {
      const auto respond = [this, answer](const httplib::Request& request, httplib::Response& response) {
        const auto lock = std::lock_guard{mutex_};
        if (failures_ > 0) {
          --failures_;
          response.status = 503;
          return;
        }
        response.set_content(answer(request, response).dump(), "application/json");
      };
      server_.Get("/prefix/api/2.0/mlflow/" + what, respond);
      server_.Post("/prefix/api/2.0/mlflow/" + what, respond);
    };
    serve("experiments/get-by-name", [this](const httplib::Request& request, httplib::Response& response) -> json {
      authorization_ = request.get_header_value("Authorization");
      if (request.get_param_value("experiment_name") == experiment_)
        return {{"experiment", {{"experiment_id", "7"}}}};
      response.status = 404;
      return {{"error_code", "RESOURCE_DOES_NOT_EXIST"}, {"message", "no such experiment"}};
    });
    serve("experiments/create", [this](const httplib::Request& request, httplib::Response&) -> json {
      experiment_ = json::parse(request.body)["name"];
      return {{"experiment_id", "7"}};
    });
    serve("runs/create", [this](const httplib::Request& request, httplib::Response&) -> json {
      created_.push_back(json::parse(request.body));
      return {{"run", {{"info", {{"run_id", "run-" + std::to_string(created_.size())}}}}}};
    });
    serve("runs/get", [this](const httplib::Request& request, httplib::Response& response) -> json {
      if (created_.empty() || request.get_param_value("run_id") != "run-1") {
        response.status = 404;
        return {{"error_code", "RESOURCE_DOES_NOT_EXIST"}};
      }
      auto latest = json::array();
      for (const auto& each : metrics_)
        latest.push_back({{"key", each["key"]}, {"step", std::to_string(each["step"].get<int>())}});
      return {{"run", {{"info", {{"lifecycle_stage", "active"}}}, {"data", {{"metrics", latest}}}}}};
    });
    serve("runs/log-batch", [this](const httplib::Request& request, httplib::Response& response) -> json {
      const auto body = json::parse(request.body);
      for (const auto& each : body.value("metrics", json::array())) {
        if (each["key"] == "refused") {
          response.status = 400;
          return {{"error_code", "INVALID_PARAMETER_VALUE"}, {"message", "no"}};
        }
        metrics_.push_back(each);
      }
      largest_ = std::max(largest_, body.value("metrics", json::array()).size());
      if (body.contains("params"))
        params_ = body["params"];
      return json::object();
    });
    serve("runs/update", [this](const httplib::Request& request, httplib::Response&) -> json {
      status_ = json::parse(request.body)["status"];
      return json::object();
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread{[this] { server_.listen_after_bind(); }};
    becomes_true([this] { return server_.is_running(); });
  }
  ~tracking_server() {
    server_.stop();
    thread_.join();
  }

  [[nodiscard]] std::string uri() const { return "http://127.0.0.1:" + std::to_string(port_) + "/prefix/"; }

  // Of everything it was told.
  std::mutex mutex_;
  std::string experiment_;
  std::string authorization_;
  std::vector<json> created_;
  std::vector<json> metrics_;
  std::size_t largest_ = 0;
  json params_;
  std::string status_;
  /// Requests that fail before others succeed.
  int failures_ = 0;

 private:
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

struct tracked_run {
  explicit tracked_run(const std::string& uri) {
    config.run.name = "digits";
    config.config = {{"lr", 0.5}, {"optimizer", "adam"}};
    config.monitoring.mlflow_tracking_uri = uri;
    config.monitoring.mlflow_experiment = "troupe tests";
  }

  auto teller() {
    return [this](bool is_warning, std::string text) {
      const auto lock = std::lock_guard{mutex};
      told.emplace_back(is_warning, std::move(text));
    };
  }

  [[nodiscard]] run_started started() const { return {{"r1"}, "digits", scratch.path().string(), {}, 0}; }

  static metrics_batch batch(std::uint64_t first, std::uint64_t last, const std::string& name = "loss") {
    metrics_batch result;
    for (auto step = first; step <= last; ++step)
      result.rows.push_back({{step}, 0, 1'795'689'600'000'000 + step, {{name, 1.0 / static_cast<double>(step)}}});
    return result;
  }

  static run_result result(run_status status) {
    run_result result;
    result.status = status;
    return result;
  }

  scratch_directory scratch;
  trainer_config config;
  std::mutex mutex;
  std::vector<std::pair<bool, std::string>> told;
};

} // namespace

TEST_CASE("names become those that MLflow accepts, and values that are not finite have texts") {
  CHECK(mlflow_name("a/b.c-d_e f:g") == "a/b.c-d_e f:g");
  CHECK(mlflow_name("loss(\xc3\xbc)") == "loss____");
  CHECK(mlflow_name(std::string(1000, 'x')).size() == 250);
  mlflow_queue queue;
  queue.add({{1}, 0, 5000, {{"a", NAN}, {"b", std::numeric_limits<double>::infinity()}, {"c", 0.5}}});
  CHECK(queue.batch() == json::array({{{"key", "a"}, {"value", "NaN"}, {"timestamp", 5}, {"step", 1}},
                                      {{"key", "b"}, {"value", "Infinity"}, {"timestamp", 5}, {"step", 1}},
                                      {{"key", "c"}, {"value", 0.5}, {"timestamp", 5}, {"step", 1}}}));
}

TEST_CASE("a queue is bounded, keeps what has not arrived, and leaves out what is known") {
  mlflow_queue queue;
  for (std::uint64_t step = 1; step <= mlflow_queue::most_waiting + 10; ++step)
    queue.add({{step}, 0, 0, {{"loss", 1.0}}});
  CHECK(queue.size() == mlflow_queue::most_waiting);
  CHECK(queue.dropped() == 10);
  CHECK(queue.batch().size() == mlflow_queue::most_in_batch);
  CHECK(queue.batch() == queue.batch());
  queue.remove(400, true);
  queue.remove(100, false);
  CHECK(queue.taken() == 400);
  CHECK(queue.dropped() == 110);
  CHECK(queue.batch()[0]["step"] == 501);
  queue.begin_after(mlflow_queue::most_waiting - 1);
  CHECK(queue.size() == 1);
  queue.add({{7}, 0, 0, {{"loss", 1.0}}});
  CHECK(queue.size() == 1);
}

TEST_CASE("a run is created with its parameters, gets its metrics, and ends") {
  tracking_server server;
  auto run = tracked_run{server.uri()};
  {
    auto tracker = mlflow_tracker{run.config, run.teller()};
    tracker.on(run.started());
    tracker.on(run.batch(1, 2500));
    auto others = run.batch(1, 10);
    others.rank = {1};
    tracker.on(others);
    auto result = run.result(run_status::completed);
    result.steps = 2500;
    result.goodput = {10, 9, 2500, 0, {}};
    tracker.on(result);
  }
  CHECK(server.experiment_ == "troupe tests");
  REQUIRE(server.created_.size() == 1);
  CHECK(server.created_[0]["experiment_id"] == "7");
  CHECK(server.created_[0]["run_name"] == "digits");
  std::map<std::string, std::string> parameters;
  for (const auto& each : server.params_)
    parameters[each["key"]] = each["value"];
  CHECK(parameters.at("lr") == "0.5");
  CHECK(parameters.at("optimizer") == "adam");
  CHECK(parameters.at("troupe.shards") == "8");
  REQUIRE(server.metrics_.size() == 2501);
  CHECK(server.metrics_[2499] ==
        json{{"key", "loss"}, {"value", 1.0 / 2500}, {"timestamp", 1'795'689'600'002}, {"step", 2500}});
  CHECK(server.metrics_[2500]["key"] == "troupe/goodput");
  CHECK(server.largest_ == mlflow_queue::most_in_batch);
  CHECK(server.status_ == "FINISHED");
}

TEST_CASE("a resumed run goes on with its run there, and what the server has is not sent again") {
  tracking_server server;
  auto run = tracked_run{server.uri()};
  for (int i = 0; i < 2; ++i) {
    auto tracker = mlflow_tracker{run.config, run.teller()};
    tracker.on(run.started());
    tracker.on(run.batch(1, 10 + 10 * static_cast<std::uint64_t>(i)));
    tracker.on(run.result(i == 0 ? run_status::stopped : run_status::failed));
  }
  CHECK(server.created_.size() == 1);
  REQUIRE(server.metrics_.size() == 20);
  for (int i = 0; i < 20; ++i)
    CHECK(server.metrics_[i]["step"] == i + 1);
  CHECK(server.status_ == "FAILED");
}

TEST_CASE("a server that fails for a while gets everything later, and users hear of it once") {
  tracking_server server;
  server.failures_ = 2;
  auto run = tracked_run{server.uri()};
  auto tracker = mlflow_tracker{run.config, run.teller()};
  tracker.on(run.started());
  tracker.on(run.batch(1, 5));
  CHECK(becomes_true([&] { return tracker.so_far().taken == 5; }));
  const auto lock = std::lock_guard{run.mutex};
  REQUIRE(run.told.size() == 3);
  CHECK(run.told[0].first);
  CHECK(run.told[0].second.find("503") != std::string::npos);
  CHECK(run.told[1].second == "MLflow answers again");
  CHECK_FALSE(run.told[2].first);
}

TEST_CASE("points that the server refuses are dropped and counted, and others arrive") {
  tracking_server server;
  auto run = tracked_run{server.uri()};
  auto tracker = mlflow_tracker{run.config, run.teller()};
  tracker.on(run.started());
  tracker.on(run.batch(1, 3, "refused"));
  CHECK(becomes_true([&] { return tracker.so_far().dropped == 3; }));
  tracker.on(run.batch(4, 5));
  CHECK(becomes_true([&] { return tracker.so_far().taken == 2; }));
}

TEST_CASE("a server that nobody runs does not hold up the end of a run, which says what is lost") {
  // Bound, so that nobody else is there, and closed.
  const auto uri = [] { return tracking_server{}.uri(); }();
  auto run = tracked_run{uri};
  {
    auto tracker = mlflow_tracker{run.config, run.teller()};
    tracker.on(run.started());
    tracker.on(run.batch(1, 3));
    tracker.on(run.result(run_status::completed));
    CHECK(becomes_true([&] {
      const auto lock = std::lock_guard{run.mutex};
      return !run.told.empty();
    }));
  }
  REQUIRE(run.told.size() == 2);
  CHECK(run.told[1].second == "3 points of metrics did not get to MLflow");
}

TEST_CASE("a server that is no tracking server is named as such") {
  httplib::Server server;
  server.Get(".*",
             [](const httplib::Request&, httplib::Response& response) { response.set_content("hi", "text/plain"); });
  const auto port = server.bind_to_any_port("127.0.0.1");
  auto thread = std::thread{[&] { server.listen_after_bind(); }};
  auto run = tracked_run{"http://127.0.0.1:" + std::to_string(port)};
  {
    auto tracker = mlflow_tracker{run.config, run.teller()};
    tracker.on(run.started());
    CHECK(becomes_true([&] {
      const auto lock = std::lock_guard{run.mutex};
      return !run.told.empty();
    }));
  }
  CHECK(run.told[0].second.find("is that its address?") != std::string::npos);
  server.stop();
  thread.join();
}
