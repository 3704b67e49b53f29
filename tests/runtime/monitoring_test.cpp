#include "monitoring/gpu_reader.hpp"
#include "monitoring/http_server.hpp"
#include "monitoring/monitor.hpp"
#include "monitoring/node_metrics.hpp"
#include "monitoring/node_monitor.hpp"
#include "monitoring/prometheus_text.hpp"
#include "monitoring/run_metrics.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/config.hpp>
#include <troupe/runtime/process_usage.hpp>

#include <built.hpp>
#include <doctest/doctest.h>
#include <httplib.h>

#include <arpa/inet.h>
#include <cmath>
#include <cstdint>
#include <future>
#include <limits>
#include <map>
#include <netinet/in.h>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using namespace troupe;
using namespace troupe::runtime;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Checks the text format 0.0.4: each family has one help and one kind before its samples, which stand together, and no
/// sample comes twice. Returns the samples by name and labels.
std::map<std::string, double> parse(const std::string& page) {
  static const auto sample = std::regex{
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(?:,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? (\S+))re"};
  std::map<std::string, double> result;
  std::map<std::string, std::string> kinds;
  auto family = std::string{};
  auto lines = std::istringstream{page};
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      CHECK(kinds.emplace(family, "").second);
      continue;
    }
    if (line.starts_with("# TYPE ")) {
      REQUIRE(line.substr(7, line.find(' ', 7) - 7) == family);
      kinds[family] = line.substr(line.rfind(' ') + 1);
      // By convention.
      CHECK((kinds[family] == "counter") == family.ends_with("_total"));
      continue;
    }
    auto parts = std::smatch{};
    REQUIRE(std::regex_match(line, parts, sample));
    const auto name = parts[1].str();
    CHECK((name == family || (kinds[family] == "histogram" && name.starts_with(family + "_"))));
    const auto number = parts[3].str();
    const auto value = number == "+Inf" ? std::numeric_limits<double>::infinity() : std::stod(number);
    CHECK(result.emplace(name + parts[2].str(), value).second);
  }
  return result;
}

metrics_batch batch_of(std::uint32_t rank, std::uint64_t applied) {
  metrics_batch result;
  result.rank = {rank};
  result.applied = {applied};
  return result;
}

/// A second of steps of 16 ms.
times_row row_of(std::uint32_t rank, std::uint32_t steps) {
  times_row result{{rank}, {1}, {1}, {steps}, steps, steps * 11'000, steps * 3'000, steps * 2'000};
  result.checkpoint_us = 250'000;
  result.sent_bytes = 4096;
  result.resident_bytes = 1 << 20;
  result.durations.resize(step_duration_bounds_us.size() + 1);
  result.durations[6] = steps;
  return result;
}

run_metrics busy_run() {
  auto run = run_metrics{"digits"};
  run.on(actors::run_event{run_started{{"r1"}, "digits", "/runs/digits", {}, 100}});
  run.on(actors::run_event{run_progress{{"r1"}, 102, 200, 64, {}, {}, 1234.5, 0, 0}});
  auto batch = batch_of(0, 102);
  batch.rows = {{{101}, 0, 0, {{"loss", 0.5}, {"a \"b\"\n\\", NAN}}}, {{102}, 0, 0, {{"loss", 0.25}}}};
  batch.times = {row_of(0, 2)};
  batch.pauses = {{{2}, {102}, 500'000}};
  batch.dropped = 3;
  run.on(batch);
  auto other = batch_of(1, 102);
  other.rows = {{{102}, 0, 0, {{"loss", 77.0}}}};
  other.times = {row_of(1, 2), row_of(1, 3)};
  other.pauses = {{{2}, {102}, 750'000}, {{3}, {102}, 250'000}};
  run.on(other);
  run.on(actors::run_event{checkpoint_saved{{}, {100}, "", 4096, 0.5}});
  run.on(actors::run_event{checkpoint_saved{{}, {102}, "", 4096, 0.25}});
  run.on(actors::run_event{checkpoint_skipped{{}, {101}}});
  run.on(actors::run_event{checkpoint_failed{{}, {103}, {}}});
  failure_record failure;
  failure.reason = {errc::worker_lost, "it ended"};
  run.on(actors::run_event{failure});
  failure.consequence = true;
  run.on(actors::run_event{failure});
  run.on(actors::run_event{run_notice{{}, true, "watch out"}});
  run.on(actors::run_event{run_notice{{}, false, "by the way"}});
  actors::run_pulse pulse;
  pulse.activity = actors::time_use::training;
  pulse.generation = {3};
  pulse.attempt = 2;
  pulse.workers = 2;
  pulse.goodput = {10, 8, 102, 1, {.start_up = 1.5}};
  run.on(pulse);
  return run;
}

/// A page, or nothing if there is no answer.
std::optional<std::pair<int, std::string>> get(const endpoint& where, const std::string& path) {
  auto client = httplib::Client{where.host, where.port};
  const auto answer = client.Get(path);
  return answer ? std::optional{std::pair{answer->status, answer->body}} : std::nullopt;
}

} // namespace

TEST_CASE("a run's page is in Prometheus' format, and says what the run's events and rows say") {
  const auto page = parse(to_prometheus(busy_run().figures()));
  CHECK(page.at(R"(troupe_run_info{run="r1",name="digits"})") == 1);
  CHECK(page.at(R"(troupe_run_activity{activity="training"})") == 1);
  CHECK(page.at(R"(troupe_run_activity{activity="starting"})") == 0);
  CHECK(page.at("troupe_step") == 102);
  CHECK(page.at("troupe_planned_steps") == 200);
  CHECK(page.at("troupe_steps_total") == 2);
  CHECK(page.at("troupe_samples_total") == 128);
  CHECK(page.at("troupe_samples_per_second") == 1234.5);
  CHECK(page.at(R"(troupe_metric{name="loss"})") == 0.25);
  CHECK(std::isnan(page.at(R"(troupe_metric{name="a \"b\"\n\\"})")));
  CHECK(page.at(R"(troupe_step_seconds_bucket{le="0.01"})") == 0);
  CHECK(page.at(R"(troupe_step_seconds_bucket{le="0.025"})") == 2);
  CHECK(page.at(R"(troupe_step_seconds_bucket{le="+Inf"})") == 2);
  CHECK(page.at("troupe_step_seconds_count") == 2);
  CHECK(page.at("troupe_step_seconds_sum") == doctest::Approx(0.032));
  CHECK(page.at(R"(troupe_rank_seconds_total{rank="1",phase="wait"})") == doctest::Approx(0.015));
  CHECK(page.at(R"(troupe_rank_seconds_total{rank="0",phase="checkpoint"})") == 0.25);
  CHECK(page.at(R"(troupe_collective_sent_bytes_total{rank="1"})") == 8192);
  CHECK(page.at(R"(troupe_worker_resident_bytes{rank="0"})") == 1 << 20);
  CHECK(page.at(R"(troupe_checkpoints_total{outcome="saved"})") == 2);
  CHECK(page.at(R"(troupe_checkpoints_total{outcome="skipped"})") == 1);
  CHECK(page.at(R"(troupe_checkpoints_total{outcome="failed"})") == 1);
  CHECK(page.at("troupe_checkpoint_saved_bytes_total") == 8192);
  CHECK(page.at("troupe_checkpoint_saved_seconds_total") == 0.75);
  CHECK(page.at("troupe_checkpoint_last_step") == 102);
  CHECK(page.at(R"(troupe_failures_total{code="worker_lost",consequence="false"})") == 1);
  CHECK(page.at(R"(troupe_failures_total{code="worker_lost",consequence="true"})") == 1);
  CHECK(page.at("troupe_generation") == 3);
  CHECK(page.at("troupe_workers") == 2);
  CHECK(page.at("troupe_restarts_total") == 1);
  // Ranks pause together: the longest counts.
  CHECK(page.at("troupe_pauses_total") == 2);
  CHECK(page.at("troupe_pause_seconds_total") == 1.0);
  CHECK(page.at("troupe_warnings_total") == 1);
  CHECK(page.at("troupe_dropped_reports_total") == 3);
  CHECK(page.at("troupe_goodput_ratio") == 0.8);
  CHECK(page.at(R"(troupe_lost_seconds{cause="start_up"})") == 1.5);
  CHECK(page.at("troupe_steps_redone_total") == 1);
}

TEST_CASE("a restart goes back, and steps that are applied again count again") {
  auto run = busy_run();
  generation_record next;
  next.attempt = 2;
  next.workers = 1;
  next.commit_point = {100};
  run.on(actors::run_event{next});
  CHECK(run.figures().step == 100);
  run.on(batch_of(0, 103));
  CHECK(run.figures().step == 103);
  CHECK(run.figures().applied_steps == 5);
  // Rank 1 is gone, and its counters stay.
  CHECK(run.figures().ranks.at(1).resident_bytes == 0);
  CHECK(run.figures().ranks.at(1).sent_bytes == 8192);
  // A later generation of the attempt goes on, also where rank 0 is ahead of what all have applied.
  next.commit_point = {102};
  run.on(actors::run_event{next});
  CHECK(run.figures().step == 103);
}

TEST_CASE("a training function that makes up names has a bounded number of metrics") {
  auto run = run_metrics{"digits"};
  for (std::uint64_t i = 0; i < 5000; ++i) {
    auto batch = batch_of(0, i);
    batch.rows = {{{i}, 0, 0, {{"loss_" + std::to_string(i), 1.0}}}};
    run.on(batch);
  }
  CHECK(run.figures().metrics.size() == run_figures::most_metrics);
}

TEST_CASE("a node's page has its runs, and what their processes use, also of those that have ended") {
  node_metrics metrics;
  std::map<pid_t, process_usage> processes{{1, {1000, 2s}}, {2, {3000, 4s}}};
  const auto sample = [&](pid_t pid) {
    const auto found = processes.find(pid);
    return found == processes.end() ? std::nullopt : std::optional{found->second};
  };
  actors::node_figures figures;
  figures.offered = {8, 2};
  figures.used_gpus = 1;
  figures.runs = {{"digits", {1, 2}, 1, false}};
  figures.workers_started = 5;
  figures.late_heartbeats = 7;
  metrics.look(figures, sample);
  auto page = parse(to_prometheus(metrics));
  CHECK(page.at("troupe_node_cpus") == 8);
  CHECK(page.at("troupe_node_gpus_used") == 1);
  CHECK(page.at("troupe_node_workers_started_total") == 5);
  CHECK(page.at("troupe_node_late_heartbeats_total") == 7);
  CHECK(page.at(R"(troupe_node_workers{run="digits"})") == 2);
  CHECK(page.at(R"(troupe_node_silent_workers{run="digits"})") == 1);
  CHECK(page.at(R"(troupe_node_driver_connected{run="digits"})") == 0);
  CHECK(page.at(R"(troupe_node_workers_resident_bytes{run="digits"})") == 4000);
  CHECK(page.at(R"(troupe_node_workers_cpu_seconds_total{run="digits"})") == 6);
  processes = {{1, {1000, 5s}}};
  metrics.look(figures, sample);
  page = parse(to_prometheus(metrics));
  CHECK(page.at(R"(troupe_node_workers_resident_bytes{run="digits"})") == 1000);
  CHECK(page.at(R"(troupe_node_workers_cpu_seconds_total{run="digits"})") == 9);
  figures.runs.clear();
  metrics.look(figures, sample);
  CHECK(metrics.runs().empty());
}

TEST_CASE("this process uses memory and processor time, and a process that is gone uses nothing") {
  const auto mine = usage_of(::getpid());
  REQUIRE(mine);
  CHECK(mine->resident_bytes > 1'000'000);
  CHECK(mine->cpu.count() >= 0);
  CHECK(resident_bytes() > 1'000'000);
  CHECK_FALSE(usage_of(0x3fffffff));
}

TEST_CASE("GPUs are read from NVML where it is there") {
  CHECK(gpu_reader{"libtroupe-no-such-library.so.1"}.read().empty());
  auto reader = gpu_reader{testing::built("lib/libfake_nvml.so").c_str()};
  const auto gpus = reader.read();
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0] == gpu_figures{0, "NVIDIA \"fake\"", "GPU-a", 0.37, 20'000, 80'000});
  CHECK(gpus[1].utilization == 0);
  prometheus_text out;
  put_gpus(out, gpus);
  CHECK(parse(out.text()).at(R"(troupe_gpu_utilization_ratio{gpu="0"})") == 0.37);
}

TEST_CASE("a server answers its pages, and nothing else") {
  auto server = http_server::open({"127.0.0.1", 0}, {{"/page", [] { return http_answer{503, "text/plain", "here"}; }}});
  REQUIRE(server);
  const auto where = (*server)->address();
  CHECK(where.port != 0);
  CHECK(get(where, "/page") == std::pair{503, std::string{"here"}});
  CHECK(get(where, "/other")->first == 404);
  auto client = httplib::Client{where.host, where.port};
  CHECK(client.Post("/page", "text", "text/plain")->status >= 400);
  const auto large = client.Put("/page", std::string(1'000'000, 'x'), "text/plain");
  CHECK((!large || large->status >= 400));
}

TEST_CASE("a port that is in use is an error, also for a server of this program, and so is an address elsewhere") {
  auto server = http_server::open({"127.0.0.1", 0}, {});
  REQUIRE(server);
  const auto again = http_server::open((*server)->address(), {});
  REQUIRE_FALSE(again);
  CHECK(again.error().code == errc::already_exists);
  CHECK(contains(again.error().message, "in use"));
  // TEST-NET-1 of RFC 5737.
  const auto elsewhere = http_server::open({"192.0.2.1", 0}, {});
  REQUIRE_FALSE(elsewhere);
  CHECK(contains(elsewhere.error().message, "192.0.2.1"));
}

TEST_CASE("peers that connect and say nothing delay others, and do not stop the server") {
  auto server = http_server::open({"127.0.0.1", 0}, {{"/page", [] { return http_answer{200, "text/plain", "here"}; }}});
  REQUIRE(server);
  const auto where = (*server)->address();
  std::vector<collectives::unique_fd> silent;
  for (int i = 0; i < 4; ++i) {
    silent.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    auto address = sockaddr_in{};
    address.sin_family = AF_INET;
    address.sin_port = htons(where.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(silent.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  }
  CHECK(get(where, "/page") == std::pair{200, std::string{"here"}});
}

TEST_CASE("a monitor serves the run's metrics, its health, and whether it trains") {
  trainer_config config;
  config.run.name = "digits";
  CHECK(value_or_throw(open_monitor(config, {})) == nullptr);
  config.monitoring.metrics_address = "127.0.0.1:0";
  std::vector<run_notice> told;
  auto monitor = value_or_throw(open_monitor(config, [&](run_notice x) { told.push_back(std::move(x)); }));
  REQUIRE(told.size() == 1);
  const auto text = told[0].text;
  const auto begin = text.find("http://") + 7;
  const auto where = value_or_throw(parse_endpoint(text.substr(begin, text.find('/', begin) - begin)));
  CHECK(get(where, "/healthz") == std::pair{200, std::string{"ok\n"}});
  CHECK(get(where, "/readyz") == std::pair{503, std::string{"starting\n"}});
  actors::run_pulse pulse;
  pulse.activity = actors::time_use::training;
  monitor->on(pulse);
  CHECK(get(where, "/readyz") == std::pair{200, std::string{"training\n"}});
  monitor->on(batch_of(0, 17));
  auto page = parse(get(where, "/metrics")->second);
  CHECK(page.at("troupe_step") == 17);
  CHECK(page.at("process_resident_memory_bytes") > 1'000'000);
  // The address is in use now.
  config.monitoring.metrics_address = to_string(where);
  const auto other = open_monitor(config, [](const run_notice&) {});
  REQUIRE_FALSE(other);
  CHECK(contains(other.error().message, "--metrics"));
  monitor.reset();
  CHECK_FALSE(get(where, "/healthz"));
}

TEST_CASE("a node's endpoint says whether the node takes workers") {
  node_monitor monitor;
  REQUIRE(monitor.listen({"127.0.0.1", 0}));
  CHECK(get(monitor.address(), "/healthz")->first == 200);
  CHECK(get(monitor.address(), "/readyz")->first == 200);
  actors::node_figures figures;
  figures.runs = {{"digits", {static_cast<std::uint32_t>(::getpid())}, 0, true}};
  figures.is_draining = true;
  monitor.publish(figures);
  CHECK(get(monitor.address(), "/readyz")->first == 503);
  CHECK(parse(get(monitor.address(), "/metrics")->second).at(R"(troupe_node_workers_resident_bytes{run="digits"})") >
        1'000'000);
}
