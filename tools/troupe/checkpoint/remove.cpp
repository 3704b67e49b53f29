#include "commands.hpp"
#include "locate.hpp"
#include "text.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <sys/file.h>
#include <unistd.h>
#include <utility>

namespace troupe::tool {

namespace fs = std::filesystem;

namespace {

/// Locks a run's directory as its driver would, so that the run cannot start meanwhile. Locks nothing if there is no
/// run.
class run_hold {
 public:
  /// Fails with `errc::already_exists` if a driver holds the lock.
  [[nodiscard]] static expected<run_hold> take(const fs::path& checkpoints_directory) {
    auto path = checkpoints_directory.parent_path() / ".lock";
    auto descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 && errno == ENOENT)
      return run_hold{-1};
    if (descriptor < 0)
      return fail(system_error(fmt::format("cannot check whether the run is under way: {}", path.string())));
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0)
      return run_hold{descriptor};
    auto reason = system_error(fmt::format("cannot lock {}", path.string()));
    auto held = errno == EWOULDBLOCK;
    ::close(descriptor);
    if (!held)
      return fail(std::move(reason));
    auto pid = std::string{};
    std::ifstream{path} >> pid;
    return fail(errc::already_exists,
                fmt::format("the run in {} is under way{}: stop it first, or make it keep fewer checkpoints itself "
                            "(num_to_keep, --keep)",
                            checkpoints_directory.parent_path().string(),
                            pid.empty() ? "" : fmt::format(" (process {})", printable(pid))));
  }

  run_hold(run_hold&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  run_hold& operator=(run_hold&&) = delete;
  ~run_hold() {
    if (descriptor_ >= 0)
      ::close(descriptor_);
  }

 private:
  explicit run_hold(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;
};

bool is_good(const fs::path& path) {
  auto opened = serialization::checkpoint::open(path);
  return opened && opened->verify(serialization::read_back::from_device);
}

/// Whether the directory contains another good checkpoint. Reads checkpoints, starting with the newest, until it finds
/// one.
bool has_other_good(const fs::path& directory, const fs::path& path) {
  auto entries = serialization::list_checkpoints(directory);
  if (!entries)
    return false;
  std::ranges::reverse(*entries);
  return std::ranges::any_of(*entries, [&](const serialization::checkpoint_entry& entry) {
    return entry.path.filename() != path.filename() && is_good(entry.path);
  });
}

expected<std::vector<fs::path>> remove_one(const fs::path& path, bool force) {
  if (!force && is_good(path) && !has_other_good(path.parent_path(), path))
    return fail(errc::invalid_argument,
                fmt::format("{} is the last good checkpoint in {}, and its training would be lost: use --force to "
                            "remove it",
                            path.string(), path.parent_path().string()));
  if (auto removed = serialization::remove_checkpoint(path); !removed)
    return fail(std::move(removed.error()));
  return std::vector{path};
}

expected<std::vector<fs::path>> remove_some(const remove_arguments& given) {
  // Resolve links, because the run's lock is beside the real directory. `locate` reports a path that does not exist.
  auto code = std::error_code{};
  auto real = fs::canonical(given.path, code);
  auto path = code ? given.path : real;
  auto where = locate(path);
  if (!where)
    return fail(std::move(where.error()));
  if (!given.keep && !given.step && !where->single)
    return fail(errc::invalid_argument,
                fmt::format("{} contains {} checkpoints: name one (its directory, or --step N), or the number to keep "
                            "(--keep N)",
                            where->directory.string(), where->checkpoints.size()));
  if (given.keep && where->single)
    return fail(errc::invalid_argument,
                fmt::format("{} is one checkpoint: --keep needs a run's directory", path.string()));
  auto hold = run_hold::take(where->directory);
  if (!hold)
    return fail(std::move(hold.error()));
  if (given.keep)
    return serialization::apply_retention(where->directory, *given.keep);
  auto one = locate_one(path, given.step);
  if (!one)
    return fail(std::move(one.error()));
  return remove_one(*one, given.force);
}

} // namespace

int remove(const remove_arguments& given) {
  auto removed = remove_some(given);
  if (!removed)
    return complain(removed.error());
  if (given.output == output_format::json) {
    auto paths = json::array();
    for (const auto& path : *removed)
      paths.push_back(path.string());
    print_json({{"removed", paths}});
    return exit_good;
  }
  for (const auto& path : *removed)
    std::printf("removed %s\n", path.c_str());
  if (removed->empty())
    std::printf("nothing to remove\n");
  return exit_good;
}

} // namespace troupe::tool
