#pragma once

#include <string_view>

namespace troupe::runtime {

/// page.html. NONCE in it is a number that the answer's policy for scripts and styles names; DATA is null, or the story
/// of one run.
[[nodiscard]] std::string_view page_template();

} // namespace troupe::runtime
