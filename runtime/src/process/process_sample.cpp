#include <troupe/runtime/process_sample.hpp>

#include <troupe/collectives/unique_fd.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

using std::chrono::nanoseconds;

/// The content of a small file of /proc, or nothing if its process or thread is gone.
expected<std::optional<std::string>> read_if_there(const std::string& path) {
  auto file = collectives::unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  auto refused = [&path]() -> expected<std::optional<std::string>> {
    if (errno == ENOENT || errno == ESRCH)
      return std::nullopt;
    auto reason = system_error(path);
    return fail(errc::io_error, std::move(reason.message));
  };
  if (!file)
    return refused();
  // Enough for a name of at most 64 bytes and some fifty numbers. A single read gives consistent values.
  std::array<char, 2048> buffer;
  auto count = ::read(file.get(), buffer.data(), buffer.size());
  if (count < 0)
    return refused();
  return std::string(buffer.data(), static_cast<std::size_t>(count));
}

/// Removes and returns the next word.
std::string_view next_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  auto result = text.substr(0, text.find_first_of(" \n"));
  text.remove_prefix(result.size());
  return result;
}

std::optional<std::uint64_t> number(std::string_view word) {
  std::uint64_t result = 0;
  auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), result);
  if (code != std::errc{} || end != word.data() + word.size())
    return std::nullopt;
  return result;
}

/// States by precedence: the state of a process is the first of these that any of its threads has. A stop applies to
/// all threads, even if some have not reached it yet. A running thread outranks sleeping ones. A process lives while
/// any thread does, even after its first thread has ended.
constexpr auto states = std::string_view{"TRtDSZX"};

/// The kernel's other letters, such as 'I' and 'P', are kinds of sleep.
char known(char state) {
  return states.find(state) == std::string_view::npos ? 'S' : state;
}

char combined(char a, char b) {
  return states[std::min(states.find(a), states.find(b))];
}

/// The fields of a `stat` file that are used here.
struct stat_line {
  char state = 'X';
  nanoseconds cpu{};
};

/// The name is in parentheses and may contain any byte, even parentheses, so the other fields follow the last ')'.
std::optional<stat_line> parse_stat(std::string_view text) {
  auto name_end = text.rfind(')');
  if (name_end == std::string_view::npos)
    return std::nullopt;
  text.remove_prefix(name_end + 1);
  auto state = next_word(text);
  // Skips fields 4 to 13, between the state and the times; see proc(5).
  for (int i = 4; i <= 13; ++i)
    next_word(text);
  auto user = number(next_word(text));
  auto system = number(next_word(text));
  if (state.size() != 1 || !user || !system)
    return std::nullopt;
  static const auto tick = nanoseconds{std::chrono::seconds{1}} / ::sysconf(_SC_CLK_TCK);
  return stat_line{known(state.front()), tick * static_cast<std::int64_t>(*user + *system)};
}

expected<std::optional<stat_line>> read_stat(const std::string& directory) {
  auto path = directory + "/stat";
  TROUPE_TRY(auto text, read_if_there(path));
  if (!text || text->empty())
    return std::nullopt;
  auto line = parse_stat(*text);
  if (!line)
    return fail(errc::io_error, fmt::format("cannot parse {}: {}", path, *text));
  return line;
}

/// The second number of a `schedstat` file; nothing if the kernel does not provide it.
std::optional<nanoseconds> read_run_delay(const std::string& directory) {
  auto text = read_if_there(directory + "/schedstat");
  if (!text || !*text)
    return std::nullopt;
  auto words = std::string_view{**text};
  next_word(words);
  auto delay = number(next_word(words));
  if (!delay)
    return std::nullopt;
  return nanoseconds{static_cast<std::int64_t>(*delay)};
}

/// The function of the kernel in which a thread sleeps; empty if the kernel does not say.
std::string read_kernel_function(const std::string& directory) {
  auto text = read_if_there(directory + "/wchan");
  return text && *text && **text != "0" ? **text : std::string{};
}

struct close_directory {
  void operator()(DIR* x) const noexcept { ::closedir(x); }
};

/// Adds the states and run delays of all threads. Skips threads that end meanwhile.
expected<void> add_threads(const std::string& directory, process_sample& sample) {
  auto tasks = std::unique_ptr<DIR, close_directory>{::opendir(directory.c_str())};
  if (!tasks) {
    if (errno == ENOENT || errno == ESRCH)
      return {};
    return fail(errc::io_error, system_error(directory).message);
  }
  while (const auto* entry = ::readdir(tasks.get())) {
    if (entry->d_name[0] == '.')
      continue;
    auto thread = directory;
    thread.append("/").append(entry->d_name);
    TROUPE_TRY(auto line, read_stat(thread));
    if (!line)
      continue;
    sample.state = combined(sample.state, line->state);
    if (line->state == 'D' && sample.waits_in.empty())
      sample.waits_in = read_kernel_function(thread);
    if (auto delay = read_run_delay(thread))
      sample.run_delay = sample.run_delay.value_or(nanoseconds{0}) + *delay;
  }
  return {};
}

} // namespace

std::uint32_t tracer_of(pid_t pid) {
  constexpr auto label = std::string_view{"TracerPid:\t"};
  const auto text = read_if_there(fmt::format("/proc/{}/status", pid));
  if (!text || !*text)
    return 0;
  auto rest = std::string_view{**text};
  const auto start = rest.find(label);
  if (start == std::string_view::npos)
    return 0;
  rest.remove_prefix(start + label.size());
  return static_cast<std::uint32_t>(number(next_word(rest)).value_or(0));
}

expected<process_sample> sample_process(pid_t pid) {
  process_sample result;
  result.when = std::chrono::steady_clock::now();
  auto directory = fmt::format("/proc/{}", pid);
  // The process's own line includes the processor time of threads that have ended.
  TROUPE_TRY(auto line, read_stat(directory));
  if (!line)
    return result;
  result.cpu = line->cpu;
  TROUPE_TRY(add_threads(directory + "/task", result));
  if (result.state == 't')
    result.tracer = tracer_of(pid);
  return result;
}

} // namespace troupe::runtime
