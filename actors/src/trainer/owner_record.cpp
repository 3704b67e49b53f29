#include "trainer/owner_record.hpp"

#include <troupe/serialization/files/durable_file.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>

#include <fstream>
#include <iterator>
#include <string>

namespace troupe::actors {

namespace fs = std::filesystem;

namespace {

constexpr auto file_name = "owner.json";

/// Files go to a mirror under their own names.
expected<serialization::temporary_directory> make_directory(const fs::path& scratch) {
  auto path = scratch / ".mirrored-owner";
  TROUPE_TRY(serialization::create_directories_durably(path));
  return serialization::temporary_directory{std::move(path)};
}

} // namespace

expected<std::optional<mirror_owner>> read_owner(mirror_storage& mirror, const fs::path& scratch,
                                                 const std::stop_token& stop) {
  TROUPE_TRY(const auto directory, make_directory(scratch));
  auto fetched = mirror.fetch_file(file_name, directory.path() / file_name, stop);
  if (!fetched && fetched.error().code == errc::not_found)
    return std::nullopt;
  TROUPE_TRY(std::move(fetched));
  auto in = std::ifstream{directory.path() / file_name};
  return parse_mirror_owner(std::string{std::istreambuf_iterator<char>{in}, {}});
}

expected<void> write_owner(mirror_storage& mirror, const fs::path& scratch, const mirror_owner& owner,
                           const std::stop_token& stop) {
  TROUPE_TRY(const auto directory, make_directory(scratch));
  TROUPE_TRY(serialization::write_file_durably(directory.path() / file_name, to_json(owner) + "\n"));
  return mirror.upload_files(directory.path(), {file_name}, stop);
}

} // namespace troupe::actors
