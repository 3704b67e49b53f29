#include "mirror/mirror_shelf.hpp"

#include "mirror/directory_mirror.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/mirror_place.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/copy.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace fs = std::filesystem;
using serialization::file_error;
using serialization::local_files;

namespace {

expected<void> check_name(const std::string& name) {
  if (!is_plain_path(name) || name.find('/') != std::string::npos)
    return fail(errc::invalid_argument, fmt::format("'{}' is no name of a file", name));
  return {};
}

fs::path checkpoints_in(const fs::path& place) {
  return place / "checkpoints";
}

fs::path temporary_of(const fs::path& file) {
  return file.parent_path() / fmt::format(".{}.upload.tmp", file.filename().string());
}

enum class first_piece : std::uint8_t { empties, keeps };

expected<void> write_piece(const fs::path& file, std::uint64_t offset, std::string_view bytes, first_piece first) {
  const auto flags =
      O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (offset == 0 && first == first_piece::empties ? O_TRUNC : 0);
  const collectives::unique_fd opened{::open(file.c_str(), flags, 0644)};
  if (!opened)
    return fail(file_error(errno, "opening", file));
  struct stat status {};
  if (::fstat(opened.get(), &status) != 0)
    return fail(file_error(errno, "looking at", file));
  if (offset > static_cast<std::uint64_t>(status.st_size))
    return fail(errc::invalid_argument, fmt::format("{} has {} bytes, and its next piece is said to begin at {}",
                                                    file.string(), status.st_size, offset));
  for (std::size_t done = 0; done < bytes.size();) {
    const auto written =
        ::pwrite(opened.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0)
      return fail(file_error(errno, "writing", file));
    done += static_cast<std::size_t>(written);
  }
  return {};
}

} // namespace

expected<fs::path> mirror_shelf::at(const std::string& place) const {
  if (!is_plain_path(place))
    return fail(errc::invalid_argument, fmt::format("'{}' is no place at a node's mirror: names separated by slashes, "
                                                    "none of which begins with a period",
                                                    place));
  return root_ / place;
}

expected<actors::mirror_content> mirror_shelf::list(const std::string& place) const {
  TROUPE_TRY(const auto where, at(place));
  return directory_mirror{where}.list({});
}

expected<mirror_shelf::begun> mirror_shelf::begin(const std::string& place, step_id step) const {
  TROUPE_TRY(const auto where, at(place));
  const auto checkpoints = checkpoints_in(where);
  TROUPE_TRY(serialization::create_directories_durably(checkpoints));
  const auto known = serialization::checkpoint::open(checkpoints / serialization::checkpoint_name(step));
  if (known && known->verify())
    return begun::has_it;
  // What an earlier driver left would take the space that this copy needs.
  std::ignore = serialization::remove_abandoned(checkpoints);
  TROUPE_TRY(serialization::begin_copy(checkpoints, step));
  return begun::awaits_parts;
}

expected<void> mirror_shelf::write_part(const std::string& place, step_id step, const std::string& name,
                                        std::uint64_t offset, std::string_view bytes) const {
  TROUPE_TRY(const auto where, at(place));
  TROUPE_TRY(check_name(name));
  return write_piece(serialization::copy_directory(checkpoints_in(where), step) / name, offset, bytes,
                     first_piece::keeps);
}

expected<void> mirror_shelf::adopt(const std::string& place, step_id step) const {
  TROUPE_TRY(const auto where, at(place));
  auto adopted = serialization::adopt_copy(checkpoints_in(where), step);
  if (!adopted && adopted.error().code != errc::already_exists)
    return fail(std::move(adopted.error()));
  return {};
}

expected<void> mirror_shelf::remove(const std::string& place, step_id step) const {
  TROUPE_TRY(const auto where, at(place));
  return directory_mirror{where}.remove(step, {});
}

expected<void> mirror_shelf::write_file(const std::string& place, const std::string& name, std::uint64_t offset,
                                        std::string_view bytes) const {
  TROUPE_TRY(const auto where, at(place));
  TROUPE_TRY(check_name(name));
  TROUPE_TRY(serialization::create_directories_durably(where));
  return write_piece(temporary_of(where / name), offset, bytes, first_piece::empties);
}

expected<void> mirror_shelf::finish_file(const std::string& place, const std::string& name) const {
  TROUPE_TRY(const auto where, at(place));
  TROUPE_TRY(check_name(name));
  const auto temporary = temporary_of(where / name);
  {
    TROUPE_TRY(auto file, local_files().open(temporary));
    TROUPE_TRY(file->sync());
  }
  TROUPE_TRY(local_files().rename(temporary, where / name, serialization::if_taken::replace));
  return local_files().sync_directory(where);
}

expected<std::vector<mirror_file>> mirror_shelf::files(const std::string& place, step_id step) const {
  TROUPE_TRY(const auto where, at(place));
  const auto directory = checkpoints_in(where) / serialization::checkpoint_name(step);
  TROUPE_TRY(const auto entries, local_files().list(directory));
  std::vector<mirror_file> result;
  for (const auto& each : entries) {
    if (each.kind != serialization::entry_kind::file)
      continue;
    TROUPE_TRY(const auto file, local_files().open(directory / each.name));
    TROUPE_TRY(const auto size, file->size_bytes());
    result.push_back({each.name, size});
  }
  return result;
}

expected<std::string> mirror_shelf::read(const std::string& place, const std::string& name, std::uint64_t offset,
                                         std::size_t limit) const {
  TROUPE_TRY(const auto where, at(place));
  if (!is_plain_path(name))
    return fail(errc::invalid_argument, fmt::format("'{}' is no name of a file", name));
  const auto path = where / name;
  const collectives::unique_fd opened{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
  if (!opened)
    return fail(file_error(errno, "opening", path));
  auto result = std::string(std::min(limit, mirror_piece_bytes), '\0');
  const auto got = ::pread(opened.get(), result.data(), result.size(), static_cast<off_t>(offset));
  if (got < 0)
    return fail(file_error(errno, "reading", path));
  result.resize(static_cast<std::size_t>(got));
  return result;
}

expected<std::string> mirror_shelf::move_aside(const std::string& place) const {
  TROUPE_TRY(const auto where, at(place));
  TROUPE_TRY(const auto moved, directory_mirror{where}.move_aside({}));
  if (moved.empty())
    return std::string{};
  return place + moved.substr(where.string().size());
}

} // namespace troupe::runtime
