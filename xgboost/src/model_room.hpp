#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace troupe::xgboost {

/// Writes a model, its length in front, into memory of a fixed size; the rest becomes zeros. Fails with
/// `errc::unsatisfiable` where there is not enough.
[[nodiscard]] expected<void> put_model(std::span<const std::byte> model, std::span<std::byte> room);

/// The model in such memory: a part of it. Fails with `errc::damaged` for a length that cannot be.
[[nodiscard]] expected<std::span<const std::byte>> get_model(std::span<const std::byte> room);

/// The model that a checkpoint holds. Fails with `errc::not_found` where it holds none, and as reading does.
[[nodiscard]] expected<std::vector<std::byte>> read_model(const serialization::checkpoint& source);

} // namespace troupe::xgboost
