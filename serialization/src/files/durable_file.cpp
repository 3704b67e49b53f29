#include <troupe/serialization/files/durable_file.hpp>

#include <troupe/serialization/files/digest.hpp>

#include "files/hidden_sibling.hpp"

#include <cstdint>
#include <tuple>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

expected<void> write_new(const fs::path& path, const std::function<expected<void>(const text_sink&)>& source,
                         file_system& files) {
  TROUPE_TRY(auto target, files.create(path));
  std::uint64_t written = 0;
  TROUPE_TRY(source([&](std::string_view piece) -> expected<void> {
    TROUPE_TRY(target->reserve(written + piece.size()));
    TROUPE_TRY(target->write_at(written, bytes_of(piece)));
    written += piece.size();
    return {};
  }));
  return target->sync();
}

bool is_directory(const expected<std::optional<entry_kind>>& found) {
  return found && *found == entry_kind::directory;
}

} // namespace

expected<void> write_file_durably(const fs::path& path, std::string_view text, file_system& files) {
  return write_file_durably(
      path, [text](const text_sink& sink) { return sink(text); }, files);
}

expected<void> write_file_durably(const fs::path& path, const std::function<expected<void>(const text_sink&)>& source,
                                  file_system& files) {
  auto temporary = hidden_sibling(path, ".tmp");
  auto result = write_new(temporary, source, files);
  if (result)
    result = files.rename(temporary, path, if_taken::replace);
  if (result)
    return files.sync_directory(path.parent_path());
  std::ignore = files.remove(temporary);
  return result;
}

expected<void> create_directories_durably(const fs::path& path, file_system& files) {
  if (path.empty())
    return {};
  // "a/b/" has an empty file name; its parent path "a/b" is the directory to create.
  if (!path.has_filename() && path.has_relative_path())
    return create_directories_durably(path.parent_path(), files);
  auto found = files.look_at(path);
  if (!found)
    return fail(std::move(found.error()));
  if (is_directory(found))
    return {};
  auto above = path.parent_path();
  // The process that created the parent may have been killed before it synced the entry. We may lack permission to open
  // the grandparent, so errors are ignored.
  if (is_directory(files.look_at(above)))
    std::ignore = files.sync_directory(above.parent_path());
  TROUPE_TRY(create_directories_durably(above, files));
  auto made = files.make_directory(path);
  if (!made && !(made.error().code == errc::already_exists && is_directory(files.look_at(path))))
    return made;
  return files.sync_directory(above);
}

} // namespace troupe::serialization
