#include "programs/program_cache.hpp"

#include <troupe/mirror_place.hpp>
#include <troupe/serialization/files/durable_file.hpp>
#include <troupe/serialization/files/file_system.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using serialization::file_error;

namespace {

constexpr auto upload_lifetime = 60s;
/// What another process has left is older than this.
constexpr auto leftover_age = 1h;
constexpr std::string_view upload_suffix = ".upload.tmp";

constexpr auto for_owner_only = fs::perms::owner_all;

bool is_build_id(std::string_view text) {
  const auto colon = text.find(':');
  if (colon == std::string_view::npos || text.size() > 128)
    return false;
  const auto kind = text.substr(0, colon);
  const auto digits = text.substr(colon + 1);
  return (kind == "xxh3" || kind == "sha256") && digits.size() >= 16 &&
         digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

expected<void> check_build_id(const std::string& build_id) {
  if (!is_build_id(build_id))
    return fail(errc::invalid_argument, fmt::format("'{}' is no build id", build_id));
  return {};
}

expected<void> check_name(const std::string& name) {
  if (!is_plain_path(name) || name.find('/') != std::string::npos)
    return fail(errc::invalid_argument, fmt::format("'{}' cannot name a program", name));
  return {};
}

struct cached_program {
  fs::path place;
  std::uint64_t size_bytes = 0;
  timespec used{};
};

bool is_older(const cached_program& a, const cached_program& b) {
  return std::tie(a.used.tv_sec, a.used.tv_nsec) < std::tie(b.used.tv_sec, b.used.tv_nsec);
}

/// The only file of a program's directory; empty if there is none.
fs::path file_in(const fs::path& place) {
  auto code = std::error_code{};
  auto entries = fs::directory_iterator{place, code};
  return code || entries == fs::directory_iterator{} ? fs::path{} : entries->path();
}

std::vector<cached_program> list(const fs::path& directory) {
  std::vector<cached_program> result;
  auto code = std::error_code{};
  for (const auto& each : fs::directory_iterator{directory, code}) {
    struct stat status {};
    if (const auto file = file_in(each.path()); !file.empty() && ::stat(file.c_str(), &status) == 0)
      result.push_back({each.path(), static_cast<std::uint64_t>(status.st_size), status.st_mtim});
  }
  return result;
}

void remove_leftovers(const fs::path& directory) {
  auto code = std::error_code{};
  for (const auto& each : fs::directory_iterator{directory, code}) {
    const auto written = each.last_write_time(code);
    if (!code && each.path().native().ends_with(upload_suffix) &&
        fs::file_time_type::clock::now() - written > leftover_age)
      fs::remove(each.path(), code);
  }
}

} // namespace

void program_cache::open(const fs::path& directory) {
  const auto lock = std::lock_guard{mutex_};
  directory_ = fs::absolute(directory);
  remove_leftovers(directory_);
}

fs::path program_cache::place_of(const std::string& build_id) const {
  auto name = build_id;
  std::ranges::replace(name, ':', '-');
  return directory_ / name;
}

expected<program_file> program_cache::find(const std::string& build_id) {
  const auto lock = std::lock_guard{mutex_};
  return open_checked(build_id);
}

expected<program_file> program_cache::open_checked(const std::string& build_id) {
  TROUPE_TRY(check_build_id(build_id));
  const auto place = place_of(build_id);
  const auto file = directory_.empty() ? fs::path{} : file_in(place);
  const auto absent = [&] { return fail(errc::not_found, fmt::format("no program of build {} is here", build_id)); };
  if (file.empty())
    return absent();
  auto program = program_file::open(file.string());
  if (!program || program->identity().build_id != build_id) {
    auto ignored = std::error_code{};
    fs::remove_all(place, ignored);
    return absent();
  }
  // When it was used last is the time of its file.
  std::ignore = ::futimens(program->fd(), nullptr);
  return program;
}

expected<void> program_cache::make_room(std::uint64_t size_bytes) {
  auto taken = size_bytes;
  for (const auto& [id, each] : uploads_)
    taken += each.size_bytes;
  if (taken > limit_bytes_)
    return fail(errc::busy, "other programs are on their way to this node, and leave no room: try again");
  auto programs = list(directory_);
  std::ranges::sort(programs, is_older);
  for (const auto& each : programs)
    taken += each.size_bytes;
  for (const auto& each : programs) {
    if (taken <= limit_bytes_)
      break;
    auto code = std::error_code{};
    fs::remove_all(each.place, code);
    if (code)
      return fail(errc::io_error, fmt::format("cannot remove {}: {}", each.place.string(), code.message()));
    taken -= each.size_bytes;
  }
  return {};
}

expected<std::string> program_cache::begin(const std::string& build_id, const std::string& name,
                                           std::uint64_t size_bytes) {
  TROUPE_TRY(check_build_id(build_id));
  TROUPE_TRY(check_name(name));
  if (size_bytes > limit_bytes_)
    return fail(errc::unsatisfiable,
                fmt::format("{} has {} bytes, and this node takes programs of {} at most: start it with a larger "
                            "--accept-programs",
                            name, size_bytes, limit_bytes_));
  const auto lock = std::lock_guard{mutex_};
  if (directory_.empty())
    return fail(errc::busy, "the node is being started: try again");
  TROUPE_TRY(serialization::create_directories_durably(directory_));
  auto code = std::error_code{};
  fs::permissions(directory_, for_owner_only, code);
  std::erase_if(uploads_, [now = clock::now()](const auto& each) {
    if (now - each.second.last < upload_lifetime)
      return false;
    auto ignored = std::error_code{};
    fs::remove(each.second.path, ignored);
    return true;
  });
  TROUPE_TRY(make_room(size_bytes));
  auto id = serialization::random_hex(16);
  const auto path = directory_ / fmt::format(".{}{}", id, upload_suffix);
  unique_fd file{::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0700)};
  if (!file)
    return fail(file_error(errno, "creating", path));
  // A full disk is found here.
  if (const auto reserved = size_bytes == 0 ? 0 : ::posix_fallocate(file.get(), 0, static_cast<off_t>(size_bytes));
      reserved != 0) {
    fs::remove(path, code);
    return fail(file_error(reserved, "reserving space for", path));
  }
  uploads_.emplace(id, upload{build_id, name, size_bytes, path, std::move(file), 0, {}, clock::now()});
  return id;
}

expected<program_cache::upload*> program_cache::known(const std::string& id) {
  const auto found = uploads_.find(id);
  if (found == uploads_.end())
    return fail(errc::not_found, "this node does not know of that upload any more: begin again");
  found->second.last = clock::now();
  return &found->second;
}

expected<void> program_cache::write(const std::string& id, std::uint64_t offset, std::string_view bytes) {
  const auto lock = std::lock_guard{mutex_};
  TROUPE_TRY(auto* into, known(id));
  if (offset != into->done || bytes.size() > into->size_bytes - into->done)
    return fail(errc::invalid_argument,
                fmt::format("{} bytes at {} do not continue an upload of which {} of {} are there", bytes.size(),
                            offset, into->done, into->size_bytes));
  for (auto left = bytes; !left.empty();) {
    const auto written = ::pwrite(into->file.get(), left.data(), left.size(), static_cast<off_t>(into->done));
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0)
      return fail(file_error(errno, "writing", into->path));
    into->done += static_cast<std::uint64_t>(written);
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  into->digest.update(serialization::bytes_of(bytes));
  return offset == 0 ? check_processor(into->file.get(), into->name) : expected<void>{};
}

expected<void> program_cache::finish(const std::string& id, const std::string& sha256) {
  const auto lock = std::lock_guard{mutex_};
  TROUPE_TRY(std::ignore, known(id));
  auto ended = std::move(uploads_.extract(id).mapped());
  const auto place = place_of(ended.build_id);
  auto ignored = std::error_code{};
  const auto refuse = [&](errc code, std::string why) {
    fs::remove(ended.path, ignored);
    return fail(code, std::move(why));
  };
  if (ended.done != ended.size_bytes || ended.digest.hex_digest() != sha256)
    return refuse(errc::damaged, fmt::format("{} did not arrive as it was sent: send it again", ended.name));
  // Whoever has it open for writing keeps it from being executed.
  ended.file = unique_fd{::open(ended.path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!ended.file)
    return refuse(errc::io_error, file_error(errno, "opening", ended.path).message);
  const auto identity = identify_program(ended.file.get(), ended.name);
  if (!identity)
    return refuse(identity.error().code, identity.error().message);
  if (identity->build_id != ended.build_id)
    return refuse(errc::damaged,
                  fmt::format("{} is build {}, and not {}", ended.name, identity->build_id, ended.build_id));
  // Another driver may have sent it meanwhile.
  if (open_checked(ended.build_id)) {
    fs::remove(ended.path, ignored);
    return {};
  }
  auto code = std::error_code{};
  fs::create_directory(place, code);
  if (!code)
    fs::rename(ended.path, place / ended.name, code);
  if (code)
    return refuse(errc::io_error, fmt::format("cannot put {} into {}: {}", ended.name, place.string(), code.message()));
  return {};
}

expected<void> program_cache::link(const std::string& build_id, const std::string& name, const fs::path& directory) {
  TROUPE_TRY(check_name(name));
  const auto lock = std::lock_guard{mutex_};
  TROUPE_TRY(const auto program, open_checked(build_id));
  const auto target = directory / name;
  auto code = std::error_code{};
  fs::create_directories(directory, code);
  fs::remove(target, code);
  fs::create_hard_link(program.identity().path, target, code);
  if (code)
    fs::copy_file(program.identity().path, target, fs::copy_options::overwrite_existing, code);
  if (code)
    return fail(errc::io_error, fmt::format("cannot put {} into {}: {}", name, directory.string(), code.message()));
  return {};
}

} // namespace troupe::runtime
