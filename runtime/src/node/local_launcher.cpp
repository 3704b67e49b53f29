#include "node/local_launcher.hpp"

#include "process/debugger.hpp"
#include "process/own_environment.hpp"

#include <troupe/runtime/descriptor_broker.hpp>
#include <troupe/runtime/node_host.hpp>
#include <troupe/runtime/process_sample.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

std::vector<std::string> make_environment(const std::map<std::string, std::string>& additions,
                                          const std::vector<std::string>& devices) {
  auto variables = own_environment();
  for (const auto* name : thread_variables)
    variables.emplace(name, "1");
  // cuBLAS is deterministic only with a fixed workspace.
  if (!devices.empty())
    variables.emplace("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
  for (const auto& [name, value] : additions)
    variables[name] = value;
  for (std::size_t i = 0; i < devices.size(); ++i)
    variables["CUDA_VISIBLE_DEVICES"] = (i == 0 ? "" : variables["CUDA_VISIBLE_DEVICES"] + ",") + devices[i];
  variables.insert_or_assign(worker_variable, std::string{"1"});
  return to_texts(variables);
}

worker_ended describe_end(const run_id& run, worker_id worker, const exit_report& report) {
  worker_ended result;
  result.run = run;
  result.worker = worker;
  result.exit_status = report.exit_code ? *report.exit_code : 128 + report.signal.value_or(0);
  result.description = report.describe();
  result.out_of_memory = !report.evidence.empty();
  if (auto library = missing_library(report.last_lines))
    result.description +=
        fmt::format("; host {} lacks the shared library {}: install the package that contains it there",
                    local_host_name(), *library);
  result.last_lines = report.last_lines;
  result.committed = committed_step_in(report.name);
  return result;
}

/// The most descriptors that a node may need: four for each worker, and those that its workers share memory with.
constexpr rlim_t enough_descriptors = 65'536;

/// The usual limit of 1,024 is for programs that call select(2), and too low for a hundred workers.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= enough_descriptors)
    return;
  limit.rlim_cur = std::min(limit.rlim_max, enough_descriptors);
  // A shortage is reported by the call that lacks a descriptor.
  std::ignore = ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// What processes must have in common, so that one can take the other's place.
struct process_kind {
  std::string group;
  program_identity program;
  std::vector<std::string> arguments;
  std::vector<std::string> devices;

  bool operator==(const process_kind&) const = default;
};

/// A process that may be the worker of several runs, one after the other.
struct reusable_process {
  process_kind kind;
  /// Of its last worker.
  std::string rank;
  bool is_idle = false;
};

/// The worker processes of one node. The supervisor's callbacks run on their own thread.
class local_launcher : public actors::process_launcher {
 public:
  local_launcher(std::shared_ptr<const program_finder> finder, std::shared_ptr<const worker_entry> entry,
                 actors::launcher_events events)
      : finder_(std::move(finder)), entry_(std::move(entry)), events_(std::move(events)) {}

  expected<void> init() {
    raise_descriptor_limit();
    TROUPE_TRY(auto descriptors, descriptor_broker::make());
    descriptors_.emplace(std::move(descriptors));
    auto supervisor = process_supervisor::make(
        {[this](pid_t pid, output_stream, std::string_view line) { output(pid, line); },
         [this](const exit_report& report) { ended(report); }, [this](pid_t pid) { released(pid); }});
    if (!supervisor)
      return fail(std::move(supervisor.error()));
    supervisor_.emplace(std::move(*supervisor));
    return {};
  }

  std::function<expected<actors::found_program>()> search(const open_run& request) override {
    return
        [finder = finder_, path = request.program_path, build = request.build_id]() -> expected<actors::found_program> {
          TROUPE_TRY(auto program, finder->find(path, build));
          auto kept = std::make_shared<const program_file>(std::move(program));
          return actors::found_program{kept->identity().path, kept};
        };
  }

  void open(const run_id& run, const actors::found_program& program) override {
    programs_.insert_or_assign(run, std::static_pointer_cast<const program_file>(program.handle));
  }

  void start(const actors::launch_request& request) override {
    // Stays open until the process executes it, also if the run is closed before.
    auto program = programs_.at(request.run);
    process_spec spec;
    spec.program_fd = program->fd();
    spec.program = program->identity().path;
    spec.argv = {program->identity().path};
    spec.argv.insert(spec.argv.end(), request.arguments.begin(), request.arguments.end());
    spec.env = make_environment(request.environment, request.devices);
    auto bootstrap =
        worker_bootstrap{request.run, request.worker, request.secret, entry_->node(), entry_->keys(), request.devices};
    // A debugger is attached to a process that starts.
    bootstrap.is_reusable = !request.group.empty() && !request.environment.contains(debugger_variable);
    spec.is_reusable = bootstrap.is_reusable;
    spec.bootstrap = to_text(bootstrap);
    auto who = owner{request.run, request.worker};
    auto made = descriptors_->add(request.run, request.worker);
    if (!made)
      return events_.started({who.run, who.worker, fail(std::move(made.error()))});
    auto socket = std::make_shared<const collectives::unique_fd>(std::move(*made));
    spec.descriptor_socket = socket->get();
    auto reusable = std::optional<reusable_process>{};
    if (bootstrap.is_reusable) {
      reusable = {{request.group, program->identity(), request.arguments, request.devices}, rank_in(request), false};
      bootstrap.is_reused = true;
      bootstrap.environment = request.environment;
      if (reuse(*reusable, to_text(bootstrap), *socket, who))
        return;
    }
    supervisor_->start_soon(std::move(spec), [this, who, program, socket, reusable](const expected<pid_t>& pid) {
      if (pid)
        add(*pid, who, reusable);
      else
        descriptors_->remove(who.run, who.worker);
      events_.started(
          {who.run, who.worker, pid ? expected<std::uint32_t>{static_cast<std::uint32_t>(*pid)} : fail(pid.error())});
    });
  }

  void kill(const run_id& run) override {
    descriptors_->end_run(run);
    for (const auto& [pid, owner] : snapshot())
      if (owner.run == run)
        supervisor_->kill(pid, SIGKILL);
  }

  void kill(const run_id& run, worker_id worker) override {
    if (auto pid = find(run, worker))
      supervisor_->kill(*pid, SIGKILL);
  }

  expected<process_sample> sample(const run_id& run, worker_id worker) override {
    auto pid = find(run, worker);
    return pid ? sample_process(*pid) : process_sample{};
  }

  expected<process_sample> sample_node() override { return sample_process(::getpid()); }

  void close(const run_id& run) override {
    descriptors_->end_run(run);
    programs_.erase(run);
  }

  void end_group(const std::string& group) override {
    auto lock = std::lock_guard{mutex_};
    for (auto each = reusable_.begin(); each != reusable_.end();)
      each = each->second.kind.group == group ? end_reuse(each) : std::next(each);
  }

  std::map<std::string, std::size_t> end_waiting_but(const std::string& group) override {
    auto lock = std::lock_guard{mutex_};
    std::map<std::string, std::size_t> result;
    for (auto each = reusable_.begin(); each != reusable_.end();) {
      if (!each->second.is_idle || each->second.kind.group == group) {
        ++each;
        continue;
      }
      ++result[each->second.kind.group];
      each = end_reuse(each);
    }
    return result;
  }

 private:
  struct owner {
    run_id run;
    worker_id worker;
  };

  std::optional<pid_t> find(const run_id& run, worker_id worker) {
    for (const auto& [pid, owner] : snapshot())
      if (owner.run == run && owner.worker == worker)
        return pid;
    return std::nullopt;
  }

  std::map<pid_t, owner> snapshot() {
    auto lock = std::lock_guard{mutex_};
    return owners_;
  }

  void add(pid_t pid, const owner& who, const std::optional<reusable_process>& reusable) {
    auto lock = std::lock_guard{mutex_};
    owners_.emplace(pid, who);
    if (reusable)
      reusable_.emplace(pid, *reusable);
  }

  static std::string rank_in(const actors::launch_request& request) {
    const auto found = request.environment.find("RANK");
    return found == request.environment.end() ? std::string{} : found->second;
  }

  /// Makes an idle process this worker, if there is one of its kind; that of the same rank, if there is one.
  bool reuse(const reusable_process& wanted, const std::string& bootstrap, const collectives::unique_fd& socket,
             const owner& who) {
    // Held to the end: the process may die at once, and its end comes after its start.
    auto lock = std::lock_guard{mutex_};
    for (;;) {
      auto best = reusable_.end();
      for (auto each = reusable_.begin(); each != reusable_.end(); ++each)
        if (each->second.is_idle && each->second.kind == wanted.kind &&
            (best == reusable_.end() || each->second.rank == wanted.rank))
          best = each;
      if (best == reusable_.end())
        return false;
      const auto pid = best->first;
      if (!supervisor_->reuse(pid, bootstrap, socket.get())) {
        reusable_.erase(best);
        continue;
      }
      best->second = wanted;
      owners_.emplace(pid, who);
      events_.started({who.run, who.worker, static_cast<std::uint32_t>(pid)});
      return true;
    }
  }

  /// No other run gets this process. With the lock.
  std::map<pid_t, reusable_process>::iterator end_reuse(std::map<pid_t, reusable_process>::iterator which) {
    if (which->second.is_idle)
      supervisor_->kill(which->first, SIGKILL);
    return reusable_.erase(which);
  }

  /// For its node, a worker whose process is idle has ended.
  void released(pid_t pid) {
    auto lock = std::lock_guard{mutex_};
    auto found = owners_.extract(pid);
    if (found.empty())
      return;
    // Its group may have ended meanwhile.
    if (const auto known = reusable_.find(pid); known != reusable_.end())
      known->second.is_idle = true;
    else
      supervisor_->kill(pid, SIGKILL);
    worker_ended result;
    result.run = found.mapped().run;
    result.worker = found.mapped().worker;
    result.description = "exit code 0";
    events_.ended(std::move(result));
  }

  void output(pid_t pid, std::string_view line) {
    auto lock = std::lock_guard{mutex_};
    if (auto found = owners_.find(pid); found != owners_.end())
      events_.output({found->second.run, found->second.worker, 0, {std::string{line}}});
  }

  void ended(const exit_report& report) {
    auto lock = std::lock_guard{mutex_};
    reusable_.erase(report.pid);
    if (auto found = owners_.extract(report.pid); !found.empty())
      events_.ended(describe_end(found.mapped().run, found.mapped().worker, report));
  }

  std::shared_ptr<const program_finder> finder_;
  std::shared_ptr<const worker_entry> entry_;
  actors::launcher_events events_;
  std::map<run_id, std::shared_ptr<const program_file>> programs_;
  std::mutex mutex_;
  std::map<pid_t, owner> owners_;
  std::map<pid_t, reusable_process> reusable_;
  std::optional<descriptor_broker> descriptors_;
  /// Last, so that its thread ends before anything it uses is destroyed.
  std::optional<process_supervisor> supervisor_;
};

} // namespace

std::string to_text(const worker_bootstrap& bootstrap) {
  nlohmann::json out{{"run", bootstrap.run.value},       {"worker", bootstrap.worker.value},
                     {"secret", bootstrap.secret},       {"node", to_string(bootstrap.node)},
                     {"devices", bootstrap.devices},     {"is_reusable", bootstrap.is_reusable},
                     {"is_reused", bootstrap.is_reused}, {"environment", bootstrap.environment}};
  if (bootstrap.keys)
    out["keys"] = {{"certificate", bootstrap.keys->certificate.string()},
                   {"key", bootstrap.keys->key.string()},
                   {"ca", bootstrap.keys->ca.string()}};
  return out.dump();
}

expected<worker_bootstrap> parse_bootstrap(const std::string& text) {
  auto in = nlohmann::json::parse(text, nullptr, false);
  auto wrong = [] {
    return fail(errc::invalid_argument, "the worker's bootstrap was not written by a node of this version");
  };
  if (!in.is_object() || !in.contains("node") || !in["node"].is_string())
    return wrong();
  auto node = parse_endpoint(in["node"]);
  if (!node)
    return wrong();
  worker_bootstrap result;
  result.run.value = in.value("run", "");
  result.worker.value = in.value("worker", 0u);
  result.secret = in.value("secret", "");
  result.node = *node;
  result.devices = in.value("devices", std::vector<std::string>{});
  result.is_reusable = in.value("is_reusable", false);
  result.is_reused = in.value("is_reused", false);
  result.environment = in.value("environment", std::map<std::string, std::string>{});
  if (in.contains("keys"))
    result.keys =
        tls_files{in["keys"].value("certificate", ""), in["keys"].value("key", ""), in["keys"].value("ca", "")};
  return result;
}

actors::launcher_factory make_local_launcher(std::shared_ptr<const program_finder> finder,
                                             std::shared_ptr<const worker_entry> entry) {
  return [finder = std::move(finder),
          entry = std::move(entry)](actors::launcher_events events) -> std::unique_ptr<actors::process_launcher> {
    auto result = std::make_unique<local_launcher>(finder, entry, std::move(events));
    value_or_throw(result->init());
    return result;
  };
}

} // namespace troupe::runtime
