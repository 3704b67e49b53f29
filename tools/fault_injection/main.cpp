#include "campaign.hpp"
#include "pauses.hpp"
#include "scene.hpp"
#include "schedule.hpp"
#include "shell.hpp"
#include "verdict.hpp"

#include <charlm/corpus.hpp>
#include <command_line.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace fs = std::filesystem;
using namespace troupe::chaos;
using namespace std::chrono_literals;
using troupe::testing::child_process;

namespace {

struct options {
  std::string program = "charlm --batch 1024 --embedding 16 --hidden 64 --evaluate-every 1000 --checkpoint-every 200 "
                        "--sample 0";
  std::uint32_t workers = 4;
  std::size_t nodes = 2;
  std::size_t faults = 24;
  double minutes = 0;
  double mean_interval_ms = 1000;
  double hung_after_ms = 60'000;
  std::string kinds = "kill=4,kill-two=2,freeze=2,kill-node,freeze-node,cut,fill-disk,freeze-all-nodes,freeze-driver,"
                      "reset,freeze-all,cut-control,cut-data,restart-driver,freeze-disk,flood,cpu-storm,unread-log";
  std::optional<std::uint64_t> seed;
  fs::path directory;
  fs::path programs;
  bool allow_all = false;
  bool keep = false;
};

std::string help_text() {
  auto text = std::string{
      "Injects faults into a training run and checks that its result equals that of an undisturbed run, bit for bit.\n"
      "Starts caf-nodes and a training program on them, and injects faults at seeded random moments while it trains.\n"
      "Then runs the same program undisturbed on one worker and compares the states.\n"
      "\nThe faults (a number is a weight: `--kinds kill=3,freeze`):\n"};
  for (auto kind : all_fault_kinds) {
    auto line = "  " + std::string{to_string(kind)};
    line.resize(20, ' ');
    text += line + std::string{explain(kind)} + "\n";
  }
  text +=
      "Faults that are not permitted here are skipped with a message. With 'cut' among the kinds, driver and nodes "
      "run\n"
      "in private network namespaces and connect without TLS.\n"
      "\nThe run passes if the bits are equal, the run did not hang, its reported failures are exactly the injected\n"
      "ones, it did not return to a checkpoint while a worker survived, at most one step was redone for each fault,\n"
      "80 % of the losses fell inside a step (if there are at least 20), and the ledger has each shard of each step\n"
      "and each sample of each epoch exactly once.\n"
      "\nExit codes: 0 passed, 1 failed, 2 wrong usage.\n";
  return text;
}

void describe(CLI::App& app, options& o) {
  const auto times = std::map<std::string, double>{{"ms", 1}, {"s", 1000}, {"min", 60'000}};
  app.add_option("--program", o.program,
                 "The training program and its arguments; it must accept charlm's options. Without --steps it is asked "
                 "to stop when all faults are done")
      ->capture_default_str();
  app.add_option("--workers", o.workers, "Worker processes of the disturbed run")
      ->capture_default_str()
      ->check(troupe::apps::positive_number());
  app.add_option("--nodes", o.nodes, "Number of caf-nodes; 0: the driver's own node")->capture_default_str();
  auto* faults = app.add_option("--faults", o.faults, "Number of faults")
                     ->capture_default_str()
                     ->check(troupe::apps::positive_number());
  app.add_option("--minutes", o.minutes, "Inject faults for this long instead of a fixed number")
      ->excludes(faults)
      ->check(troupe::apps::positive_number());
  app.add_option("--mean-interval", o.mean_interval_ms,
                 "Mean interval between faults, such as 500ms or 1s (default: 1s)")
      ->transform(CLI::AsNumberWithUnit(times, CLI::AsNumberWithUnit::UNIT_REQUIRED));
  app.add_option("--kinds", o.kinds, "Kinds of faults and their weights")->capture_default_str();
  app.add_option("--seed", o.seed, "Determines time, kind and victim of each fault (default: random, and printed)");
  app.add_flag("--allow-all", o.allow_all,
               "Allow faults to hit the last living worker; then a restart from a checkpoint is correct");
  app.add_option("--hung-after", o.hung_after_ms,
                 "Time without progress after which the run counts as hung (default: 60s)")
      ->transform(CLI::AsNumberWithUnit(times, CLI::AsNumberWithUnit::UNIT_REQUIRED));
  app.add_option("--directory", o.directory, "Directory for all files (default: a new temporary directory)");
  app.add_option("--programs", o.programs, "Directory of charlm and caf-node (default: that of this program)")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--keep", o.keep, "Keep all files even if the run passes");
}

/// The value of an option in a command line, written as "--steps 100" or "--steps=100".
std::optional<std::uint64_t> number_after(const std::vector<std::string>& words, const std::string& option) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    auto text = words[i].starts_with(option + "=")           ? words[i].substr(option.size() + 1)
                : words[i] == option && i + 1 < words.size() ? words[i + 1]
                                                             : std::string{};
    auto value = std::uint64_t{0};
    if (auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
        bad == std::errc{} && end == text.data() + text.size() && !text.empty())
      return value;
  }
  return std::nullopt;
}

fs::path find_program(const fs::path& name, const fs::path& programs) {
  if (name.has_parent_path())
    return fs::absolute(name);
  if (fs::exists(programs / name))
    return programs / name;
  throw std::runtime_error{fmt::format("there is no {} in {}: build it, or name its directory with --programs",
                                       name.string(), programs.string())};
}

nlohmann::json read_json(const fs::path& path) {
  auto result = nlohmann::json::parse(troupe::testing::read_file(path), nullptr, false);
  return result.is_discarded() ? nlohmann::json{} : result;
}

/// The number of samples in charlm's text; nothing for other programs.
std::optional<std::uint64_t> samples_of(const nlohmann::json& run) {
  if (!run.is_object() || !run.contains("options") || !run["options"].contains("text"))
    return std::nullopt;
  auto text = charlm::load_corpus(fs::path{run["options"]["text"].get<std::string>()});
  if (!text)
    return std::nullopt;
  return text->training_samples();
}

class session {
 public:
  explicit session(options o) : options_(std::move(o)) {}
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  ~session() {
    auto ignored = std::error_code{};
    if (remove_)
      fs::remove_all(directory_, ignored);
    else if (!directory_.empty())
      std::printf("all files are in %s\n", directory_.c_str());
  }

  int run() {
    prepare();
    disturb();
    if (report_.hung) {
      std::printf("\nHUNG: no progress for %.0f s\n%s", options_.hung_after_ms / 1000, report_.hung->c_str());
      return 1;
    }
    auto finished = facts_.result.is_object() && facts_.result.value("status", "failed") != "failed";
    if (finished && facts_.result.value("steps", std::uint64_t{0}) > 0)
      run_undisturbed(facts_.result["steps"].get<std::uint64_t>());
    auto passed = conclude();
    remove_ = passed && !options_.keep;
    return passed ? 0 : 1;
  }

 private:
  void prepare() {
    kinds_ = *parse_kinds(options_.kinds);
    auto programs = options_.programs.empty() ? fs::read_symlink("/proc/self/exe").parent_path() : options_.programs;
    program_ = split_command(options_.program);
    program_[0] = find_program(program_[0], programs).string();
    caf_node_ = find_program("caf-node", programs);
    last_step_ = number_after(program_, "--steps");
    if (options_.directory.empty()) {
      auto name = (fs::temp_directory_path() / "troupe-chaos-XXXXXX").string();
      if (::mkdtemp(name.data()) == nullptr)
        throw std::runtime_error{"cannot make a directory for temporary files"};
      directory_ = name;
    } else {
      fs::create_directories(options_.directory);
      directory_ = fs::absolute(options_.directory);
    }
    seed_ = options_.seed ? *options_.seed : std::random_device{}();
  }

  [[nodiscard]] bool wants(fault_kind kind) const {
    return std::ranges::find(kinds_, kind, &weighted_kind::kind) != kinds_.end();
  }

  void skip(fault_kind kind, const std::string& reason) {
    if (std::erase_if(kinds_, [kind](const weighted_kind& each) { return each.kind == kind; }) > 0 && !reason.empty())
      std::printf("skipped: %s: %s\n", std::string{to_string(kind)}.c_str(), reason.c_str());
  }

  void disturb() {
    auto what = scene_options{};
    what.directory = directory_;
    what.caf_node = caf_node_;
    what.program = program_;
    if (!last_step_)
      what.program.insert(what.program.end(), {"--steps", "1000000000"});
    what.workers = options_.workers;
    what.nodes = options_.nodes;
    what.private_links = wants(fault_kind::cut) || wants(fault_kind::reset) || wants(fault_kind::cut_control) ||
                         wants(fault_kind::cut_data);
    what.small_disk = wants(fault_kind::fill_disk);
    what.freezable_disk = wants(fault_kind::freeze_disk);
    for (auto kind : all_fault_kinds)
      if (concerns_node(kind) && options_.nodes == 0)
        skip(kind, "there are no caf-nodes");
    if (options_.nodes == 1)
      skip(fault_kind::cut_data, "it takes two caf-nodes");
    if (options_.nodes == 1 && !options_.allow_all)
      skip(fault_kind::kill_node, "without the only caf-node no worker would be left (--allow-all)");
    fmt::print("seed {}; {} workers on {}; {}\n", seed_, options_.workers,
               options_.nodes == 0 ? "the driver's own node" : fmt::format("{} caf-nodes", options_.nodes),
               fmt::join(what.program, " "));
    std::fflush(stdout);

    std::vector<std::string> skipped;
    auto run = scene{std::move(what), skipped};
    for (const auto& each : skipped)
      std::printf("skipped: %s\n", each.c_str());
    if (!run.has_links())
      for (auto kind : {fault_kind::cut, fault_kind::reset, fault_kind::cut_control, fault_kind::cut_data})
        skip(kind, "");
    if (!run.has_small_disk())
      skip(fault_kind::fill_disk, "");
    if (!run.has_freezable_disk())
      skip(fault_kind::freeze_disk, "");
    if (kinds_.empty())
      throw std::runtime_error{"none of the kinds of faults is possible here"};

    auto campaign = campaign_options{};
    campaign.seed = seed_;
    campaign.mean_interval = std::chrono::milliseconds{std::llround(options_.mean_interval_ms)};
    campaign.kinds = kinds_;
    campaign.faults = options_.minutes > 0 ? 0 : options_.faults;
    campaign.duration = std::chrono::milliseconds{std::llround(options_.minutes * 60'000)};
    campaign.allow_all = options_.allow_all;
    campaign.last_step = last_step_;
    campaign.hung_after = std::chrono::milliseconds{std::llround(options_.hung_after_ms)};
    report_ = troupe::chaos::disturb(run, campaign);
    facts_.planned_faults = campaign.faults;
    facts_.faults = report_.faults;
    facts_.workers = options_.workers;
    facts_.result = read_json(run.run_directory() / "result.json");
    facts_.run = read_json(run.run_directory() / "run.json");
    facts_.ledger = ledger_tail{run.run_directory()}.read();
    if (!report_.hung && report_.driver.code.value_or(1) != 0 &&
        !(facts_.result.is_object() && facts_.result.value("status", "") == "stopped"))
      std::printf("the driver's output:\n%s", run.driver_output().c_str());
  }

  /// Runs the same number of steps on one worker of the driver's own node.
  void run_undisturbed(std::uint64_t steps) {
    std::printf("the same %llu steps undisturbed, on one worker ...\n", static_cast<unsigned long long>(steps));
    std::fflush(stdout);
    auto argv = program_;
    if (!last_step_)
      argv.insert(argv.end(), {"--steps", std::to_string(steps)});
    argv.insert(argv.end(), {"--workers", "1", "--storage", (directory_ / "runs").string(), "--name", "undisturbed"});
    auto process = child_process{{argv, {{"TROUPE_KEYS", (directory_ / "keys").string()}}}, directory_ / "undisturbed"};
    auto reports = directory_ / "runs" / "undisturbed" / "metrics.jsonl";
    auto size = std::uintmax_t{0};
    for (auto progress_at = std::chrono::steady_clock::now(); process.running(); std::this_thread::sleep_for(20ms)) {
      check_signals();
      auto ignored = std::error_code{};
      auto now = fs::file_size(reports, ignored);
      if (now != size)
        progress_at = std::chrono::steady_clock::now();
      size = now;
      if (std::chrono::steady_clock::now() - progress_at >
          std::chrono::milliseconds{std::llround(options_.hung_after_ms)})
        throw std::runtime_error{"the undisturbed run hangs"};
    }
    if (process.wait().code != 0)
      std::printf("the undisturbed run failed:\n%s\n", process.err().c_str());
    facts_.undisturbed = read_json(directory_ / "runs" / "undisturbed" / "result.json");
  }

  [[nodiscard]] bool conclude() {
    facts_.samples = samples_of(facts_.run);
    show_measurements();
    auto passed = true;
    std::printf("\n");
    for (const auto& each : judge(facts_)) {
      const auto* mark = each.is == answer::yes              ? "yes"
                         : each.is == answer::no             ? "NO "
                         : each.is == answer::not_applicable ? "-  "
                                                             : "?  ";
      std::printf("  %s  %s: %s%s\n", mark, each.question.c_str(), each.is == answer::unknown ? "unknown: " : "",
                  each.detail.c_str());
      passed = passed && (each.is == answer::yes || each.is == answer::not_applicable);
    }
    std::printf("%s (seed %llu, %zu faults)\n", passed ? "identical" : "BROKEN", static_cast<unsigned long long>(seed_),
                facts_.faults.size());
    return passed;
  }

  void show_measurements() const {
    auto show = [](const char* what, const std::vector<double>& values) {
      if (!values.empty())
        std::printf("%s: p50 %.0f ms, p99 %.0f ms, max %.0f ms (%zu)\n", what, 1000 * percentile(values, 0.5),
                    1000 * percentile(values, 0.99), 1000 * percentile(values, 1), values.size());
    };
    const auto events = directory_ / "runs" / "disturbed" / "events.jsonl";
    show("pauses, as the run reports them", pauses_outside(events, {}));
    show("of these, while nothing was frozen, cut off, full, busy or gone", pauses_outside(events, report_.lasting));
    show("from a fault to the next generation's first step, measured from outside", report_.seconds_to_heal);
    auto show_memory = [](const char* whose, const memory_range& memory) {
      if (memory.most_bytes > 0)
        fmt::print("memory of {}: {} to {} MB (after {:.0f} s), {} MB at the end\n", whose,
                   memory.least_bytes / 1'000'000, memory.most_bytes / 1'000'000, memory.most_at,
                   memory.last_bytes / 1'000'000);
    };
    show_memory("the driver, and of those that replaced it", report_.driver_memory);
    show_memory("each caf-node", report_.node_memory);
  }

  options options_;
  std::vector<weighted_kind> kinds_;
  std::vector<std::string> program_;
  fs::path caf_node_;
  fs::path directory_;
  std::optional<std::uint64_t> last_step_;
  std::uint64_t seed_ = 0;
  campaign_report report_;
  evidence facts_;
  bool remove_ = false;
};

} // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{help_text(), "troupe-chaos"};
  describe(app, o);
  if (auto code = troupe::apps::parse_command_line(app, argc, argv))
    return *code;
  if (!parse_kinds(o.kinds) || split_command(o.program).empty()) {
    std::fprintf(stderr, "troupe-chaos: cannot parse --%s; see troupe-chaos --help\n",
                 parse_kinds(o.kinds) ? "program" : "kinds");
    return troupe::apps::exit_usage;
  }
  struct sigaction action = {};
  action.sa_handler = [](int signal) { received_signal = signal; };
  for (auto signal : {SIGINT, SIGTERM, SIGHUP})
    ::sigaction(signal, &action, nullptr);
  try {
    return session{std::move(o)}.run();
  } catch (const interrupted& x) {
    std::fprintf(stderr, "troupe-chaos: interrupted; all processes that it started have ended\n");
    return 128 + x.signal;
  } catch (const std::exception& x) {
    std::fprintf(stderr, "troupe-chaos: %s\n", x.what());
    return 1;
  }
}
