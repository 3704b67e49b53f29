#include <troupe/actors/exchange_table.hpp>

namespace troupe::actors {

bool exchange_table::begin(const generation_started& message) {
  const auto is_announced = message.generation == current_.generation && current_.world_size == 0;
  if (message.run == current_.run && message.generation <= current_.generation && !is_announced)
    return false;
  current_ = message;
  pending_.clear();
  return true;
}

expected<std::optional<exchange_result>> exchange_table::add(const exchange_request& message) {
  if (message.run != current_.run || message.generation != current_.generation)
    return fail(errc::stale_generation, "rank " + std::to_string(message.rank.value) + " of generation " +
                                            std::to_string(message.generation.value) + " came to generation " +
                                            std::to_string(current_.generation.value));
  if (message.rank.value >= current_.world_size)
    return fail(errc::invalid_argument, "rank " + std::to_string(message.rank.value) + " is not among the " +
                                            std::to_string(current_.world_size) + " ranks of generation " +
                                            std::to_string(current_.generation.value));
  auto& blobs = pending_[message.sequence];
  auto [where, fresh] = blobs.emplace(message.rank.value, message.blob);
  if (!fresh && where->second != message.blob)
    return fail(errc::invalid_argument, "rank " + std::to_string(message.rank.value) +
                                            " contributed twice, and differently, to exchange " +
                                            std::to_string(message.sequence));
  if (blobs.size() < current_.world_size)
    return std::optional<exchange_result>{};
  exchange_result result{current_.generation, {}};
  for (auto& [rank, blob] : blobs)
    result.blobs.push_back(blob);
  return std::optional{std::move(result)};
}

} // namespace troupe::actors
