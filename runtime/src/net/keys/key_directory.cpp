#include "net/keys/key_directory.hpp"

#include "net/keys/key_files.hpp"

#include <troupe/runtime/keys.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <pwd.h>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace fs = std::filesystem;

fs::path default_key_directory() {
  auto variable = [](const char* name) -> std::string_view {
    const auto* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (auto keys = variable("TROUPE_KEYS"); !keys.empty())
    return keys;
  // The XDG specification requires relative paths to be ignored.
  if (auto config = variable("XDG_CONFIG_HOME"); config.starts_with('/'))
    return fs::path{config} / "troupe" / "keys";
  std::string home{variable("HOME")};
  if (home.empty())
    if (const auto* user = getpwuid(geteuid()); user != nullptr)
      home = user->pw_dir;
  return fs::path{home} / ".config" / "troupe" / "keys";
}

expected<void> check_directory(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    return fail(system_error(path.string()));
  if (!S_ISDIR(status.st_mode))
    return refuse(path, "is not a directory", "remove it, or name another directory in TROUPE_KEYS");
  if (status.st_uid != geteuid() && status.st_uid != 0)
    return refuse(path, "belongs to another user", "use a directory of your own (TROUPE_KEYS)");
  if ((status.st_mode & 022) != 0)
    return refuse(path, "can be written by other users", fmt::format("chmod 700 {}", path.string()));
  return {};
}

expected<void> ensure_directory(const fs::path& path) {
  std::error_code code;
  if (path.has_parent_path() && !fs::exists(path, code))
    fs::create_directories(path.parent_path(), code);
  if (code)
    return fail(errc::io_error,
                fmt::format("{}: {}; name another directory in TROUPE_KEYS", path.string(), code.message()));
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return fail(system_error(path.string()));
  return check_directory(path);
}

void sync_directory(const fs::path& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return;
  fsync(fd);
  close(fd);
}

bool is_present(const fs::path& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0;
}

directory_lock::directory_lock(const fs::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0 && errno == EINTR)
    ;
}

directory_lock::~directory_lock() {
  if (fd_ >= 0)
    close(fd_);
}

expected<staging_directory> staging_directory::make(const fs::path& parent) {
  auto path = (parent / ".new-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr)
    return fail(system_error(path));
  return staging_directory{path};
}

staging_directory::staging_directory(staging_directory&& other) noexcept : path_(std::exchange(other.path_, {})) {}

staging_directory::~staging_directory() {
  std::error_code ignored;
  if (!path_.empty())
    fs::remove_all(path_, ignored);
}

expected<bool> staging_directory::move_to(const fs::path& target) {
  sync_directory(path_);
  if (rename(path_.c_str(), target.c_str()) != 0) {
    if (errno == EEXIST || errno == ENOTEMPTY)
      return false;
    return fail(system_error(target.string()));
  }
  path_.clear();
  sync_directory(target.parent_path());
  return true;
}

expected<void> staging_directory::replace(const fs::path& target) {
  sync_directory(path_);
  if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0 && !swap_in_two_steps(target))
    return fail(system_error(target.string()));
  sync_directory(target.parent_path());
  return {};
}

bool staging_directory::swap_in_two_steps(const fs::path& target) {
  auto aside = path_;
  aside += ".old";
  if (rename(target.c_str(), aside.c_str()) != 0 || rename(path_.c_str(), target.c_str()) != 0)
    return false;
  path_ = std::move(aside);
  return true;
}

} // namespace troupe::runtime
