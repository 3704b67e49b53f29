#include "watching/run_story.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace troupe::runtime {

using nlohmann::json;
using ordered = nlohmann::ordered_json;

namespace {

/// Rows of another kind than expected, such as damaged ones, have defaults.
template <class T>
T value_of(const json& from, std::string_view key, T otherwise) {
  const auto found = from.find(key);
  if (found == from.end())
    return otherwise;
  try {
    return found->get<T>();
  } catch (const json::exception&) {
    return otherwise;
  }
}

bool is_own_name(std::string_view name) {
  return name == "step" || name == "rank" || name == "seconds" || name == "time";
}

/// Texts of users may be long.
std::string shortened(const std::string& text, std::size_t most = 4000) {
  return text.size() <= most ? text : text.substr(0, most) + " …";
}

void shorten_texts(json& event) {
  for (auto& each : event)
    if (each.is_string())
      each = shortened(each.get_ref<const std::string&>());
}

ordered as_array(const std::deque<json>& from) {
  auto result = ordered::array();
  for (const auto& each : from)
    result.push_back(ordered(each));
  return result;
}

void push_bounded(std::deque<json>& to, json what, std::size_t most) {
  to.push_back(std::move(what));
  if (to.size() > most)
    to.pop_front();
}

void add_account(ordered& to, const json& account) {
  for (const auto* key : {"seconds", "productive", "steps_redone"})
    to[key] = to.value(key, 0.0) + value_of(account, key, 0.0);
  const auto lost = account.find("lost");
  if (lost == account.end() || !lost->is_object())
    return;
  for (const auto& [cause, seconds] : lost->items())
    if (seconds.is_number())
      to["lost"][cause] = to.value("lost", ordered::object()).value(cause, 0.0) + seconds.get<double>();
}

} // namespace

void metric_story::add(const json& row) {
  if (value_of(row, "rank", 0U) != 0)
    return;
  const auto step = value_of(row, "step", std::uint64_t{0});
  if (const auto seconds = row.find("seconds"); seconds != row.end() && seconds->is_number())
    seconds_.add(step, seconds->get<double>());
  for (const auto& [name, value] : row.items()) {
    if (is_own_name(name) || !(value.is_number() || value.is_null()))
      continue;
    auto known = metrics_.find(name);
    if (known == metrics_.end()) {
      if (metrics_.size() >= most_metrics)
        continue;
      known = metrics_.emplace(name, bounded_curve{}).first;
    }
    // JSON has no number for what is not finite.
    known->second.add(step, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }
}

named_curve metric_story::speed() const {
  named_curve result{"steps/s", {}};
  auto before = std::optional<std::pair<double, double>>{};
  for (const auto& [index, each] : seconds_.buckets()) {
    const auto now = std::pair{each.mean_step(), each.mean()};
    if (before && now.second > before->second) {
      const auto speed = (now.first - before->first) / (now.second - before->second);
      result.points.push_back({now.first, speed, speed, speed});
    }
    before = now;
  }
  return result;
}

std::vector<named_curve> metric_story::curves() const {
  std::vector<named_curve> result{speed()};
  for (const auto& [name, curve] : metrics_) {
    auto& added = result.emplace_back(named_curve{name, {}});
    for (const auto& [index, each] : curve.buckets())
      added.points.push_back({each.mean_step(), each.mean(), each.least, each.most});
  }
  return result;
}

void time_story::times::add(const times& other) noexcept {
  steps += other.steps;
  compute += other.compute;
  wait += other.wait;
  barrier += other.barrier;
  checkpoint += other.checkpoint;
}

time_story::times time_story::rank::lately() const noexcept {
  auto result = times{};
  for (const auto& each : recent)
    result.add(each);
  return result;
}

void time_story::add(const json& row) {
  // Who was late an hour ago is not late now.
  constexpr std::size_t most_recent = 5;
  constexpr std::size_t most_ranks = 4096;
  const auto number = value_of(row, "rank", std::uint64_t{0});
  if (ranks_.size() >= most_ranks && !ranks_.contains(number))
    return;
  auto& rank = ranks_[number];
  const auto what = times{value_of(row, "steps", std::uint64_t{0}), value_of(row, "compute", 0.0),
                          value_of(row, "wait", 0.0), value_of(row, "barrier", 0.0), value_of(row, "checkpoint", 0.0)};
  rank.step = std::max(rank.step, value_of(row, "step", std::uint64_t{0}));
  rank.total.add(what);
  rank.recent.push_back(what);
  if (rank.recent.size() > most_recent)
    rank.recent.pop_front();
}

ordered time_story::ranks() const {
  auto result = ordered::array();
  const auto in_ms = [](double seconds, std::uint64_t steps) {
    return steps > 0 ? std::round(1e6 * seconds / static_cast<double>(steps)) / 1e3 : 0.0;
  };
  for (const auto& [number, rank] : ranks_) {
    const auto now = rank.lately();
    result.push_back({{"rank", number},
                      {"step", rank.step},
                      {"steps", rank.total.steps},
                      {"compute_ms", in_ms(now.compute, now.steps)},
                      {"wait_ms", in_ms(now.wait, now.steps)},
                      {"barrier_ms", in_ms(now.barrier, now.steps)},
                      {"checkpoint_ms", in_ms(now.checkpoint, now.steps)},
                      {"waited_seconds", rank.total.wait + rank.total.barrier}});
  }
  return result;
}

ordered time_story::late() const {
  constexpr auto noticeable = 1.1;
  std::vector<std::pair<double, std::uint64_t>> by_compute;
  for (const auto& [number, rank] : ranks_)
    if (const auto now = rank.lately(); now.steps > 0)
      by_compute.emplace_back(now.compute / static_cast<double>(now.steps), number);
  if (by_compute.size() < 2)
    return nullptr;
  std::ranges::sort(by_compute);
  const auto median = by_compute[(by_compute.size() - 1) / 2].first;
  const auto [most, number] = by_compute.back();
  if (median <= 0 || most < noticeable * median)
    return nullptr;
  return {{"rank", number}, {"ratio", most / median}};
}

void event_story::add(json event) {
  const auto kind = value_of(event, "event", std::string{});
  if (const auto account = event.find("goodput"); account != event.end() && account->is_object())
    account_ = *account;
  if (kind.empty() || kind == "goodput")
    return;
  shorten_texts(event);
  event.erase("goodput");
  const auto is_consequence = value_of(event, "consequence", false);
  ++counts_[is_consequence ? "consequence" : kind];
  if (kind == "pause")
    return merge_pause(std::move(event));
  if (kind == "started") {
    // Another process of the run counts its time from its own start.
    if (starts_++ > 0 && account_.is_object())
      add_account(past_, std::exchange(account_, {}));
    if (auto workers = event.find("workers"); workers != event.end() && workers->is_array()) {
      members_ = std::move(*workers);
      event["workers"] = members_.size();
    }
  }
  event["process"] = starts_;
  if (kind == "failure" && !is_consequence)
    push_bounded(failures_, event, most_failures);
  if (kind == "checkpoint")
    push_bounded(checkpoints_, event, most_checkpoints);
  remember(std::move(event));
}

/// Ranks pause together: the one that waited longest stands for all.
void event_story::merge_pause(json event) {
  event["process"] = starts_;
  for (auto known = events_.rbegin(); known != events_.rend() && known != events_.rbegin() + 64; ++known) {
    if (value_of(*known, "event", std::string{}) != "pause" ||
        value_of(*known, "process", std::uint64_t{0}) != starts_ ||
        value_of(*known, "generation", std::uint64_t{0}) != value_of(event, "generation", std::uint64_t{0}))
      continue;
    const auto ranks = value_of(*known, "ranks", std::uint64_t{1}) + 1;
    --counts_["pause"];
    if (value_of(*known, "seconds", 0.0) < value_of(event, "seconds", 0.0))
      *known = std::move(event);
    (*known)["ranks"] = ranks;
    return;
  }
  event["ranks"] = 1;
  remember(std::move(event));
}

void event_story::remember(json event) {
  push_bounded(events_, std::move(event), most_events);
}

ordered event_story::events() const {
  return as_array(events_);
}

ordered event_story::counts() const {
  return ordered(json(counts_));
}

ordered event_story::failures() const {
  return as_array(failures_);
}

ordered event_story::checkpoints() const {
  return as_array(checkpoints_);
}

ordered event_story::goodput() const {
  auto result = past_;
  if (account_.is_object())
    add_account(result, account_);
  const auto seconds = result.value("seconds", 0.0);
  if (seconds <= 0)
    return nullptr;
  result["ratio"] = std::clamp(result.value("productive", 0.0) / seconds, 0.0, 1.0);
  return result;
}

ordered describe_run(const json& run) {
  auto result = ordered::object();
  for (const auto* key :
       {"name", "program", "function", "seed", "shards", "workers", "build_id", "loaded_from", "config", "options"})
    if (const auto found = run.find(key); found != run.end() && !found->is_null() &&
                                          !(found->is_string() && found->get_ref<const std::string&>().empty()))
      result[key] = *found;
  return result;
}

ordered describe_result(const json& result) {
  auto told = ordered::object();
  for (const auto* key : {"status", "steps", "state_sha256", "exact", "error", "restarts", "seconds",
                          "latest_checkpoint", "best_checkpoint", "workers", "metrics"})
    if (const auto found = result.find(key); found != result.end() && !found->is_null())
      told[key] = *found;
  // The cause first: what a worker said last belongs to it.
  if (const auto failures = result.find("failures"); failures != result.end() && failures->is_array())
    for (const auto& each : *failures)
      if (each.is_object() && !value_of(each, "consequence", false))
        told["last_lines"] = each.contains("last_lines") ? each["last_lines"] : json::array();
  return told;
}

ordered to_json(const named_curve& curve) {
  auto steps = ordered::array();
  auto values = ordered::array();
  auto least = ordered::array();
  auto most = ordered::array();
  const auto rounded = [](double x) -> ordered {
    if (!std::isfinite(x))
      return nullptr;
    if (x == 0)
      return 0.0;
    const auto scale = std::pow(10.0, 6 - std::ceil(std::log10(std::fabs(x))));
    return std::isfinite(scale) && scale > 0 ? std::round(x * scale) / scale : x;
  };
  for (const auto& each : curve.points) {
    steps.push_back(std::round(10 * each.step) / 10);
    values.push_back(rounded(each.value));
    least.push_back(rounded(std::isfinite(each.value) ? each.least : each.value));
    most.push_back(rounded(std::isfinite(each.value) ? each.most : each.value));
  }
  return {{"steps", std::move(steps)},
          {"values", std::move(values)},
          {"least", std::move(least)},
          {"most", std::move(most)}};
}

} // namespace troupe::runtime
