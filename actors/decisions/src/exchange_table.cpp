#include <troupe/actors/decisions/exchange_table.hpp>

namespace troupe::actors {

bool exchange_table::begin(const generation_started& message) {
  const auto is_announced = message.generation == current_.generation && current_.world_size == 0;
  if (message.run == current_.run && message.generation <= current_.generation && !is_announced)
    return false;
  current_ = message;
  pending_.clear();
  ended_.clear();
  return true;
}

expected<std::optional<exchange_result>> exchange_table::add(const exchange_request& message) {
  if (message.run != current_.run || message.generation != current_.generation)
    return fail(errc::stale_generation, "rank " + std::to_string(message.rank.value) + " of generation " +
                                            std::to_string(message.generation.value) + " came to generation " +
                                            std::to_string(current_.generation.value));
  if (ended_.contains(message.sequence))
    return fail(errc::aborted, "exchange " + std::to_string(message.sequence) + " was given up");
  const auto size = message.group_size == 0 ? current_.world_size : message.group_size;
  if (message.rank.value >= size)
    return fail(errc::invalid_argument, "rank " + std::to_string(message.rank.value) + " is not among the " +
                                            std::to_string(size) + " ranks of exchange " +
                                            std::to_string(message.sequence) + " in generation " +
                                            std::to_string(current_.generation.value));
  auto& pending = pending_.try_emplace(message.sequence, contributions{size, {}}).first->second;
  if (pending.group_size != size)
    return fail(errc::invalid_argument, "rank " + std::to_string(message.rank.value) + " takes exchange " +
                                            std::to_string(message.sequence) + " for one of " + std::to_string(size) +
                                            " ranks, others for one of " + std::to_string(pending.group_size));
  auto [where, fresh] = pending.blobs.emplace(message.rank.value, message.blob);
  if (!fresh && where->second != message.blob)
    return fail(errc::invalid_argument, "rank " + std::to_string(message.rank.value) +
                                            " contributed twice, and differently, to exchange " +
                                            std::to_string(message.sequence));
  if (pending.blobs.size() < size)
    return std::optional<exchange_result>{};
  exchange_result result{current_.generation, {}};
  for (auto& [rank, blob] : pending.blobs)
    result.blobs.push_back(blob);
  return std::optional{std::move(result)};
}

bool exchange_table::end(const exchange_ended& message) {
  if (message.run != current_.run || message.generation != current_.generation)
    return false;
  pending_.erase(message.sequence);
  return ended_.insert(message.sequence).second;
}

} // namespace troupe::actors
