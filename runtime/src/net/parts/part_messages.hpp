#pragma once

#include <troupe/runtime/secure_stream.hpp>
#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/tensor.hpp>

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <vector>

/// The JSON messages between the two ends of a part stream (see part_stream.hpp).
namespace troupe::runtime {

/// Limits on a peer's texts, before and after it has proved that it knows the secret.
inline constexpr std::size_t greeting_limit_bytes = 4096;
inline constexpr std::size_t text_limit_bytes = std::size_t{64} << 20;

[[nodiscard]] nlohmann::json describe(const error& reason);

/// Reads one text. Returns the error if the text is one made by `describe(error)`.
[[nodiscard]] expected<nlohmann::json> read_answer(secure_stream& stream);

/// The functions that parse throw for a text of another form.
[[nodiscard]] nlohmann::json describe(const serialization::part_report& report);
[[nodiscard]] serialization::part_report parse_report(const nlohmann::json& text);

[[nodiscard]] nlohmann::json describe(const std::vector<tensor_spec>& tensors);
[[nodiscard]] std::vector<tensor_spec> parse_tensors(const nlohmann::json& text);

} // namespace troupe::runtime
