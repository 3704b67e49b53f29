#pragma once

#include <troupe/config/run.hpp>
#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

/// Stores models in a framework's own format, whose size varies, in tracked tensors, whose size is fixed: the length (8
/// bytes, little-endian), the bytes, zeros.
namespace troupe::inference {

/// Writes a model, preceded by its length, into memory of a fixed size; the rest becomes zeros. Fails with
/// `errc::unsatisfiable` if it does not fit.
[[nodiscard]] expected<void> put_model(std::span<const std::byte> model, std::span<std::byte> storage);

/// The model in such memory, as a view. Fails with `errc::damaged` for an impossible length.
[[nodiscard]] expected<std::span<const std::byte>> get_model(std::span<const std::byte> storage);

/// The model in the checkpoint's tensor of this name. Fails with `errc::not_found` if there is none, and as reading
/// does.
[[nodiscard]] expected<std::vector<std::byte>> read_model(const serialization::checkpoint& source,
                                                          std::string_view tensor);

/// The size of that tensor in the checkpoint from which the run will resume, if there is one: a run keeps its initial
/// capacity even if its number of rounds changes.
[[nodiscard]] std::optional<std::uint64_t> latest_capacity(const run_config& run, std::string_view tensor);

} // namespace troupe::inference
