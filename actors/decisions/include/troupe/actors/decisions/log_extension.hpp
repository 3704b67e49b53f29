#pragma once

#include <troupe/types.hpp>

#include <iosfwd>
#include <optional>

namespace troupe::actors {

/// Whether the log `ours` has all that `theirs` tells: each of its whole lines, in any order. With `until`, lines of a
/// later "step" need not be there, nor those without one. Reads line by line, and remembers eight bytes for each of
/// `ours`.
[[nodiscard]] bool extends_log(std::istream& ours, std::istream& theirs, std::optional<step_id> until = {});

} // namespace troupe::actors
