#include "submit.hpp"

#include "checkpoint/commands.hpp"
#include "run/over_ssh.hpp"
#include "submit/engines.hpp"
#include "submit/remote.hpp"

#include <command_line.hpp>

#include <troupe/runtime/keys.hpp>
#include <troupe/runtime/nodes.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/shell_words.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::tool {

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// A server of NFS keeps the locks of a host that has died for a lease, which is 90 s by default.
constexpr auto lock_wait = 180s;

enum class engine : std::uint8_t { systemd, slurm, kubernetes };

struct submit_arguments {
  std::string engine_name;
  engine on = engine::systemd;
  std::string host;
  /// By which name whoever has sent this here calls this host.
  std::string seen_as;
  bool only_asks = false;
  bool is_dry = false;
  std::vector<std::string> with;
  fs::path directory = ".";
  std::map<std::string, std::string> environment;
  trainer_config run;
  double wait_seconds = 0;
  std::string resume = "auto";
  std::vector<std::string> sbatch;
  kubernetes_options kubernetes;
  std::string program;
  std::vector<std::string> arguments;
};

constexpr std::string_view word_for(engine on) {
  return on == engine::systemd ? "systemd" : on == engine::slurm ? "slurm" : "kubernetes";
}

int complain(const error& reason) {
  fmt::print(stderr, "troupe submit: {}\n", reason.message);
  return reason.code == errc::invalid_argument || reason.code == errc::not_found ? exit_trouble : exit_found;
}

/// The absolute path of a program that is named by a path, or found in PATH.
expected<std::string> find_program(const std::string& given) {
  auto candidates = std::vector<fs::path>{given};
  if (given.find('/') == std::string::npos) {
    candidates.clear();
    const auto* path = std::getenv("PATH");
    auto rest = std::string{path == nullptr ? "" : path};
    for (std::size_t at = 0; !rest.empty(); rest.erase(0, at == std::string::npos ? rest.size() : at + 1)) {
      at = rest.find(':');
      candidates.push_back(fs::path{rest.substr(0, at)} / given);
    }
  }
  for (const auto& each : candidates) {
    auto code = std::error_code{};
    if (fs::is_regular_file(each, code) && ::access(each.c_str(), X_OK) == 0)
      return fs::absolute(each, code).lexically_normal().string();
  }
  return fail(errc::not_found, given.find('/') == std::string::npos
                                   ? fmt::format("there is no program {} in PATH: give its path", given)
                                   : fmt::format("{} is no program that can be executed", given));
}

bool is_script(const std::string& program) {
  auto in = std::ifstream{program, std::ios::binary};
  return in.get() == '#' && in.get() == '!';
}

/// Options that an engine or another host has no use for would be ignored.
expected<void> refuse_useless(const submit_arguments& given) {
  const auto& cluster = given.run.cluster;
  const auto names = !cluster.nodes.empty() || cluster.discover.is_set();
  const std::vector<std::pair<bool, const char*>> useless{
      {given.on != engine::systemd && names, "--nodes and --hosts are for systemd: the engine gives the job its nodes"},
      {given.on != engine::systemd && (cluster.insecure || !cluster.keys.empty()),
       "--keys and --insecure are for systemd: the job has keys of its own"},
      {given.on != engine::slurm && !given.sbatch.empty(), "--sbatch is for Slurm"},
      {given.on == engine::kubernetes && !given.host.empty(), "--host: a manifest is printed here"},
      {given.on == engine::kubernetes && given.directory != ".", "--directory: in a pod the program runs in /runs"},
      {!given.host.empty() && given.directory != ".", "--directory: on another host the program runs in ~/troupe/NAME"},
      {given.host.empty() && !given.with.empty(), "--with is for --host: on this host the files are here already"},
  };
  for (const auto& [is_useless, why] : useless)
    if (is_useless)
      return fail(errc::invalid_argument, why);
  return {};
}

bool names_nodes(const submit_arguments& given) {
  for (const auto* option : {"--nodes", "--hosts", "--discover"})
    if (!option_value(given.arguments, option).empty())
      return true;
  return false;
}

/// What the job is for every engine.
expected<submission> describe(const submit_arguments& given) {
  submission result;
  const auto own = option_value(given.arguments, "--name");
  if (!own.empty() && !given.run.run.name.empty() && own != given.run.run.name)
    return fail(errc::invalid_argument, fmt::format("--name {}, and the program's --name is {}: a job and its run have "
                                                    "one name",
                                                    given.run.run.name, own));
  result.name = given.run.run.name.empty() ? default_job_name(given.program, given.arguments) : given.run.run.name;
  auto named = given.run;
  named.run.name = result.name;
  TROUPE_TRY(validate(named));
  result.arguments = given.arguments;
  result.environment = given.environment;
  auto& job = result.job;
  job.name = result.name;
  job.insecure = given.run.cluster.insecure;
  job.mirror = given.run.checkpoint.mirror.to;
  job.time_limit = given.run.run.time_limit;
  job.wait_for_resources = given.run.scaling.wait_for_resources;
  job.lock_wait = lock_wait;
  job.resume = given.resume == "restart"    ? resume_mode::restart
               : given.resume == "never"    ? resume_mode::never
               : given.resume == "required" ? resume_mode::required
                                            : resume_mode::automatic;
  job.job.engine = word_for(given.on);
  job.job.submission = serialization::random_hex(8);
  return result;
}

/// What it is on this machine, or on hosts like it.
expected<void> complete_here(submission& job, const submit_arguments& given) {
  auto code = std::error_code{};
  job.directory = fs::canonical(given.directory, code).string();
  if (code)
    return fail(errc::not_found, fmt::format("--directory {}: {}", given.directory.string(), code.message()));
  // A dry run for another host has copied nothing.
  job.program = given.program;
  if (!given.is_dry || given.seen_as.empty()) {
    TROUPE_TRY(job.program, find_program(given.program));
  }
  for (const auto* name : {"PATH", "LD_LIBRARY_PATH", "XDG_CONFIG_HOME"})
    if (const auto* value = std::getenv(name))
      job.environment.emplace(name, value);
  const auto& keys = given.run.cluster.keys;
  if (!keys.empty())
    job.job.keys = fs::absolute(keys, code);
  else if (const auto* own = std::getenv("TROUPE_KEYS"))
    job.environment.emplace("TROUPE_KEYS", own);
  return {};
}

/// The nodes that are named to `submit`, in its options or in the environment. False if none are.
expected<bool> hand_on_nodes(submission& job, cluster_config cluster) {
  TROUPE_TRY(runtime::complete_nodes(cluster));
  auto code = std::error_code{};
  switch (cluster.discover.what) {
  case node_source::kind::none:
    job.job.nodes = fmt::format("{}", fmt::join(cluster.nodes, ","));
    return !cluster.nodes.empty();
  case node_source::kind::dns_name:
    job.job.nodes = "dns:" + cluster.discover.where;
    return true;
  case node_source::kind::hosts_file:
    job.environment["TROUPE_HOSTS"] = fs::absolute(cluster.discover.where, code).string();
    return true;
  case node_source::kind::script:
    break;
  }
  return fail(errc::invalid_argument, "--discover is an option of the program: give it after the program's name");
}

expected<submitted> submit_to_systemd(submission job, const submit_arguments& given) {
  const auto manager = own_systemd_manager();
  job.job.job.engine = manager.is_user ? "systemd-user" : "systemd";
  job.job.job.id = unit_of(job.name);
  TROUPE_TRY(const auto has_nodes, hand_on_nodes(job, given.run.cluster));
  std::optional<companion_node> node;
  if (!has_nodes && !names_nodes(given)) {
    if (job.job.insecure)
      return fail(errc::invalid_argument, "--insecure is for nodes that run with it: name them (--nodes, --hosts)");
    TROUPE_TRY(node, make_companion(job.name));
    job.job.nodes = fmt::format("127.0.0.1:{}", node->port);
  }
  const auto units = systemd_units(job, manager, node);
  if (given.is_dry) {
    for (const auto& each : units)
      fmt::print("# {}/{}\n{}\n", manager.directory, each.name, each.text);
    return submitted{};
  }
  if (is_script(job.program))
    fmt::print(stderr, "warning: {} is a script: it has to exec the driver, which then gets the signal to stop\n",
               job.program);
  TROUPE_TRY(const auto lock, submission_lock::take());
  TROUPE_TRY(refuse_running_unit(job.name, manager));
  return start_units(job.name, units, manager);
}

expected<submitted> submit_to_slurm(const submission& job, const submit_arguments& given) {
  for (const auto& each : given.sbatch) {
    if (!each.starts_with('-') || each.find('\n') != std::string::npos)
      return fail(errc::invalid_argument, fmt::format("--sbatch {}: that is no option of sbatch", each));
    for (const auto* ours : {"--job-name", "-J", "--array", "-a", "--wrap"})
      if (each.starts_with(ours))
        return fail(errc::invalid_argument,
                    fmt::format("--sbatch {}: one name is one job with one driver (--name gives the name)", each));
  }
  if (is_script(job.program))
    return fail(
        errc::invalid_argument,
        fmt::format("{} is a script, and the nodes of the job start the program itself: submit that", job.program));
  const auto script = slurm_script(job, given.sbatch);
  if (given.is_dry) {
    fmt::print("{}", script);
    return submitted{};
  }
  TROUPE_TRY(const auto lock, submission_lock::take());
  TROUPE_TRY(refuse_queued_job(job.name));
  auto code = std::error_code{};
  // Where Slurm puts what the job writes.
  fs::current_path(job.directory, code);
  return queue_script(script);
}

expected<submitted> print_for_kubernetes(submission job, const submit_arguments& given) {
  if (given.kubernetes.image.empty())
    return fail(errc::invalid_argument,
                "--image: which image has the program? tools/package --image makes one of Troupe's");
  TROUPE_TRY(validate_kubernetes_name("--name", job.name));
  TROUPE_TRY(validate_kubernetes_name("--namespace", given.kubernetes.name_space));
  TROUPE_TRY(validate_kubernetes_name("--secret", given.kubernetes.secret));
  job.program = given.program;
  job.directory = "/runs";
  job.job.job.id = given.kubernetes.name_space + "/" + job.name;
  if (!names_nodes(given))
    job.job.nodes = fmt::format("dns:_node._tcp.{}-node", job.name);
  TROUPE_TRY(validate(job));
  fmt::print("{}", kubernetes_manifest(job, given.kubernetes));
  return submitted{};
}

void report(const submission& job, const submit_arguments& given, const submitted& done) {
  fmt::print("{} was submitted to {}\n", job.name, done.where);
  auto storage = option_value(given.arguments, "--storage");
  const auto run = (fs::path{job.directory} / (storage.empty() ? "runs" : storage) / job.name).string();
  const auto seen = given.seen_as.empty() ? std::string{} : " --host " + given.seen_as;
  auto commands = std::vector<engine_command>{
      {fmt::format("troupe watch {}{}", shell_quoted(run), seen), "follow the run"},
      {fmt::format("troupe stop {}{}", shell_quoted(run), seen), "end run and job, with a checkpoint"}};
  commands.insert(commands.end(), done.commands.begin(), done.commands.end());
  std::size_t width = 0;
  for (const auto& each : commands)
    width = std::max(width, each.words.size());
  for (const auto& each : commands)
    fmt::print("  {:<{}}   {}\n", each.words, width, each.purpose);
  for (const auto& each : done.warnings)
    fmt::print(stderr, "warning: {}\n", each);
}

expected<void> submit_here(const submit_arguments& given) {
  TROUPE_TRY(auto job, describe(given));
  if (given.only_asks)
    return given.on == engine::systemd ? refuse_running_unit(job.name, own_systemd_manager())
                                       : refuse_queued_job(job.name);
  if (given.on == engine::kubernetes) {
    TROUPE_TRY(std::ignore, print_for_kubernetes(std::move(job), given));
    return {};
  }
  TROUPE_TRY(complete_here(job, given));
  TROUPE_TRY(validate(job));
  TROUPE_TRY(const auto done,
             given.on == engine::systemd ? submit_to_systemd(job, given) : submit_to_slurm(job, given));
  if (!given.is_dry)
    report(job, given, done);
  return {};
}

/// The options for `troupe submit` there, without the program.
std::vector<std::string> options_there(const submit_arguments& given, const std::string& name) {
  auto result = std::vector<std::string>{"submit", "--on", std::string{word_for(given.on)}, "--name", name};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty())
      result.insert(result.end(), {option, value});
  };
  const auto& run = given.run;
  add("--nodes", run.cluster.discover.what == node_source::kind::dns_name
                     ? "dns:" + run.cluster.discover.where
                     : fmt::format("{}", fmt::join(run.cluster.nodes, ",")));
  if (run.cluster.discover.what == node_source::kind::hosts_file)
    add("--hosts", run.cluster.discover.where);
  add("--keys", run.cluster.keys.string());
  if (run.cluster.insecure)
    result.emplace_back("--insecure");
  add("--mirror", run.checkpoint.mirror.to);
  if (run.run.time_limit.count() > 0)
    add("--time-limit", std::to_string(run.run.time_limit.count() / 1000));
  if (given.wait_seconds > 0)
    add("--wait", fmt::format("{}", given.wait_seconds));
  add("--resume", given.resume);
  for (const auto& each : given.sbatch)
    result.push_back("--sbatch=" + each);
  for (const auto& [variable, value] : given.environment)
    add("--env", variable + "=" + value);
  if (given.is_dry)
    result.emplace_back("--dry-run");
  return result;
}

expected<int> submit_there(const submit_arguments& given) {
  TROUPE_TRY(const auto job, describe(given));
  TROUPE_TRY(const auto files, files_to_send(given.program, given.with));
  auto options = options_there(given, job.name);
  auto question = options;
  question.insert(question.end(), {"--only-ask", given.program});
  // Nothing is replaced from under a job.
  if (!given.is_dry) {
    if (const auto code = execute_over_ssh(given.host, question); code != 0)
      return code;
    TROUPE_TRY(send_files(given.host, job.name, files));
  }
  options.insert(options.end(), {"--seen-as", given.host});
  if (!given.is_dry)
    options.insert(options.end(), {"--directory", remote_directory(job.name)});
  options.push_back(files.empty() || !files.front().is_program
                        ? given.program
                        : remote_directory(job.name) + "/" + files.front().there);
  options.insert(options.end(), given.arguments.begin(), given.arguments.end());
  return execute_over_ssh(given.host, options);
}

int submit(const submit_arguments& given) {
  if (const auto useless = refuse_useless(given); !useless)
    return complain(useless.error());
  if (!given.host.empty()) {
    const auto code = submit_there(given);
    return code ? *code : complain(code.error());
  }
  const auto done = submit_here(given);
  return done ? exit_good : complain(done.error());
}

} // namespace

void add_submit(CLI::App& app, command& chosen) {
  auto given = std::make_shared<submit_arguments>();
  auto& x = *given;
  auto* added =
      app.add_subcommand("submit", "Hand a program to systemd, Slurm or Kubernetes, which starts it, and starts it "
                                   "again until it has ended: submit --on ENGINE [OPTIONS] PROGRAM [ARGUMENT...]");
  added->add_option("--on", x.engine_name, "The engine")
      ->required()
      ->check(CLI::IsMember({"systemd", "slurm", "kubernetes"}))
      ->type_name("ENGINE");
  added->add_option("--name", x.run.run.name,
                    "The job's and its run's name (default: the program's --name, else its own). One name is one job; "
                    "the same name again goes on with its run");
  added->add_flag("--dry-run", x.is_dry, "Print unit, script or manifest, and do nothing");
  added->add_option("--host", x.host,
                    "Do it on this host, over ssh, as USER@HOST or a name in ~/.ssh/config: in ~/troupe/NAME there, "
                    "where a PROGRAM with a '/' is copied first. systemd and Slurm only");
  added->add_option("--with", x.with, "A file below this directory that --host copies as well; may be repeated")
      ->allow_extra_args(false)
      ->type_name("FILE");
  added->add_option("--directory", x.directory, "Where the program runs (default: this directory)");
  apps::add_named_values(
      *added, "--env", [given](const std::string& name, const std::string& value) { given->environment[name] = value; },
      "A variable for the program")
      ->allow_extra_args(false);
  apps::add_node_names(*added, x.run.cluster);
  added->get_option("--nodes")->description(
      "HOST:PORT of caf-nodes, separated by commas, or dns:NAME. Without nodes, systemd runs one beside the program");
  added->remove_option(added->get_option("--discover"));
  added->add_option("--keys", x.run.cluster.keys,
                    "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys)");
  added->add_flag("--insecure", x.run.cluster.insecure, "Connect without TLS, to nodes that run with --insecure");
  added
      ->add_option("--mirror", x.run.checkpoint.mirror.to,
                   "Also copy checkpoints and results to this directory, or to rclone:REMOTE:PATH")
      ->type_name("PLACE");
  apps::add_time_limit(*added, x.run.run);
  added->add_option("--wait", x.wait_seconds, "Seconds to wait at the start for resources that other runs have leased")
      ->check(CLI::Range(0.0, 1e9));
  added
      ->add_option("--resume", x.resume,
                   "What the job's first start does with a run of this name: auto, restart, never or required. "
                   "Started again, it always goes on")
      ->check(CLI::IsMember({"auto", "restart", "never", "required"}))
      ->capture_default_str();
  added->add_option("--sbatch", x.sbatch, "An option for sbatch, as in --sbatch=--nodes=4 --sbatch=--time=12:00:00")
      ->allow_extra_args(false)
      ->type_name("OPTION");
  auto& k = x.kubernetes;
  added->add_option("--image", k.image, "Kubernetes: the image that has the program")->group("Kubernetes");
  added->add_option("--namespace", k.name_space, "The namespace")->capture_default_str()->group("Kubernetes");
  added->add_option("--replicas", k.nodes, "caf-nodes")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->group("Kubernetes");
  added->add_option("--cpus", k.cpus, "CPUs of each")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str()
      ->group("Kubernetes");
  added->add_option("--memory", k.memory, "Memory of each")->capture_default_str()->group("Kubernetes");
  added->add_option("--gpus", k.gpus, "GPUs of each")->capture_default_str()->group("Kubernetes");
  added->add_option("--disk", k.storage, "Size of the claim for the run's files")
      ->capture_default_str()
      ->group("Kubernetes");
  added->add_option("--secret", k.secret, "The secret with the certificates")
      ->capture_default_str()
      ->group("Kubernetes");
  added->add_option("--seen-as", x.seen_as)->group("");
  added->add_flag("--only-ask", x.only_asks)->group("");
  // From the program's name on everything is the program's.
  added->prefix_command();
  added->footer("Exit codes: 0 submitted, 1 the engine or a job of this name refuses it, 2 wrong usage.");
  added->callback([added, given, &chosen] {
    auto words = added->remaining();
    if (!words.empty() && words.front() == "--")
      words.erase(words.begin());
    if (words.empty())
      throw CLI::ValidationError{"PROGRAM", "which program? troupe submit --on ENGINE [OPTIONS] PROGRAM [ARGUMENT...]"};
    if (words.front().starts_with('-'))
      throw CLI::ValidationError{words.front(),
                                 "there is no such option of submit; those of the program follow its name"};
    given->on = given->engine_name == "systemd" ? engine::systemd
                : given->engine_name == "slurm" ? engine::slurm
                                                : engine::kubernetes;
    given->run.scaling.wait_for_resources =
        std::chrono::milliseconds{static_cast<std::int64_t>(given->wait_seconds * 1000)};
    given->program = words.front();
    given->arguments.assign(words.begin() + 1, words.end());
    chosen = [given] { return submit(*given); };
  });
}

} // namespace troupe::tool
