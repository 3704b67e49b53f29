#include "monitoring/mlflow_tracker.hpp"

#include "monitoring/mlflow_client.hpp"
#include "monitoring/mlflow_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr auto first_retry = 500ms;
constexpr auto longest_retry = 30'000ms;
/// So that points go together.
constexpr auto send_interval = 1s;
/// MLflow's limits.
constexpr std::size_t most_parameters = 100;
constexpr std::size_t longest_parameter = 500;

std::uint64_t now_ms() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

/// What the result depends on, and how the run was started.
json parameters_of(const trainer_config& config) {
  auto result = json::array();
  const auto add = [&result](const std::string& name, const std::string& value) {
    if (result.size() < most_parameters)
      result.push_back({{"key", mlflow_name(name)}, {"value", value.substr(0, longest_parameter)}});
  };
  add("troupe.seed", fmt::to_string(config.run.seed));
  add("troupe.shards", fmt::to_string(config.scaling.shards));
  add("troupe.workers", to_string(config.scaling.num_workers));
  for (const auto& [name, value] : config.config.items())
    add(name, value.is_string() ? value.get<std::string>() : value.dump());
  return result;
}

/// A run on the server.
class server_run {
 public:
  server_run(const trainer_config& config)
      : client_(config.monitoring.mlflow_tracking_uri, mlflow_tracker::patience),
        uri_(config.monitoring.mlflow_tracking_uri),
        experiment_(config.monitoring.mlflow_experiment),
        parameters_(parameters_of(config)) {}

  /// Goes on with the run that `mlflow.json` names, or creates one. Returns the last step of which the server has a
  /// metric.
  expected<std::uint64_t> begin(const run_started& run) {
    const auto path = std::filesystem::path{run.path} / "mlflow.json";
    auto known = json::parse(std::ifstream{path}, nullptr, false);
    if (known.is_object() && known.value("tracking_uri", "") == uri_) {
      auto last_step = go_on_with(known.value("run_id", ""));
      if (last_step || last_step.error().code != errc::not_found)
        return last_step;
    }
    TROUPE_TRY(const auto experiment, find_experiment());
    TROUPE_TRY(const auto created, client_.post("runs/create", {{"experiment_id", experiment},
                                                                {"run_name", run.name},
                                                                {"start_time", now_ms()},
                                                                {"tags",
                                                                 {{{"key", "troupe.run"}, {"value", run.run.value}},
                                                                  {{"key", "troupe.path"}, {"value", run.path}}}}}));
    id_ = text_in(created, "/run/info/run_id");
    if (id_.empty())
      return fail(errc::invalid_argument, uri_ + " names no run: is it an MLflow tracking server?");
    // Parameters of a run cannot be changed.
    TROUPE_TRY(std::ignore, client_.post("runs/log-batch", {{"run_id", id_}, {"params", parameters_}}));
    std::ofstream{path} << json{{"tracking_uri", uri_}, {"experiment_id", experiment}, {"run_id", id_}}.dump() << '\n';
    return 0;
  }

  [[nodiscard]] std::string describe() const { return fmt::format("{} (run {})", uri_, id_); }

  expected<void> log(json metrics) {
    TROUPE_TRY(std::ignore, client_.post("runs/log-batch", {{"run_id", id_}, {"metrics", std::move(metrics)}}));
    return {};
  }

  expected<void> end(run_status status) {
    const auto* word = status == run_status::completed ? "FINISHED"
                       : status == run_status::stopped ? "KILLED"
                                                       : "FAILED";
    TROUPE_TRY(std::ignore, client_.post("runs/update", {{"run_id", id_}, {"status", word}, {"end_time", now_ms()}}));
    return {};
  }

 private:
  static std::string text_in(const json& answer, const char* where) {
    const auto pointer = json::json_pointer{where};
    return answer.contains(pointer) && answer[pointer].is_string() ? answer[pointer].get<std::string>() : std::string{};
  }

  /// Protobuf's JSON has 64-bit numbers as texts, and servers as numbers, too.
  static std::uint64_t number_in(const json& x) {
    if (x.is_string())
      return std::strtoull(x.get<std::string>().c_str(), nullptr, 10);
    return x.is_number() ? x.get<std::uint64_t>() : 0;
  }

  expected<std::uint64_t> go_on_with(const std::string& id) {
    TROUPE_TRY(const auto found, client_.get("runs/get", {{"run_id", id}}));
    if (text_in(found, "/run/info/lifecycle_stage") == "deleted")
      return fail(errc::not_found, "the run was deleted");
    TROUPE_TRY(std::ignore, client_.post("runs/update", {{"run_id", id}, {"status", "RUNNING"}}));
    id_ = id;
    std::uint64_t result = 0;
    const auto metrics = json::json_pointer{"/run/data/metrics"};
    if (found.contains(metrics))
      for (const auto& each : found[metrics])
        if (const auto step = each.find("step"); step != each.end())
          result = std::max(result, number_in(*step));
    return result;
  }

  expected<std::string> find_experiment() {
    auto found = client_.get("experiments/get-by-name", {{"experiment_name", experiment_}});
    if (found)
      return text_in(*found, "/experiment/experiment_id");
    if (found.error().code != errc::not_found)
      return fail(std::move(found.error()));
    TROUPE_TRY(const auto created, client_.post("experiments/create", {{"name", experiment_}}));
    return text_in(created, "/experiment_id");
  }

  mlflow_client client_;
  std::string uri_;
  std::string experiment_;
  json parameters_;
  std::string id_;
};

} // namespace

class mlflow_tracker::impl {
 public:
  impl(const trainer_config& config, std::function<void(bool, std::string)> tell)
      : server_(config), tell_(std::move(tell)) {}

  // -- from the trainer's thread

  void on(const run_started& x) {
    change([&] { started_ = x; });
  }

  void on(const metrics_batch& batch) {
    if (batch.rank == rank_id{0} && !batch.rows.empty())
      change([&] {
        for (const auto& row : batch.rows)
          queue_.add(row);
      });
  }

  void on(const run_result& result) {
    change([&] {
      if (result.goodput.steps > 0)
        queue_.add("troupe/goodput", result.goodput.ratio(), now_ms(), result.steps);
      status_ = result.status;
    });
  }

  figures so_far() const {
    const auto lock = std::lock_guard{mutex_};
    return {queue_.taken(), queue_.size(), queue_.dropped()};
  }

  /// Once the time is over, the thread tells nobody any more.
  void end() {
    auto lock = std::unique_lock{mutex_};
    if (!deadline_)
      deadline_ = clock::now() + patience_at_end;
    changed_.notify_all();
    changed_.wait_until(lock, *deadline_ + patience, [this] { return is_over_; });
    tell_ = {};
  }

  // -- the thread

  void run() {
    if (begin())
      send_all();
    auto lock = std::unique_lock{mutex_};
    const auto lost = queue_.size() + queue_.dropped();
    lock.unlock();
    if (lost > 0)
      tell(true, fmt::format("{} points of metrics did not get to MLflow", lost));
    lock.lock();
    is_over_ = true;
    changed_.notify_all();
  }

 private:
  template <class Change>
  void change(Change make) {
    {
      const auto lock = std::lock_guard{mutex_};
      make();
    }
    changed_.notify_all();
  }

  void tell(bool is_warning, std::string text) {
    const auto lock = std::lock_guard{mutex_};
    if (tell_)
      tell_(is_warning, std::move(text));
  }

  /// Whether there is no time left. With the mutex held.
  [[nodiscard]] bool is_late() const { return deadline_ && clock::now() >= *deadline_; }

  /// Waits for another attempt. False if there is to be none.
  bool waits_after(const error& reason) {
    if (std::exchange(problem_, reason.message) != reason.message)
      tell(true, "MLflow: " + reason.message + "; metrics wait for it, and training goes on");
    auto lock = std::unique_lock{mutex_};
    if (deadline_)
      return false;
    changed_.wait_for(lock, retry_, [this] { return deadline_.has_value(); });
    retry_ = std::min(2 * retry_, longest_retry);
    return true;
  }

  void note_success() {
    retry_ = first_retry;
    if (!std::exchange(problem_, {}).empty())
      tell(false, "MLflow answers again");
  }

  bool begin() {
    {
      auto lock = std::unique_lock{mutex_};
      changed_.wait(lock, [this] { return started_ || deadline_; });
      if (!started_)
        return false;
    }
    for (;;) {
      const auto last_step = server_.begin(*started_);
      if (last_step) {
        note_success();
        tell(false, "metrics go to MLflow at " + server_.describe());
        const auto lock = std::lock_guard{mutex_};
        queue_.begin_after(*last_step);
        return true;
      }
      if (!waits_after(last_step.error()))
        return false;
    }
  }

  void send_all() {
    for (;;) {
      json batch;
      {
        auto lock = std::unique_lock{mutex_};
        changed_.wait_for(lock, send_interval,
                          [this] { return deadline_ || queue_.size() >= mlflow_queue::most_in_batch; });
        changed_.wait(lock, [this] { return deadline_ || !queue_.is_empty(); });
        if (queue_.is_empty() || is_late())
          break;
        batch = queue_.batch();
      }
      if (!send(std::move(batch)))
        return;
    }
    if (status_)
      if (const auto done = server_.end(*status_); !done)
        tell(true, "MLflow: " + done.error().message + "; it shows the run as running");
  }

  /// False if there is no use in going on.
  bool send(json batch) {
    const auto count = batch.size();
    const auto done = server_.log(std::move(batch));
    if (!done && done.error().code != errc::invalid_argument)
      return waits_after(done.error());
    if (!done)
      tell(true, fmt::format("MLflow refuses {} points: {}", count, done.error().message));
    else
      note_success();
    const auto lock = std::lock_guard{mutex_};
    queue_.remove(count, done.has_value());
    return true;
  }

  /// The thread's own.
  server_run server_;
  std::string problem_;
  std::chrono::milliseconds retry_ = first_retry;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  mlflow_queue queue_;
  std::optional<run_started> started_;
  std::optional<run_status> status_;
  /// Set at the end.
  std::optional<clock::time_point> deadline_;
  bool is_over_ = false;
  std::function<void(bool, std::string)> tell_;
};

mlflow_tracker::mlflow_tracker(const trainer_config& config, std::function<void(bool, std::string)> tell)
    : impl_(std::make_shared<impl>(config, std::move(tell))) {
  std::thread{[state = impl_] { state->run(); }}.detach();
}

mlflow_tracker::~mlflow_tracker() {
  finish();
}

void mlflow_tracker::finish() {
  impl_->end();
}

void mlflow_tracker::on(const run_started& x) {
  impl_->on(x);
}

void mlflow_tracker::on(const metrics_batch& batch) {
  impl_->on(batch);
}

void mlflow_tracker::on(const run_result& result) {
  impl_->on(result);
}

mlflow_tracker::figures mlflow_tracker::so_far() const {
  return impl_->so_far();
}

} // namespace troupe::runtime
