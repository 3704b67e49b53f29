#pragma once

namespace troupe::serialization {

/// What happens to a file of the name that is to be written: it stays, and writing fails with `errc::already_exists`,
/// or the new one takes its place in one step.
enum class existing_file { keep, replace };

} // namespace troupe::serialization
