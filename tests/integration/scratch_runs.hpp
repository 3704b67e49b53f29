#pragma once

#include <built.hpp>
#include <processes.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::testing {

/// A program that has run to its end.
struct outcome {
  exit_status status;
  std::string out;
  std::string err;
};

/// A listening caf-node.
struct running_node {
  child_process process;
  std::string address;
};

/// The program of misbehaving.cpp.
inline std::string misbehaving_program() {
  return built("tests/bin/misbehaving");
}

/// The last 4 KiB of a file.
inline std::string read_end(const std::filesystem::path& path) {
  std::ifstream in{path, std::ios::binary | std::ios::ate};
  const auto size = in ? static_cast<std::streamoff>(in.tellg()) : 0;
  in.seekg(std::max<std::streamoff>(0, size - 4096));
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// The environment of one test case: a directory with text, runs and keys. Its processes are recognised by the keys'
/// directory in their environment.
class scratch_runs {
 public:
  scratch_runs() { write_file(text(), make_text(24'000)); }

  [[nodiscard]] std::filesystem::path path(const std::string& name) const { return scratch_.path() / name; }
  [[nodiscard]] std::filesystem::path text() const { return path("text.txt"); }
  [[nodiscard]] std::filesystem::path run_directory(const std::string& name) const { return path("runs") / name; }

  /// A directory with charlm and nothing else, for `--program-dir`.
  [[nodiscard]] std::string programs() const {
    const auto result = path("programs-of-nodes");
    if (std::filesystem::create_directory(result))
      std::filesystem::create_symlink(charlm_program(), result / "charlm");
    return result.string();
  }

  /// Words that repeat irregularly, so that there is something to learn.
  static std::string make_text(std::size_t bytes) {
    static constexpr std::array<const char*, 8> words{"the", "actor", "sends", "its", "gradient", "to", "a", "tree"};
    std::string result;
    for (std::uint64_t state = 12345; result.size() < bytes;) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      result += words[state >> 61];
      result += (state >> 50) % 9 == 0 ? ".\n" : " ";
    }
    result.resize(bytes);
    return result;
  }

  [[nodiscard]] child_process start(std::vector<std::string> argv, std::map<std::string, std::string> environment = {},
                                    const std::filesystem::path& input = "/dev/null") {
    environment.emplace("TROUPE_KEYS", keys());
    return {{std::move(argv), std::move(environment), input}, path("output-" + std::to_string(++started_))};
  }

  [[nodiscard]] outcome run(std::vector<std::string> argv, std::map<std::string, std::string> environment = {}) {
    auto process = start(std::move(argv), std::move(environment));
    auto status = process.wait();
    return {status, process.out(), process.err()};
  }

  /// The arguments of a small charlm run, which is fresh without a name; `more` takes precedence.
  [[nodiscard]] std::vector<std::string> charlm(const std::string& name, std::vector<std::string> more = {}) const {
    std::vector<std::pair<std::string, std::string>> defaults{{"--hidden", "32"},
                                                              {"--embedding", "16"},
                                                              {"--batch", "64"},
                                                              {"--steps", "12"},
                                                              {"--text", text().string()},
                                                              {"--evaluate-every", "1000"},
                                                              {"--storage", path("runs").string()},
                                                              {"--name", name}};
    std::vector<std::string> result{charlm_program(), "--quiet"};
    for (const auto& [option, value] : defaults)
      if (!value.empty() && std::ranges::find(more, option) == more.end())
        result.insert(result.end(), {option, value});
    result.insert(result.end(), more.begin(), more.end());
    return result;
  }

  /// Starts a node and waits for its address.
  [[nodiscard]] running_node start_node(std::vector<std::string> more = {},
                                        std::map<std::string, std::string> environment = {}) {
    more.insert(more.begin(), caf_node_program());
    return await_node(start(std::move(more), std::move(environment)));
  }

  /// Waits for the address of a caf-node that was started.
  [[nodiscard]] static running_node await_node(child_process process) {
    static const auto mark = std::string{"caf-node: listening on "};
    if (!becomes_true([&] { return process.out().find('\n') != std::string::npos || !process.running(); }))
      throw std::runtime_error{"caf-node does not say where it listens"};
    auto line = process.out();
    if (!line.starts_with(mark))
      throw std::runtime_error{"caf-node did not start: " + line + process.err()};
    auto address = line.substr(mark.size(), line.find('\n') - mark.size());
    return {std::move(process), std::move(address)};
  }

  [[nodiscard]] nlohmann::json result(const std::string& name) const {
    return nlohmann::json::parse(read_file(run_directory(name) / "result.json"));
  }

  /// The last step of a run that is known to be applied; 0 before the first.
  [[nodiscard]] std::uint64_t last_step(const std::string& name) const {
    const auto text = read_end(run_directory(name) / "metrics.jsonl");
    // The last complete line.
    auto end = text.rfind('\n');
    if (end == std::string::npos)
      return 0;
    auto begin = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
    begin = begin == std::string::npos ? 0 : begin + 1;
    auto row = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
    return row.is_discarded() ? 0 : row["step"].get<std::uint64_t>();
  }

  /// Waits until a run has applied a step beyond `after`; throws if it ends before.
  void await_step(child_process& driver, const std::string& name, std::uint64_t after = 0) const {
    await(driver, [&] { return last_step(name) > after; });
  }

  /// Waits for a condition that a driver is to bring about; throws if it ends before.
  static void await(child_process& driver, const std::function<bool()>& condition) {
    // The condition may stop holding: ranks report independently, and the last line is not always the furthest.
    auto holds = false;
    becomes_true([&] { return (holds = condition()) || !driver.running(); });
    if (holds || condition())
      return;
    auto text = std::ostringstream{};
    if (driver.running())
      text << "a driver does not come to what is waited for";
    else
      text << "a driver ended (" << driver.wait() << ") before what is waited for";
    throw std::runtime_error{text.str() + "; its output:\n" + driver.out() + driver.err()};
  }

  /// The events of this kind in a run's events.jsonl.
  [[nodiscard]] std::vector<nlohmann::json> events(const std::string& name, const std::string& kind) const {
    std::vector<nlohmann::json> result;
    auto in = std::istringstream{read_file(run_directory(name) / "events.jsonl")};
    for (std::string line; std::getline(in, line);)
      if (auto event = nlohmann::json::parse(line, nullptr, false); event.is_object() && event["event"] == kind)
        result.push_back(std::move(event));
    return result;
  }

  void await_failures(child_process& driver, const std::string& name, std::size_t count) const {
    await(driver, [&] { return events(name, "failure").size() >= count; });
  }

  /// Waits until a run's last generation has this many workers, and is not one of the first `beyond` that followed its
  /// beginning.
  void await_group(child_process& driver, const std::string& name, std::size_t workers, std::size_t beyond = 0) const {
    await(driver, [&] {
      const auto generations = events(name, "generation");
      return generations.size() > beyond && generations.back()["workers"] == workers;
    });
  }

  /// Waits for steps that a run has not applied yet, then ends it, and returns its result. Its steps must be endless.
  [[nodiscard]] nlohmann::json stop(child_process& driver, const std::string& name) const {
    await_step(driver, name, last_step(name) + 200);
    driver.signal(SIGTERM);
    if (const auto status = driver.wait(); status != exit_status{143, {}}) {
      auto text = std::ostringstream{};
      text << "a driver that was to stop ended with " << status << "; its output:\n" << driver.out() << driver.err();
      throw std::runtime_error{text.str()};
    }
    return result(name);
  }

  /// The state of an undisturbed run of one worker after as many steps.
  [[nodiscard]] std::string state_after(const nlohmann::json& steps) {
    const auto name = "undisturbed-" + steps.dump();
    const auto ran = run(charlm(name, {"--workers", "1", "--steps", steps.dump()}));
    if (ran.status != exit_status{0, {}})
      throw std::runtime_error{"the undisturbed run failed: " + ran.err};
    return result(name)["state_sha256"];
  }

  /// Another program than charlm, by one letter of its help, which trains alike. Returns its path.
  [[nodiscard]] std::string make_changed_charlm() const {
    auto code = read_file(charlm_program());
    code.at(code.find("Show no progress, curve or sample")) = 's';
    const auto result = path("charlm").string();
    write_file(result, code);
    std::filesystem::permissions(result, std::filesystem::perms::owner_all);
    return result;
  }

  /// The directories of a run's checkpoints.
  [[nodiscard]] std::vector<std::filesystem::path> checkpoints(const std::string& name) const {
    std::vector<std::filesystem::path> result;
    auto code = std::error_code{};
    for (const auto& entry : std::filesystem::directory_iterator{run_directory(name) / "checkpoints", code})
      if (entry.path().filename().string().starts_with("step-"))
        result.push_back(entry.path());
    return result;
  }

  /// All processes that this test has started, directly or indirectly.
  [[nodiscard]] std::vector<pid_t> processes() const { return processes_with("TROUPE_KEYS", keys()); }

  /// The worker processes among them.
  [[nodiscard]] std::vector<pid_t> workers() const {
    auto result = processes();
    std::erase_if(result, [](pid_t pid) { return !environment_of(pid).contains("TROUPE_WORKER"); });
    return result;
  }

  /// The worker process of this rank; 0 if there is none.
  [[nodiscard]] pid_t worker_of_rank(int rank) const {
    for (auto pid : workers())
      if (environment_of(pid)["RANK"] == std::to_string(rank))
        return pid;
    return 0;
  }

  [[nodiscard]] bool workers_vanish() const {
    return becomes_true([this] { return workers().empty(); }, std::chrono::milliseconds{10'000});
  }

  [[nodiscard]] std::string keys() const { return path("keys").string(); }

 private:
  scratch_directory scratch_;
  int started_ = 0;
};

/// The digest of the state in a checkpoint's files; an error if they are damaged.
inline std::string stored_state(const std::filesystem::path& checkpoint) {
  auto opened = serialization::checkpoint::open(checkpoint);
  if (!opened)
    return opened.error().message;
  auto digest = serialization::state_sha256(*opened);
  return digest ? *digest : digest.error().message;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::vector<nlohmann::json> read_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::json> result;
  auto in = std::ifstream{path};
  for (std::string line; std::getline(in, line);)
    result.push_back(nlohmann::json::parse(line));
  return result;
}

} // namespace troupe::testing
