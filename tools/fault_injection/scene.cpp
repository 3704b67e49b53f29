#include "scene.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <utility>

namespace troupe::chaos {

using namespace std::chrono_literals;
using testing::child_process;

namespace {

/// Steps that a worker's lines may report after a fault has hit it, because the lines were in flight.
constexpr std::uint64_t steps_beyond_doubt = 2;

/// How often a restarted node may find its port in use.
constexpr int most_starts = 20;

const auto listening = std::string{"caf-node: listening on "};

std::string last_lines(const std::string& text, std::size_t number) {
  auto begin = text.size();
  for (; number > 0 && begin != std::string::npos && begin > 0; --number)
    begin = begin < 2 ? 0 : text.rfind('\n', begin - 2) + 1;
  return text.substr(begin);
}

/// The end of a file; after a flood it may have a GB.
std::string end_of(const std::filesystem::path& path) {
  constexpr auto most = std::streamoff{64 << 10};
  auto in = std::ifstream{path, std::ios::binary | std::ios::ate};
  in.seekg(std::max(std::streamoff{in.tellg()} - most, std::streamoff{0}));
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// The state in a directory of /proc.
std::string state_of(const std::filesystem::path& process) {
  auto text = testing::read_file(process / "status");
  auto mark = text.find("State:\t");
  return mark == std::string::npos ? "gone" : text.substr(mark + 7, text.find('\n', mark) - mark - 7);
}

} // namespace

scene::scene(scene_options options, std::vector<std::string>& skipped)
    : options_(std::move(options)), ledger_(run_directory()) {
  std::string reason;
  if (options_.private_links && options_.nodes > 0) {
    network_ = private_network::make(options_.nodes, reason);
    if (!network_)
      skipped.push_back(fmt::format("cut: cannot make network namespaces ({})", reason));
  }
  const auto checkpoints = run_directory() / "checkpoints";
  if (options_.small_disk || options_.freezable_disk)
    std::filesystem::create_directories(checkpoints);
  if (options_.freezable_disk) {
    disk_ = small_disk::on_loop_device(options_.directory / "checkpoints.ext4", checkpoints, reason);
    if (!disk_)
      skipped.push_back(fmt::format("freeze-disk: {}", reason));
  }
  if (options_.small_disk && !disk_) {
    disk_ = small_disk::in_memory(checkpoints, reason);
    if (!disk_)
      skipped.push_back(fmt::format("fill-disk: {}", reason));
  }
  nodes_.resize(options_.nodes);
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    start_node(node, (network_ ? private_network::address_of(node) : "127.0.0.1") + ":0");
    auto& process = *nodes_[node].running.process;
    if (!testing::becomes_true([&] { return process.out().find('\n') != std::string::npos || !process.running(); }) ||
        !process.out().starts_with(listening))
      throw std::runtime_error{fmt::format("a caf-node did not start:\n{}{}", process.out(), process.err())};
    auto line = process.out();
    nodes_[node].address = line.substr(listening.size(), line.find('\n') - listening.size());
  }
  start_driver();
}

scene::~scene() {
  // Thaw before waiting: processes that write to a frozen disk do not end.
  if (disk_)
    disk_->thaw();
  auto mark = (options_.directory / "keys").string();
  // Twice, because a node may have started another worker in between.
  for (auto round = 0; round < 2; ++round)
    for (auto pid : testing::processes_with("TROUPE_KEYS", mark))
      ::kill(pid, SIGKILL);
  driver_.process.reset();
  nodes_.clear();
  testing::becomes_true([&] { return testing::processes_with("TROUPE_KEYS", mark).empty(); }, 5s);
}

scene::logged_process scene::start(std::vector<std::string> prefix, const std::vector<std::string>& argv,
                                   const std::string& output) const {
  if (!prefix.empty())
    prefix.insert(prefix.begin(), "/usr/bin/env");
  prefix.insert(prefix.end(), argv.begin(), argv.end());
  const auto path = options_.directory / output;
  auto log = std::make_unique<log_pipe>(path.string() + ".log-pipe", path.string() + ".err");
  auto environment = std::map<std::string, std::string>{{"TROUPE_KEYS", (options_.directory / "keys").string()}};
  auto what = testing::command{std::move(prefix), std::move(environment), "/dev/null", log->path()};
  return {std::move(log), std::make_unique<child_process>(what, path)};
}

void scene::start_node(std::size_t node, const std::string& listen) {
  auto& place = nodes_[node];
  std::vector<std::string> argv{options_.caf_node.string(), "--listen", listen};
  // No other process can reach the private network, so certificates for its addresses would not add security.
  if (network_) {
    const auto program = std::filesystem::absolute(options_.program.front());
    const auto programs = options_.directory / "programs";
    std::filesystem::create_directories(programs);
    if (auto code = std::error_code{}; !std::filesystem::exists(programs / program.filename(), code))
      std::filesystem::create_symlink(program, programs / program.filename());
    argv.insert(argv.end(), {"--insecure", "--program-dir", programs.string()});
  }
  ++place.starts;
  place.running = start(network_ ? network_->at_node(node) : std::vector<std::string>{}, argv,
                        fmt::format("node-{}.{}", node + 1, place.starts));
}

void scene::start_driver() {
  auto argv = options_.program;
  argv.insert(argv.end(), {"--workers", std::to_string(options_.workers), "--ledger", "--storage",
                           (options_.directory / "runs").string(), "--name", "disturbed"});
  std::string addresses;
  for (const auto& node : nodes_)
    addresses += (addresses.empty() ? "" : ",") + node.address;
  if (!addresses.empty())
    argv.insert(argv.end(), {"--nodes", addresses, "--placement", "spread"});
  if (network_)
    argv.insert(argv.end(), {"--insecure", "--trusted-network"});
  const auto output = ++drivers_ == 1 ? std::string{"driver"} : "driver-" + std::to_string(drivers_);
  driver_ = start(network_ ? network_->at_driver() : std::vector<std::string>{}, argv, output);
}

bool scene::start_driver_again() {
  if (driver_.process->running())
    return false;
  start_driver();
  return true;
}

std::string scene::driver_output() {
  driver_.log->drain();
  return driver_.process->out() + driver_.process->err();
}

pid_t scene::worker_in_uninterruptible_sleep() {
  for (const auto& worker : sound_workers()) {
    auto code = std::error_code{};
    for (const auto& thread : std::filesystem::directory_iterator{fmt::format("/proc/{}/task", worker.pid), code})
      if (state_of(thread.path()).starts_with('D'))
        return worker.pid;
  }
  return 0;
}

void scene::look() {
  for (const auto& entry : ledger_.read()) {
    // After a restart from a checkpoint, a new generation begins at an earlier step.
    if (entry.generation > generation_)
      step_ = entry.step;
    else if (entry.generation == generation_)
      step_ = std::max(step_, entry.step);
    generation_ = std::max(generation_, entry.generation);
    // A joiner has no shards until it is caught up, and does not count before.
    if (entry.first_shard < entry.last_shard) {
      auto& step = steps_[static_cast<pid_t>(entry.pid)];
      step = std::max(step, entry.step);
    }
  }
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    auto& place = nodes_[node];
    if (place.held || place.running.process->running())
      continue;
    if (place.starts == 1 || place.starts > most_starts)
      throw std::runtime_error{
          fmt::format("a caf-node ended unexpectedly:\n{}", last_lines(place.running.process->err(), 20))};
    start_node(node, place.address);
  }
}

std::vector<worker_process> scene::workers() {
  std::vector<worker_process> result;
  for (auto pid : testing::processes_with("TROUPE_KEYS", (options_.directory / "keys").string())) {
    if (!testing::environment_of(pid).contains("TROUPE_WORKER"))
      continue;
    const auto started = testing::start_time_of(pid);
    if (std::exchange(started_.try_emplace(pid, started).first->second, started) != started)
      forget(pid);
    worker_process found{pid, no_node, 0};
    auto parent = testing::parent_of(pid);
    for (std::size_t node = 0; node < nodes_.size(); ++node)
      if (nodes_[node].running.process->pid() == parent)
        found.node = node;
    if (auto known = steps_.find(pid); known != steps_.end())
      found.step = known->second;
    result.push_back(found);
  }
  return result;
}

void scene::forget(pid_t pid) {
  steps_.erase(pid);
  killed_.erase(pid);
  frozen_.erase(pid);
  doubts_.erase(pid);
}

std::vector<worker_process> scene::sound_workers() {
  auto result = workers();
  std::erase_if(result, [this](const worker_process& each) {
    if (each.step == 0 || killed_.contains(each.pid) || frozen_.contains(each.pid) ||
        (each.node != no_node && nodes_[each.node].held))
      return true;
    auto doubted = doubts_.find(each.pid);
    return doubted != doubts_.end() && each.step <= doubted->second + steps_beyond_doubt;
  });
  return result;
}

bool scene::node_is_sound(std::size_t node) const {
  return !nodes_[node].held;
}

void scene::kill(pid_t worker) {
  killed_.insert(worker);
  ::kill(worker, SIGKILL);
}

void scene::doubt(pid_t worker) {
  doubts_[worker] = step_;
}

void scene::doubt_workers_of(std::size_t node) {
  for (const auto& worker : workers())
    if (worker.node == node)
      doubt(worker.pid);
}

void scene::freeze(pid_t worker) {
  frozen_.insert(worker);
  ::kill(worker, SIGSTOP);
}

void scene::revive(pid_t worker) {
  doubt(worker);
  frozen_.erase(worker);
  // The run may have given it up and killed it, and its pid may belong to another process.
  auto ours = workers();
  if (std::ranges::find(ours, worker, &worker_process::pid) != ours.end())
    ::kill(worker, SIGCONT);
}

void scene::kill_node(std::size_t node) {
  nodes_[node].held = true;
  // They end shortly after their node, and until then their parent no longer shows which node they belonged to.
  for (const auto& worker : workers())
    if (worker.node == node)
      killed_.insert(worker.pid);
  nodes_[node].running.process->signal(SIGKILL);
  (void)nodes_[node].running.process->wait();
}

void scene::start_node_again(std::size_t node) {
  nodes_[node].held = false;
  start_node(node, nodes_[node].address);
}

void scene::freeze_node(std::size_t node) {
  nodes_[node].held = true;
  nodes_[node].running.process->signal(SIGSTOP);
}

void scene::revive_node(std::size_t node) {
  doubt_workers_of(node);
  nodes_[node].held = false;
  nodes_[node].running.process->signal(SIGCONT);
}

void scene::cut(std::size_t node) {
  nodes_[node].held = true;
  network_->cut(node);
}

void scene::mend(std::size_t node) {
  doubt_workers_of(node);
  nodes_[node].held = false;
  network_->mend(node);
}

void scene::cut_control(std::size_t node) {
  nodes_[node].held = true;
  network_->cut_control(node);
}

void scene::mend_control(std::size_t node) {
  doubt_workers_of(node);
  nodes_[node].held = false;
  network_->mend_control(node);
}

void scene::cut_data(std::size_t node) {
  // The run continues on one side, and gives up the other.
  for (auto& each : nodes_)
    each.held = true;
  network_->cut_data(node);
}

void scene::mend_data(std::size_t node) {
  for (const auto& worker : workers())
    doubt(worker.pid);
  for (auto& each : nodes_)
    each.held = false;
  network_->mend_data(node);
}

std::string scene::interrogate() {
  auto result = fmt::format("last known step: {}, generation {}\n", step_, generation_);
  for (const auto& worker : workers()) {
    result += fmt::format("worker process {}{}, step {}: {}\n", worker.pid,
                          worker.node == no_node ? std::string{} : fmt::format(", node {}", worker.node + 1),
                          worker.step, state_of(fmt::format("/proc/{}", worker.pid)));
    ::kill(worker.pid, SIGUSR1);
  }
  // Give the answers time to reach the logs; their end cannot be detected.
  std::this_thread::sleep_for(1s);
  auto show = [&result](const std::string& name, const std::string& text) {
    if (!text.empty())
      result += fmt::format("--- {}\n{}", name, last_lines(text, 12));
  };
  show("driver", driver_output());
  for (std::size_t node = 0; node < nodes_.size(); ++node)
    show(fmt::format("node {} ({})", node + 1, state_of(fmt::format("/proc/{}", nodes_[node].running.process->pid()))),
         nodes_[node].running.process->err());
  auto code = std::error_code{};
  for (const auto& log : std::filesystem::directory_iterator{run_directory() / "logs", code})
    show(log.path().filename().string(), end_of(log.path()));
  return result;
}

} // namespace troupe::chaos
