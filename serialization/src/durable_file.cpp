#include <troupe/serialization/durable_file.hpp>

#include <troupe/serialization/digest.hpp>

#include "file.hpp"

#include <string>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

expected<void> write_new(const fs::path& path, std::string_view text) {
  auto target = file::create(path);
  if (!target)
    return fail(std::move(target.error()));
  if (auto reserved = target->reserve(text.size()); !reserved)
    return reserved;
  if (auto written = target->write_at(0, bytes_of(text)); !written)
    return written;
  return target->sync();
}

expected<void> rename_file(const fs::path& from, const fs::path& to) {
  auto code = std::error_code{};
  fs::rename(from, to, code);
  if (code)
    return fail(filesystem_error(code, "replacing", to));
  return {};
}

} // namespace

expected<void> write_file_durably(const fs::path& path, std::string_view text) {
  auto temporary = path.parent_path() / ('.' + path.filename().string() + '.' + random_hex(8) + ".tmp");
  auto result = write_new(temporary, text);
  if (result)
    result = rename_file(temporary, path);
  if (result)
    return sync_directory(path.parent_path());
  auto ignored = std::error_code{};
  fs::remove(temporary, ignored);
  return result;
}

expected<void> create_directories_durably(const fs::path& path) {
  auto code = std::error_code{};
  if (path.empty() || fs::is_directory(path, code))
    return {};
  // "a/b/" names "b" in "a/b"; what is to be made is "b" in "a".
  if (!path.has_filename())
    return create_directories_durably(path.parent_path());
  if (auto above = create_directories_durably(path.parent_path()); !above)
    return above;
  fs::create_directory(path, code);
  if (code)
    return fail(filesystem_error(code, "making the directory", path));
  return sync_directory(path.parent_path());
}

} // namespace troupe::serialization
