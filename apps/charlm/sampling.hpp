#pragma once

#include <charlm/model.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace charlm {

/// Generates `bytes` bytes that follow `prompt`, which is not part of the result. Each is drawn from the softmax of the
/// logits divided by `temperature`. At 0 or below the likeliest byte is taken, the smaller one of a tie. A prompt
/// shorter than the context is preceded by newlines. The same arguments give the same text, and a longer text starts
/// with the shorter one. Throws `troupe::exception` if the model's logits are not finite.
[[nodiscard]] std::string sample(const model& from, std::string_view prompt, std::size_t bytes, double temperature,
                                 std::uint64_t seed);

/// Makes a text safe for a terminal: keeps newlines, tabs, printable ASCII and well-formed UTF-8, and replaces every
/// other byte by '?'.
[[nodiscard]] std::string printable(std::string_view text);

} // namespace charlm
