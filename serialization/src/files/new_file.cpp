#include "files/new_file.hpp"

#include "files/hidden_sibling.hpp"
#include "vocabulary/quote_for_log.hpp"

#include <fmt/format.h>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

error already_exists(const fs::path& path) {
  return {errc::already_exists, fmt::format("{} exists: choose another name, or remove it", path.string())};
}

} // namespace

new_file::new_file(std::unique_ptr<file> target, fs::path path, existing_file existing)
    : target_(std::move(target)), path_(std::move(path)), existing_(existing), temporary_(target_->path()) {}

new_file::new_file(new_file&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::move(other.path_)),
      existing_(other.existing_),
      written_bytes_(other.written_bytes_),
      temporary_(std::exchange(other.temporary_, {})) {}

expected<new_file> new_file::create(const fs::path& path, std::uint64_t size_bytes, existing_file existing) {
  auto code = std::error_code{};
  // Checked early, so that hours of writing are not wasted.
  if (existing == existing_file::keep && fs::exists(fs::symlink_status(path, code)))
    return fail(already_exists(path));
  if (!path.has_filename() || fs::is_directory(path, code))
    return fail(errc::invalid_argument, fmt::format("{} is a directory: give the name of a file", path.string()));
  TROUPE_TRY(auto target, local_files().create(hidden_sibling(path, ".tmp")));
  auto result = new_file{std::move(target), path, existing};
  TROUPE_TRY(result.target_->reserve(size_bytes));
  return result;
}

new_file::~new_file() {
  auto ignored = std::error_code{};
  if (!temporary_.empty())
    fs::remove(temporary_, ignored);
}

expected<void> new_file::append(std::span<const std::byte> bytes) {
  auto written = target_->write_at(written_bytes_, bytes);
  if (written)
    written_bytes_ += bytes.size();
  return written;
}

expected<void> new_file::commit() {
  TROUPE_TRY(target_->sync());
  TROUPE_TRY(rename_to_target(temporary_, path_, existing_));
  temporary_.clear();
  return local_files().sync_directory(path_.parent_path());
}

expected<void> append_tensor(new_file& target, const tensor_spec& spec, const tensor_bytes_source& source) {
  auto size = spec.size_bytes();
  auto taken = std::uint64_t{0};
  auto written = expected<void>{};
  auto read = source([&](std::span<const std::byte> bytes) {
    taken += bytes.size();
    if (written && taken <= size)
      written = target.append(bytes);
  });
  if (!read)
    return read;
  if (written && taken != size)
    return fail(errc::invalid_argument,
                fmt::format("tensor {} has {} bytes, and its source gave {}", quote_for_log(spec.name), size, taken));
  return written;
}

expected<void> rename_to_target(const fs::path& from, const fs::path& to, existing_file existing) {
  auto what = existing == existing_file::keep ? if_taken::refuse : if_taken::replace;
  auto renamed = local_files().rename(from, to, what);
  if (!renamed && renamed.error().code == errc::already_exists)
    return fail(already_exists(to));
  return renamed;
}

} // namespace troupe::serialization
