#include "trainer/kept_log.hpp"

#include <troupe/actors/decisions/log_extension.hpp>
#include <troupe/serialization/files/durable_file.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>

#include <fmt/format.h>

#include <fstream>

namespace troupe::actors {

namespace fs = std::filesystem;

namespace {

bool extends(const fs::path& ours, const fs::path& theirs, std::optional<step_id> until) {
  auto in_ours = std::ifstream{ours};
  auto in_theirs = std::ifstream{theirs};
  return extends_log(in_ours, in_theirs, until);
}

} // namespace

expected<std::string> keep_mirrored_log(mirror_storage& mirror, const fs::path& root, const std::string& name,
                                        std::optional<step_id> until, const std::stop_token& stop) {
  const auto directory = serialization::temporary_directory{root / ".mirrored-logs"};
  TROUPE_TRY(serialization::create_directories_durably(directory.path()));
  const auto theirs = directory.path() / name;
  auto fetched = mirror.fetch_file(name, theirs, stop);
  if (!fetched && fetched.error().code == errc::not_found)
    return std::string{};
  TROUPE_TRY(std::move(fetched));
  if (extends(root / name, theirs, until))
    return std::string{};
  for (unsigned number = 1;; ++number) {
    auto aside = fmt::format("{}.{}", name, number);
    auto taken = mirror.fetch_file(aside, directory.path() / aside, stop);
    if (taken)
      continue;
    if (taken.error().code != errc::not_found)
      return fail(std::move(taken.error()));
    TROUPE_TRY(serialization::local_files().rename(theirs, directory.path() / aside, serialization::if_taken::replace));
    TROUPE_TRY(mirror.upload_files(directory.path(), {aside}, stop));
    return aside;
  }
}

} // namespace troupe::actors
