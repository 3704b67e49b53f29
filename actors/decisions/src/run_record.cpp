#include <troupe/actors/decisions/run_record.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

constexpr std::size_t most_events = 256;
constexpr std::size_t most_workers = 1024;

double seconds_of(std::chrono::duration<double> time) {
  return time.count();
}

/// Puts the last `most` of `all`, without those to leave out, in front of what is there.
template <class T, class Predicate>
void prepend_last(std::vector<T>& to, const std::vector<T>& all, std::size_t most, Predicate is_wanted) {
  std::vector<T> found;
  for (auto i = all.rbegin(); i != all.rend() && found.size() + to.size() < most; ++i)
    if (is_wanted(*i))
      found.push_back(*i);
  to.insert(to.begin(), found.rbegin(), found.rend());
}

} // namespace

run_record::run_record(run_id run, const run_config& config, clock::time_point now) : started_(now), goodput_(now) {
  result_.run = std::move(run);
  result_.name = config.name;
  result_.exact = config.reduction == reduction_mode::exact;
}

void run_record::begin_from(step_id step, std::string checkpoint, metric_map metrics, metric_steps metrics_from) {
  first_step_ = step;
  if (result_.restarts == 0) {
    result_.resumed_from_step = step.value;
    goodput_.begin_after(step);
  } else {
    goodput_.restart_after(step, furthest_);
  }
  result_.steps = step.value;
  result_.latest_checkpoint = std::move(checkpoint);
  earlier_metrics_ = std::move(metrics);
  earlier_from_ = std::move(metrics_from);
}

run_history run_record::history(const std::vector<failure_record>& failures) const {
  const auto any = [](const auto&) { return true; };
  run_history result;
  prepend_last(result.failures, failures, most_events, any);
  prepend_last(result.failures, earlier_failures_, most_events, any);
  prepend_last(result.generations, result_.generations, most_events, any);
  prepend_last(result.workers, result_.workers, most_workers, [](const worker_info& x) { return !x.node.empty(); });
  result.restarts = result_.restarts;
  result.due_checkpoints = result_.due_checkpoints;
  result.resumed_from_step = result_.resumed_from_step;
  result.programs = result_.programs;
  result.loaded_from = result_.loaded_from;
  for (auto& each : result.failures)
    each.last_lines.clear();
  return result;
}

void run_record::go_on_from(run_history before) {
  earlier_failures_ = std::move(before.failures);
  result_.generations = std::move(before.generations);
  result_.restarts = before.restarts;
  result_.due_checkpoints = before.due_checkpoints;
  result_.resumed_from_step = before.resumed_from_step;
  result_.programs = std::move(before.programs);
  result_.loaded_from = std::move(before.loaded_from);
  for (auto& each : before.workers)
    info_of(each.worker) = std::move(each);
}

worker_info& run_record::info_of(worker_id worker) {
  auto i = std::ranges::lower_bound(result_.workers, worker, {}, &worker_info::worker);
  if (i == result_.workers.end() || i->worker != worker)
    i = result_.workers.insert(i, {.worker = worker, .rank = {}, .host = {}, .node = {}, .pid = 0});
  skip_workers({worker.value + 1});
  return *i;
}

const worker_info* run_record::find(worker_id worker) const noexcept {
  const auto i = std::ranges::lower_bound(result_.workers, worker, {}, &worker_info::worker);
  return i != result_.workers.end() && i->worker == worker ? &*i : nullptr;
}

worker_info run_record::operator[](worker_id worker) const {
  const auto* found = find(worker);
  return found != nullptr ? *found : worker_info{.worker = worker, .rank = {}, .host = {}, .node = {}, .pid = 0};
}

void run_record::on_started(const worker_place& place, const std::string& host, const std::string& node) {
  info_of(place.worker) = {place.worker, place.rank, host, node, 0};
}

void run_record::on_inherited(const worker_place& place, const std::string& host, const std::string& node) {
  const auto pid = (*this)[place.worker].pid;
  on_started(place, host, node);
  info_of(place.worker).pid = pid;
}

void run_record::skip_workers(worker_id next) {
  next_worker_ = std::max(next_worker_, next);
}

void run_record::on_joined(const worker_ready& message) {
  auto& info = info_of(message.worker);
  info.pid = message.pid;
  info.host = message.host;
}

run_record::begin run_record::on_begin() {
  meter_.begin(result_.run, started_, first_step_.value);
  return begun_++ == 0 ? begin::first : begin::again;
}

std::optional<run_progress> run_record::on_metrics(const metrics_batch& batch, generation_id generation,
                                                   clock::time_point now) {
  for (const auto& row : batch.pauses)
    note_pause(row.generation, seconds_of(std::chrono::microseconds{row.pause_us}));
  goodput_.add(batch);
  if (batch.applied > first_step_) {
    if (const auto activity = goodput_.activity(); activity == time_use::starting || activity == time_use::restarting)
      goodput_.enter(time_use::training, now);
    if (result_.seconds_to_first_step == 0)
      result_.seconds_to_first_step = seconds_of(now - started_);
    if (restart_began_)
      note_pause(generation, seconds_of(now - *std::exchange(restart_began_, std::nullopt)));
  }
  return batch.rank == rank_id{0} ? meter_.add(batch, now) : std::nullopt;
}

std::optional<run_progress> run_record::latest_progress() const {
  return meter_.latest().step > 0 ? std::optional{meter_.latest()} : std::nullopt;
}

void run_record::on_checkpoint(const checkpoint_outcome& outcome) {
  if (outcome.reason.code != errc::none) {
    ++result_.due_checkpoints.failed;
    // A checkpoint that already exists is saved.
    if (outcome.reason.code != errc::already_exists)
      unsaved_ = outcome;
    return;
  }
  unsaved_.reset();
  ++result_.due_checkpoints.taken;
  result_.latest_checkpoint = outcome.path;
}

void run_record::note_pause(generation_id generation, double seconds) {
  for (auto& each : result_.generations)
    if (each.generation == generation)
      each.pause_seconds = std::max(each.pause_seconds, seconds);
}

void run_record::on_restart(std::string why, step_id furthest, clock::time_point now) {
  ++result_.restarts;
  restart_reason_ = std::move(why);
  restart_began_ = now;
  goodput_.enter(time_use::restarting, now);
  furthest_ = std::max(furthest_, furthest);
}

generation_record run_record::restarted_generation(generation_id generation, std::uint32_t attempt,
                                                   std::uint32_t workers) const {
  generation_record record;
  record.run = result_.run;
  record.generation = generation;
  record.attempt = attempt;
  record.workers = workers;
  record.commit_point = first_step_;
  record.steps_redone = furthest_.value - std::min(furthest_, first_step_).value;
  record.interrupted_step = true;
  record.reason = fmt::format("{}; started again from step {}", restart_reason_, first_step_);
  return record;
}

void run_record::conclude(run_status status, error reason) {
  result_.status = status;
  result_.reason = std::move(reason);
  result_.metrics = meter_.latest().metrics;
  // Metrics that were not reported again keep their values from before the resume.
  result_.metrics.insert(earlier_metrics_.begin(), earlier_metrics_.end());
  result_.metrics_from = meter_.latest().metrics_from;
  result_.metrics_from.insert(earlier_from_.begin(), earlier_from_.end());
  result_.steps = std::max(result_.steps, meter_.latest().step);
}

void run_record::set_final_state(const std::vector<failure_record>& failures, std::string state_sha256,
                                 step_id last_step) {
  result_.failures = earlier_failures_;
  result_.failures.insert(result_.failures.end(), failures.begin(), failures.end());
  if (result_.status != run_status::failed)
    result_.state_sha256 = std::move(state_sha256);
  result_.steps = std::max(result_.steps, last_step.value);
}

run_result run_record::finish(clock::time_point now) {
  // Drop workers without data: only an earlier driver had it.
  std::erase_if(result_.workers, [](const worker_info& x) { return x.node.empty(); });
  if (!result_.programs.empty())
    result_.programs.back().last_step.value = result_.steps;
  result_.seconds_total = seconds_of(now - started_);
  result_.goodput = goodput_.so_far(now);
  if (unsaved_ && unsaved_->step.value >= result_.steps)
    result_.fail({unsaved_->reason.code, fmt::format("the last checkpoint, of step {}, could not be taken: {}",
                                                     unsaved_->step, unsaved_->reason.message)});
  return result_;
}

} // namespace troupe::actors
