#pragma once

#include <troupe/error.hpp>

#include <caf/error.hpp>

namespace troupe::actors {

/// Carries an error through CAF: the code as an integer and the message, as `troupe::error`, in the context.
[[nodiscard]] caf::error to_caf(const error& reason);

/// The inverse. A foreign `caf::error` (a request's time-out, a peer that is down) becomes the `errc` that asks for the
/// same reaction, with CAF's own text.
[[nodiscard]] error from_caf(const caf::error& reason);

} // namespace troupe::actors
