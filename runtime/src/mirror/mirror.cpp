#include <troupe/runtime/mirror.hpp>

#include "mirror/directory_mirror.hpp"
#include "mirror/rclone_mirror.hpp"

#include <troupe/mirror_place.hpp>

#include <utility>

namespace troupe::runtime {

expected<std::unique_ptr<actors::mirror_storage>> open_mirror(const std::string& place, const std::string& rclone) {
  TROUPE_TRY(validate_mirror_place(place));
  const auto remote = rclone_path_of(place);
  if (!remote)
    return std::make_unique<directory_mirror>(place);
  TROUPE_TRY(auto program, rclone_program::find(rclone));
  return std::make_unique<rclone_mirror>(place, *remote, std::move(program));
}

} // namespace troupe::runtime
