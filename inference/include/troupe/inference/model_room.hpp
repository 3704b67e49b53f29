#pragma once

#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

/// Models in a framework's own format, whose size changes, in tracked tensors, whose size does not: the length (8
/// bytes, little-endian), the bytes, zeros.
namespace troupe::inference {

/// Writes a model, its length in front, into memory of a fixed size; the rest becomes zeros. Fails with
/// `errc::unsatisfiable` where there is not enough.
[[nodiscard]] expected<void> put_model(std::span<const std::byte> model, std::span<std::byte> room);

/// The model in such memory: a part of it. Fails with `errc::damaged` for a length that cannot be.
[[nodiscard]] expected<std::span<const std::byte>> get_model(std::span<const std::byte> room);

/// The model that a checkpoint holds in the tensor of this name. Fails with `errc::not_found` where there is none, and
/// as reading does.
[[nodiscard]] expected<std::vector<std::byte>> read_model(const serialization::checkpoint& source,
                                                          std::string_view tensor);

/// The size of that tensor in the latest checkpoint that a run goes on from, if it does: it has the room that it was
/// begun with, whatever its number of rounds is now.
[[nodiscard]] std::optional<std::uint64_t> room_of_latest(const run_config& run, std::string_view tensor);

} // namespace troupe::inference
