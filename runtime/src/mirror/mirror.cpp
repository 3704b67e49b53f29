#include <troupe/runtime/mirror.hpp>

#include "mirror/directory_mirror.hpp"
#include "mirror/node_mirror.hpp"
#include "mirror/rclone_mirror.hpp"

#include <troupe/mirror_place.hpp>

#include <fmt/format.h>

#include <utility>

namespace troupe::runtime {

expected<std::unique_ptr<actors::mirror_storage>> open_mirror(const std::string& place, const mirror_access& how) {
  TROUPE_TRY(validate_mirror_place(place));
  if (auto node = node_place_of(place)) {
    if (node->path.empty())
      return fail(errc::invalid_argument, fmt::format("'{}' is no run at a node's mirror: add /NAME", place));
    return std::make_unique<node_mirror>(std::move(*node), how.nodes);
  }
  const auto remote = rclone_path_of(place);
  if (!remote)
    return std::make_unique<directory_mirror>(place);
  TROUPE_TRY(auto program, rclone_program::find(how.rclone));
  return std::make_unique<rclone_mirror>(place, *remote, std::move(program));
}

} // namespace troupe::runtime
