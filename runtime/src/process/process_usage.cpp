#include <troupe/runtime/process_usage.hpp>

#include <troupe/collectives/unique_fd.hpp>

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <fcntl.h>
#include <string>
#include <unistd.h>

namespace troupe::runtime {

namespace {

/// A small file of /proc, up to `into.size() - 1` bytes, as text that ends with 0; false if it cannot be read.
template <std::size_t Size>
bool read_text(const char* path, std::array<char, Size>& into) noexcept {
  const auto file = collectives::unique_fd{::open(path, O_RDONLY | O_CLOEXEC)};
  const auto count = file ? ::read(file.get(), into.data(), into.size() - 1) : -1;
  if (count <= 0)
    return false;
  into[static_cast<std::size_t>(count)] = '\0';
  return true;
}

/// The second number of a `statm` file (proc(5)).
std::optional<std::uint64_t> resident_in(const char* path) noexcept {
  std::array<char, 256> text;
  unsigned long long total = 0;
  unsigned long long resident = 0;
  if (!read_text(path, text) || std::sscanf(text.data(), "%llu %llu", &total, &resident) != 2)
    return std::nullopt;
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return resident * page;
}

} // namespace

std::optional<process_usage> usage_of(pid_t pid) {
  const auto resident = resident_in(fmt::format("/proc/{}/statm", pid).c_str());
  std::array<char, 1024> text;
  if (!resident || !read_text(fmt::format("/proc/{}/stat", pid).c_str(), text))
    return std::nullopt;
  const auto all = std::string{text.data()};
  // The name is in parentheses and may contain any byte. Fields 3, 14 and 15.
  const auto name_end = all.rfind(')');
  auto state = ' ';
  unsigned long long user = 0;
  unsigned long long system = 0;
  if (name_end == std::string::npos ||
      std::sscanf(all.c_str() + name_end + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu", &state, &user,
                  &system) != 3 ||
      state == 'Z' || state == 'X')
    return std::nullopt;
  static const auto tick = std::chrono::nanoseconds{std::chrono::seconds{1}} / ::sysconf(_SC_CLK_TCK);
  return process_usage{*resident, tick * static_cast<std::int64_t>(user + system)};
}

std::uint64_t resident_bytes() noexcept {
  return resident_in("/proc/self/statm").value_or(0);
}

} // namespace troupe::runtime
