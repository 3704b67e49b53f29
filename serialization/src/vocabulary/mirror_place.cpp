#include <troupe/mirror_place.hpp>

#include <troupe/serialization/checkpoint/directory.hpp>

#include <fmt/format.h>

namespace troupe {

namespace {

constexpr std::string_view rclone_prefix = "rclone:";
constexpr std::string_view removed_node_prefix = "node:";

/// Without slashes at its end; "/" stays.
std::string_view without_trailing_slashes(std::string_view place) {
  while (place.size() > 1 && place.ends_with('/'))
    place.remove_suffix(1);
  return place;
}

/// The text after the last slash, or after the colon that ends a remote's name; and what is before it.
std::pair<std::string_view, std::string_view> split_last(std::string_view place) {
  const auto mark = place.find_last_of("/:");
  if (mark == std::string_view::npos)
    return {{}, place};
  return {place.substr(0, place[mark] == ':' ? mark + 1 : mark), place.substr(mark + 1)};
}

} // namespace

std::optional<std::string> rclone_path_of(std::string_view place) {
  if (!place.starts_with(rclone_prefix))
    return std::nullopt;
  return std::string{place.substr(rclone_prefix.size())};
}

bool is_remote_place(std::string_view place) {
  return place.starts_with(rclone_prefix);
}

expected<void> validate_mirror_place(std::string_view place) {
  if (place.empty())
    return fail(errc::invalid_argument, "it is empty: name a directory or rclone:REMOTE:PATH");
  if (place.find_first_of(std::string_view{"\n\0", 2}) != std::string_view::npos)
    return fail(errc::invalid_argument, "it has a line break or a zero byte");
  if (place.starts_with(removed_node_prefix))
    return fail(
        errc::invalid_argument,
        fmt::format("'{}': nodes keep no mirrors any more. Name a directory that the hosts share, or a host with "
                    "rclone, as in rclone::sftp,host=HOST:runs",
                    place));
  const auto remote = rclone_path_of(place);
  if (!remote)
    return {};
  // A remote that is described on the spot begins with a colon.
  const auto colon = remote->find(':', 1);
  if (remote->empty() || remote->front() == '-' || remote->front() == '/' || colon == std::string::npos)
    return fail(errc::invalid_argument,
                fmt::format("'{}' is not rclone:REMOTE:PATH, as in rclone:s3:bucket/runs", place));
  return {};
}

std::string join_mirror_place(std::string_view place, std::string_view name) {
  place = without_trailing_slashes(place);
  return fmt::format("{}{}{}", place, place.ends_with('/') || place.ends_with(':') ? "" : "/", name);
}

mirrored_run parse_mirrored_run(std::string_view place) {
  auto result = mirrored_run{};
  place = without_trailing_slashes(place);
  if (const auto [above, name] = split_last(place); const auto step = serialization::parse_checkpoint_name(name)) {
    result.step = step;
    place = above;
  }
  if (const auto [above, name] = split_last(place); name == "checkpoints")
    place = above;
  result.place = place;
  return result;
}

} // namespace troupe
