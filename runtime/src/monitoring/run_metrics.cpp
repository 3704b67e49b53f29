#include "monitoring/run_metrics.hpp"

#include "monitoring/prometheus_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace troupe::runtime {

namespace {

double seconds_of(std::uint64_t microseconds) {
  return static_cast<double>(microseconds) / 1e6;
}

constexpr auto step_bounds = [] {
  std::array<double, step_duration_bounds_us.size()> result{};
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = static_cast<double>(step_duration_bounds_us[i]) / 1e6;
  return result;
}();

} // namespace

void run_metrics::on(const actors::run_event& event) {
  std::visit([this](const auto& x) { add(x); }, event);
}

void run_metrics::on(const metrics_batch& batch) {
  figures_.dropped_reports += batch.dropped;
  for (const auto& row : batch.times)
    add(row);
  for (const auto& row : batch.pauses)
    add(row);
  if (batch.rank != rank_id{0})
    return;
  if (batch.applied.value > figures_.step) {
    figures_.applied_steps += batch.applied.value - figures_.step;
    figures_.step = batch.applied.value;
  }
  for (const auto& row : batch.rows)
    for (const auto& [name, value] : row.values)
      if (const auto found = figures_.metrics.find(name); found != figures_.metrics.end())
        found->second = value;
      else if (figures_.metrics.size() < run_figures::most_metrics)
        figures_.metrics.emplace(name, value);
}

void run_metrics::add(const times_row& row) {
  auto& rank = figures_.ranks[row.rank.value];
  rank.compute_seconds += seconds_of(row.compute_us);
  rank.wait_seconds += seconds_of(row.wait_us);
  rank.barrier_seconds += seconds_of(row.barrier_us);
  rank.checkpoint_seconds += seconds_of(row.checkpoint_us);
  rank.sent_bytes += row.sent_bytes;
  rank.resident_bytes = row.resident_bytes;
  // All ranks take the same steps.
  if (row.rank != rank_id{0} || row.durations.size() != figures_.step_durations.size())
    return;
  for (std::size_t i = 0; i < row.durations.size(); ++i)
    figures_.step_durations[i] += row.durations[i];
  figures_.step_seconds += seconds_of(row.compute_us + row.wait_us + row.barrier_us);
}

void run_metrics::add(const pause_row& row) {
  if (row.generation != paused_) {
    paused_ = row.generation;
    longest_pause_ = 0;
    ++figures_.pauses;
  }
  const auto longest = std::max(longest_pause_, seconds_of(row.pause_us));
  figures_.pause_seconds += longest - longest_pause_;
  longest_pause_ = longest;
}

void run_metrics::add(const run_started& x) {
  figures_.run = x.run.value;
  figures_.step = x.resumed_from_step;
}

void run_metrics::add(const run_progress& x) {
  figures_.planned_steps = x.steps;
  figures_.batch_samples = x.batch_samples;
  figures_.samples_per_second = x.samples_per_second;
}

void run_metrics::add(const checkpoint_saved& x) {
  auto& checkpoints = figures_.checkpoints;
  ++checkpoints.saved;
  checkpoints.saved_bytes += x.size_bytes;
  checkpoints.saved_seconds += x.seconds;
  checkpoints.last_step = x.step.value;
}

void run_metrics::add(const checkpoint_skipped&) {
  ++figures_.checkpoints.skipped;
}

void run_metrics::add(const checkpoint_failed&) {
  ++figures_.checkpoints.failed;
}

void run_metrics::add(const generation_record& x) {
  if (std::exchange(attempt_, x.attempt) != x.attempt)
    figures_.step = std::min(figures_.step, x.commit_point.value);
  for (auto& [rank, each] : figures_.ranks)
    if (rank >= x.workers)
      each.resident_bytes = 0;
}

void run_metrics::add(const run_notice& x) {
  figures_.warnings += x.warning ? 1 : 0;
}

void run_metrics::add(const failure_record& x) {
  ++figures_.failures[{std::string{to_string(x.reason.code)}, x.consequence}];
}

namespace {

void put_progress(prometheus_text& out, const run_figures& x) {
  out.gauge("troupe_run_info", "The run; always 1.");
  out.sample(1, {{"run", x.run}, {"name", x.name}});
  out.gauge("troupe_run_activity", "What the run does: 1 for one of these.");
  using actors::time_use;
  for (const auto each : {time_use::starting, time_use::training, time_use::restarting, time_use::awaiting_capacity,
                          time_use::paused, time_use::awaiting_peers, time_use::ending})
    out.sample(each == x.pulse.activity ? 1 : 0, {{"activity", to_string(each)}});
  out.gauge("troupe_step", "The last step that was applied.", double_of(x.step));
  out.gauge("troupe_planned_steps", "The last step of the run; 0 while unknown.", double_of(x.planned_steps));
  out.counter("troupe_steps_total", "Steps that were applied, those computed again after a restart included.",
              double_of(x.applied_steps));
  out.counter("troupe_samples_total", "Samples of these steps.", double_of(x.applied_steps * x.batch_samples));
  out.gauge("troupe_samples_per_second", "Over the last seconds.", x.samples_per_second);
  out.gauge("troupe_metric", "What the training function reported last, on rank 0.");
  for (const auto& [name, value] : x.metrics)
    out.sample(value, {{"name", name}});
}

void put_times(prometheus_text& out, const run_figures& x) {
  out.histogram("troupe_step_seconds", "Duration of a step on rank 0: computing, waiting, barrier.", step_bounds,
                x.step_durations, x.step_seconds);
  out.counter("troupe_rank_seconds_total",
              "Where the time of a rank went. compute: the body; wait: for the reduced gradient; barrier: until all "
              "ranks had it; checkpoint: for copies of the state.");
  for (const auto& [rank, each] : x.ranks) {
    const auto text = fmt::to_string(rank);
    out.sample(each.compute_seconds, {{"rank", text}, {"phase", "compute"}});
    out.sample(each.wait_seconds, {{"rank", text}, {"phase", "wait"}});
    out.sample(each.barrier_seconds, {{"rank", text}, {"phase", "barrier"}});
    out.sample(each.checkpoint_seconds, {{"rank", text}, {"phase", "checkpoint"}});
  }
  out.counter("troupe_collective_sent_bytes_total", "Payload that a rank sent to its peers over shared memory or TCP.");
  for (const auto& [rank, each] : x.ranks)
    out.sample(double_of(each.sent_bytes), {{"rank", fmt::to_string(rank)}});
  out.gauge("troupe_worker_resident_bytes", "Resident memory of a rank's process.");
  for (const auto& [rank, each] : x.ranks)
    if (each.resident_bytes > 0)
      out.sample(double_of(each.resident_bytes), {{"rank", fmt::to_string(rank)}});
}

void put_checkpoints(prometheus_text& out, const run_figures::checkpoint_figures& x) {
  out.counter("troupe_checkpoints_total", "Due checkpoints, by what became of them.");
  out.sample(double_of(x.saved), {{"outcome", "saved"}});
  out.sample(double_of(x.skipped), {{"outcome", "skipped"}});
  out.sample(double_of(x.failed), {{"outcome", "failed"}});
  out.counter("troupe_checkpoint_saved_bytes_total", "Size of the saved checkpoints.", double_of(x.saved_bytes));
  out.counter("troupe_checkpoint_saved_seconds_total", "From the first part of a checkpoint until it was durable.",
              x.saved_seconds);
  out.gauge("troupe_checkpoint_last_step", "The step of the latest saved checkpoint; 0 for none.",
            double_of(x.last_step));
}

void put_membership(prometheus_text& out, const run_figures& x) {
  out.gauge("troupe_generation", "The present membership of the group of workers.",
            double_of(x.pulse.generation.value));
  out.gauge("troupe_workers", "Its workers.", x.pulse.workers);
  out.counter("troupe_restarts_total", "Restarts from a checkpoint, because all workers were lost.",
              std::max(1u, x.pulse.attempt) - 1);
  out.counter("troupe_failures_total", "Failures of workers, by the kind of their error.");
  for (const auto& [what, count] : x.failures)
    out.sample(double_of(count), {{"code", what.first}, {"consequence", what.second ? "true" : "false"}});
  out.counter("troupe_pauses_total", "Times that training paused because a group was formed.", double_of(x.pauses));
  out.counter("troupe_pause_seconds_total", "How long, on the rank that waited longest.", x.pause_seconds);
  out.counter("troupe_warnings_total", "Warnings to the run's users.", double_of(x.warnings));
  out.counter("troupe_dropped_reports_total", "Reports that a rank made faster than they were taken in.",
              double_of(x.dropped_reports));
}

void put_goodput(prometheus_text& out, const run_goodput& x) {
  out.gauge("troupe_goodput_ratio", "The time of the steps that count, over the time of the run.", x.ratio());
  out.gauge("troupe_run_seconds", "Age of the run in this process.", x.seconds);
  out.gauge("troupe_productive_seconds", "Time of the steps that count, each once.", x.productive_seconds);
  out.gauge("troupe_lost_seconds", "Time in which the run did not get ahead, by cause.");
  for_each_cause(x.lost, [&out](const char* cause, double seconds) { out.sample(seconds, {{"cause", cause}}); });
  out.counter("troupe_steps_redone_total", "Steps that were computed again after a restart.",
              double_of(x.steps_redone));
}

} // namespace

std::string to_prometheus(const run_figures& figures) {
  prometheus_text out;
  put_progress(out, figures);
  put_times(out, figures);
  put_checkpoints(out, figures.checkpoints);
  put_membership(out, figures);
  put_goodput(out, figures.pulse.goodput);
  return out.text();
}

} // namespace troupe::runtime
