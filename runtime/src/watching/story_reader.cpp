#include "watching/growing_file.hpp"
#include "watching/run_story.hpp"

#include <troupe/runtime/control_client.hpp>
#include <troupe/runtime/control_socket.hpp>
#include <troupe/runtime/found_run.hpp>
#include <troupe/runtime/worker_log.hpp>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

namespace troupe::runtime {

namespace fs = std::filesystem;
using nlohmann::json;
using ordered = nlohmann::ordered_json;

namespace {

constexpr std::size_t most_bytes = std::size_t{64} << 20;

/// An object, empty if there is none that can be read. Written files are small; others are left alone.
json small_object_in(const fs::path& path) {
  constexpr std::uintmax_t largest = std::uintmax_t{16} << 20;
  auto code = std::error_code{};
  if (const auto size = fs::file_size(path, code); code || size > largest)
    return json::object();
  auto file = std::ifstream{path};
  auto result = json::parse(file, nullptr, false);
  return result.is_object() ? result : json::object();
}

/// Without parsing rows that nobody asks for: of many ranks most are not rank 0's.
bool may_be_of_rank_0(std::string_view line) {
  constexpr std::string_view mark = "\"rank\":";
  const auto at = line.find(mark);
  if (at == std::string_view::npos)
    return true;
  const auto digits = line.substr(at + mark.size());
  return digits.size() > 1 && (digits[0] == '0' || digits[0] == ' ');
}

template <class Sink>
void take_object(std::string_view line, Sink sink) {
  if (auto row = json::parse(line, nullptr, false); row.is_object())
    sink(std::move(row));
}

} // namespace

class story_reader::impl {
 public:
  explicit impl(fs::path run)
      : run_(std::move(run)),
        metrics_file_(run_ / "metrics.jsonl", most_bytes),
        times_file_(run_ / "times.jsonl", most_bytes),
        events_file_(run_ / "events.jsonl", most_bytes) {}

  void read() {
    metrics_file_.read([this] { metrics_ = {}; },
                       [this](std::string_view line) {
                         if (may_be_of_rank_0(line))
                           take_object(line, [this](const json& row) { metrics_.add(row); });
                       });
    times_file_.read(
        [this] { times_ = {}; },
        [this](std::string_view line) { take_object(line, [this](const json& row) { times_.add(row); }); });
    events_file_.read(
        [this] { events_ = {}; },
        [this](std::string_view line) { take_object(line, [this](json row) { events_.add(std::move(row)); }); });
  }

  [[nodiscard]] std::vector<named_curve> curves() const { return metrics_.curves(); }

  [[nodiscard]] ordered to_json() const {
    auto curves = ordered::object();
    for (const auto& each : metrics_.curves())
      if (!each.points.empty())
        curves[each.name] = runtime::to_json(each);
    auto logs = ordered::array();
    for (const auto& each : list_logs(run_))
      logs.push_back({{"worker", each.worker}, {"rank", each.rank ? ordered(*each.rank) : ordered(nullptr)}});
    auto sampled = ordered::array();
    for (const auto& [file, name] : {std::pair{&metrics_file_, "metrics.jsonl"}, std::pair{&times_file_, "times.jsonl"},
                                     std::pair{&events_file_, "events.jsonl"}})
      if (file->is_sampled())
        sampled.push_back(name);
    return {{"about", describe_run(small_object_in(run_ / "run.json"))},
            {"curves", std::move(curves)},
            {"ranks", times_.ranks()},
            {"late", times_.late()},
            {"events", events_.events()},
            {"counts", events_.counts()},
            {"failures", events_.failures()},
            {"checkpoints", events_.checkpoints()},
            {"goodput", events_.goodput()},
            {"members", ordered(events_.members())},
            {"logs", std::move(logs)},
            {"result", describe_result(small_object_in(run_ / "result.json"))},
            {"sampled", std::move(sampled)}};
  }

 private:
  fs::path run_;
  growing_file metrics_file_;
  growing_file times_file_;
  growing_file events_file_;
  metric_story metrics_;
  time_story times_;
  event_story events_;
};

story_reader::story_reader(fs::path run) : impl_(std::make_unique<impl>(std::move(run))) {}
story_reader::~story_reader() = default;

void story_reader::read() {
  impl_->read();
}

std::vector<named_curve> story_reader::curves() const {
  return impl_->curves();
}

ordered story_reader::to_json() const {
  return impl_->to_json();
}

ordered status_of_run(const fs::path& run) {
  using namespace std::chrono_literals;
  auto refusal = std::string{};
  if (auto stream = connect_to_run(run)) {
    auto driver = control_client{collectives::unique_fd{*stream}};
    auto status = driver.ask(actors::status_question{}, 2s);
    if (status)
      return std::move(*status);
    refusal = status.error().message;
  } else {
    refusal = stream.error().message;
  }
  const auto absent = explain_absence(run, refusal);
  auto result = stored_status(run, absent.why);
  if (absent.why != absence::ended)
    result["hint"] = absent.text;
  return result;
}

} // namespace troupe::runtime
