#pragma once

namespace troupe::serialization {

/// What to do if the file to be written already exists: keep it and fail with `errc::already_exists`, or replace it
/// atomically.
enum class existing_file { keep, replace };

} // namespace troupe::serialization
