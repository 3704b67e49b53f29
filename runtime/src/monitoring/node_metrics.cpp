#include "monitoring/node_metrics.hpp"

#include "monitoring/prometheus_text.hpp"

#include <algorithm>
#include <utility>

namespace troupe::runtime {

void node_metrics::look(actors::node_figures figures, const sampler& sample) {
  figures_ = std::move(figures);
  std::map<std::string, run_usage> now;
  // Two drivers may have runs of one name here.
  for (const auto& run : figures_.runs) {
    auto& usage = now[run.name];
    const auto& before = runs_[run.name];
    if (usage.of_processes.empty())
      usage.cpu = before.cpu;
    for (auto pid : run.pids) {
      const auto found = sample(static_cast<pid_t>(pid));
      if (!found)
        continue;
      usage.resident_bytes += found->resident_bytes;
      const auto known = before.of_processes.find(pid);
      const auto counted = known == before.of_processes.end() ? std::chrono::nanoseconds{} : known->second;
      usage.cpu += std::max(std::chrono::nanoseconds{}, found->cpu - counted);
      usage.of_processes[pid] = found->cpu;
    }
  }
  runs_ = std::move(now);
}

std::string to_prometheus(const node_metrics& metrics) {
  const auto& x = metrics.figures();
  prometheus_text out;
  out.gauge("troupe_node_cpus", "CPUs that the node offers.", x.offered.cpus);
  out.gauge("troupe_node_gpus", "GPUs that the node offers.", x.offered.gpus);
  out.gauge("troupe_node_gpus_used", "GPUs that workers have.", x.used_gpus);
  out.gauge("troupe_node_draining", "1 while the node is going away.", x.is_draining ? 1 : 0);
  out.gauge("troupe_node_runs", "Runs that are here.", double_of(x.runs.size()));
  out.counter("troupe_node_runs_total", "Runs that have been here since the node's start.", double_of(x.runs_begun));
  out.counter("troupe_node_workers_started_total", "Worker processes that were started.", double_of(x.workers_started));
  out.counter("troupe_node_workers_ended_total", "Worker processes that have ended.", double_of(x.workers_ended));
  out.counter("troupe_node_late_heartbeats_total", "How often a worker was found silent whose process lives.",
              double_of(x.late_heartbeats));
  out.gauge("troupe_node_workers", "Worker processes of a run.");
  for (const auto& run : x.runs)
    out.sample(double_of(run.pids.size()), {{"run", run.name}});
  out.gauge("troupe_node_silent_workers", "Workers of a run that are silent now.");
  for (const auto& run : x.runs)
    out.sample(run.silent, {{"run", run.name}});
  out.gauge("troupe_node_driver_connected", "1 while the run's driver is connected.");
  for (const auto& run : x.runs)
    out.sample(run.has_driver ? 1 : 0, {{"run", run.name}});
  out.gauge("troupe_node_workers_resident_bytes", "Resident memory of a run's workers; shared memory counts for each.");
  for (const auto& [name, usage] : metrics.runs())
    out.sample(double_of(usage.resident_bytes), {{"run", name}});
  out.counter("troupe_node_workers_cpu_seconds_total",
              "Processor time of a run's workers, each up to the last scrape in which it lived.");
  for (const auto& [name, usage] : metrics.runs())
    out.sample(std::chrono::duration<double>(usage.cpu).count(), {{"run", name}});
  return out.text();
}

} // namespace troupe::runtime
