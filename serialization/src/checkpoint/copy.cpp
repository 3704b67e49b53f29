#include <troupe/serialization/checkpoint/copy.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>

#include "files/directory_scan.hpp"
#include "files/sized_file.hpp"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

/// Small enough that a copy is given up soon.
constexpr std::uint64_t copy_piece_bytes = std::uint64_t{1} << 20;

/// Copies a file; returns once it is on the device.
expected<void> copy_file(const fs::path& from, const fs::path& to, const std::stop_token& stop, file_system& files) {
  TROUPE_TRY(auto source, open_sized(from, files));
  TROUPE_TRY(auto target, files.create(to));
  TROUPE_TRY(target->reserve(source.size_bytes));
  auto buffer = std::vector<std::byte>(std::min(copy_piece_bytes, source.size_bytes));
  for (std::uint64_t done = 0; done < source.size_bytes;) {
    if (stop.stop_requested())
      return fail(errc::aborted, fmt::format("copying {} was given up", from.string()));
    const auto piece = std::span{buffer}.first(std::min<std::uint64_t>(buffer.size(), source.size_bytes - done));
    TROUPE_TRY(source.source->read_at(done, piece));
    TROUPE_TRY(target->write_at(done, piece));
    done += piece.size();
  }
  return target->sync();
}

/// The manifest last: without it, what is there is no checkpoint.
expected<void> copy_files(const fs::path& from, const fs::path& to, const std::stop_token& stop, file_system& files) {
  TROUPE_TRY(auto source, checkpoint::open(from, files));
  for (const auto& part : source.content().parts)
    TROUPE_TRY(copy_file(from / part.name, to / part.name, stop, files));
  return copy_file(from / manifest_file_name, to / manifest_file_name, stop, files);
}

expected<fs::path> adopt(const fs::path& target, const fs::path& copy, step_id step, const std::stop_token& stop,
                         file_system& files) {
  auto opened = checkpoint::open(copy, files, read_back::from_device);
  if (!opened)
    return fail(errc::damaged, fmt::format("the copy of a checkpoint is not one: {}", opened.error().message));
  if (opened->content().step != step)
    return fail(errc::damaged, fmt::format("{} should be of step {}, and its manifest says {}", copy.string(), step,
                                           opened->content().step));
  // Another program may have written the files, and does not say whether they are on the device.
  for (const auto& part : opened->content().parts) {
    TROUPE_TRY(auto file, files.open(copy / part.name));
    TROUPE_TRY(file->sync());
  }
  TROUPE_TRY(auto file, files.open(copy / manifest_file_name));
  TROUPE_TRY(file->sync());
  TROUPE_TRY(files.sync_directory(copy));
  TROUPE_TRY(opened->verify(read_back::from_device, stop));
  TROUPE_TRY(remove_if_damaged(target, files));
  return publish_checkpoint(copy, target, files);
}

} // namespace

fs::path copy_directory(const fs::path& checkpoints_directory, step_id step) {
  return checkpoints_directory / fmt::format(".{}.copy.tmp", checkpoint_name(step));
}

expected<fs::path> begin_copy(const fs::path& checkpoints_directory, step_id step, file_system& files) {
  auto copy = copy_directory(checkpoints_directory, step);
  TROUPE_TRY(remove_tree(copy, files));
  TROUPE_TRY(files.make_directory(copy));
  return copy;
}

expected<fs::path> adopt_copy(const fs::path& checkpoints_directory, step_id step, const std::stop_token& stop,
                              file_system& files) {
  const auto copy = copy_directory(checkpoints_directory, step);
  auto result = adopt(checkpoints_directory / checkpoint_name(step), copy, step, stop, files);
  if (!result)
    std::ignore = remove_tree(copy, files);
  return result;
}

expected<fs::path> copy_checkpoint(const fs::path& from, const fs::path& checkpoints_directory,
                                   const std::stop_token& stop, file_system& files) {
  const auto step = parse_checkpoint_name(from.filename().string());
  if (!step)
    return fail(errc::invalid_argument, fmt::format("{} has not the name of a checkpoint", from.string()));
  TROUPE_TRY(remove_if_damaged(checkpoints_directory / checkpoint_name(*step), files));
  TROUPE_TRY(const auto copy, begin_copy(checkpoints_directory, *step, files));
  if (auto copied = copy_files(from, copy, stop, files); !copied) {
    std::ignore = remove_tree(copy, files);
    return fail(std::move(copied.error()));
  }
  return adopt_copy(checkpoints_directory, *step, stop, files);
}

} // namespace troupe::serialization
