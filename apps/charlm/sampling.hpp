#pragma once

#include <charlm/model.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace charlm {

/// `bytes` bytes that the model writes after `prompt` (without the prompt). Each is drawn from the softmax of the
/// logits divided by `temperature`; at 0 or below it is the likeliest byte, the smaller one where two are equal. A
/// prompt shorter than the context counts as preceded by newlines. The same arguments give the same text; a longer one
/// begins with the shorter one. Throws `troupe::exception` if the model's logits are not numbers.
[[nodiscard]] std::string sample(const model& from, std::string_view prompt, std::size_t bytes, double temperature,
                                 std::uint64_t seed);

/// The text as a terminal may show it: newlines, tabs, printable ASCII and well-formed UTF-8 stay, every other byte
/// becomes '?'.
[[nodiscard]] std::string printable(std::string_view text);

} // namespace charlm
