#include <troupe/actors/run_lock.hpp>

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace troupe::actors {

namespace fs = std::filesystem;

std::optional<lock_holder> read_lock_holder(const fs::path& run) {
  auto file = std::ifstream{run / ".lock"};
  lock_holder result;
  if (!(file >> result.pid))
    return std::nullopt;
  file >> result.host;
  return result;
}

std::string lock_content() {
  return fmt::format("{} {}\n", ::getpid(), lock_host());
}

std::string lock_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::optional<int> times_open(std::uint32_t pid, const fs::path& run) {
  struct stat lock {};
  const auto descriptors = fs::path{fmt::format("/proc/{}/fd", pid)};
  auto code = std::error_code{};
  auto entries = fs::directory_iterator{descriptors, code};
  if (code == std::errc::permission_denied)
    return std::nullopt;
  if (code || ::stat((run / ".lock").c_str(), &lock) != 0)
    return 0;
  auto result = 0;
  for (; !code && entries != fs::directory_iterator{}; entries.increment(code)) {
    struct stat open {};
    if (::stat(entries->path().c_str(), &open) == 0 && open.st_dev == lock.st_dev && open.st_ino == lock.st_ino)
      ++result;
  }
  return result;
}

holder_life life_of(const lock_holder& holder, const fs::path& run) {
  if (!holder.host.empty() && holder.host != lock_host())
    return holder_life::unknown;
  // The process may be another by now: the driver has the lock open.
  return times_open(holder.pid, run).value_or(1) > 0 ? holder_life::lives : holder_life::is_gone;
}

} // namespace troupe::actors
