#include "mirror/directory_mirror.hpp"

#include "mirror/file_copy.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/copy.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <tuple>

namespace troupe::runtime {

namespace fs = std::filesystem;
using serialization::local_files;

namespace {

std::string absolute_text(const fs::path& place) {
  auto ignored = std::error_code{};
  auto result = fs::absolute(place, ignored).lexically_normal();
  return result.has_filename() ? result.string() : result.parent_path().string();
}

/// A manifest has the digests of all parts: checkpoints with equal ones are equal.
bool have_equal_manifests(const fs::path& a, const fs::path& b) {
  const auto content = [](const fs::path& checkpoint) {
    auto in = std::ifstream{checkpoint / serialization::manifest_file_name, std::ios::binary};
    return std::string{std::istreambuf_iterator<char>{in}, {}};
  };
  const auto of_a = content(a);
  return !of_a.empty() && of_a == content(b);
}

} // namespace

directory_mirror::directory_mirror(const fs::path& place) : place_(absolute_text(place)) {}

expected<actors::mirror_content> directory_mirror::list(const std::stop_token&) {
  actors::mirror_content result;
  TROUPE_TRY(const auto found, serialization::list_checkpoints(checkpoints()));
  for (const auto& each : found)
    result.complete.push_back(each.step);
  auto entries = local_files().list(checkpoints());
  if (!entries)
    return entries.error().code == errc::not_found ? result
                                                   : expected<actors::mirror_content>{fail(std::move(entries.error()))};
  for (const auto& each : *entries)
    if (const auto step = serialization::parse_checkpoint_name(each.name);
        step && std::ranges::find(result.complete, *step) == result.complete.end())
      result.incomplete.push_back(*step);
  return result;
}

expected<void> directory_mirror::upload(const fs::path& checkpoint, const std::stop_token& stop) {
  TROUPE_TRY(serialization::create_directories_durably(checkpoints()));
  // What an earlier driver left would take the space that this copy needs.
  std::ignore = serialization::remove_abandoned(checkpoints());
  const auto there = checkpoints() / checkpoint.filename();
  // Another driver of this run may have saved another state in this step.
  if (auto ignored = std::error_code{}; fs::exists(there, ignored) && !have_equal_manifests(checkpoint, there)) {
    // What is there goes only for something good.
    TROUPE_TRY(const auto source, serialization::checkpoint::open(checkpoint));
    TROUPE_TRY(source.verify(serialization::read_back::cached, stop));
    TROUPE_TRY(serialization::remove_checkpoint(there));
  }
  auto copied = serialization::copy_checkpoint(checkpoint, checkpoints(), stop);
  if (!copied && copied.error().code != errc::already_exists)
    return fail(std::move(copied.error()));
  return {};
}

expected<void> directory_mirror::remove(step_id step, const std::stop_token&) {
  auto removed = serialization::remove_checkpoint(checkpoints() / serialization::checkpoint_name(step));
  if (!removed && removed.error().code != errc::not_found)
    return removed;
  return {};
}

expected<void> directory_mirror::upload_files(const fs::path& from, const std::vector<std::string>& names,
                                              const std::stop_token& stop) {
  TROUPE_TRY(serialization::create_directories_durably(root()));
  for (const auto& name : names) {
    auto copied = copy_file(from / name, root() / name, stop);
    if (!copied && copied.error().code != errc::not_found)
      return copied;
  }
  return {};
}

expected<void> directory_mirror::fetch(step_id step, const fs::path& checkpoints_directory,
                                       const std::stop_token& stop) {
  TROUPE_TRY(serialization::copy_checkpoint(checkpoints() / serialization::checkpoint_name(step), checkpoints_directory,
                                            stop));
  return {};
}

expected<void> directory_mirror::fetch_file(const std::string& name, const fs::path& to, const std::stop_token& stop) {
  return copy_file(root() / name, to, stop);
}

expected<std::string> directory_mirror::move_aside(const std::stop_token&) {
  TROUPE_TRY(const auto found, local_files().look_at(root()));
  if (!found)
    return std::string{};
  for (unsigned number = 1;; ++number) {
    const auto target = fs::path{fmt::format("{}.{}", place_, number)};
    auto renamed = local_files().rename(root(), target, serialization::if_taken::refuse);
    if (!renamed && renamed.error().code == errc::already_exists)
      continue;
    TROUPE_TRY(std::move(renamed));
    TROUPE_TRY(local_files().sync_directory(target.parent_path()));
    return target.string();
  }
}

} // namespace troupe::runtime
