#include <troupe/actors/decisions/exchange_table.hpp>

#include <fmt/format.h>

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
    return fail(errc::stale_generation,
                fmt::format("rank {} of generation {} takes part in an exchange of generation {}", message.rank,
                            message.generation, current_.generation));
  if (ended_.contains(message.sequence))
    return fail(errc::aborted, fmt::format("exchange {} was given up", message.sequence));
  const auto size = message.group_size == 0 ? current_.world_size : message.group_size;
  if (message.rank.value >= size)
    return fail(errc::invalid_argument, fmt::format("rank {} is not among the {} ranks of exchange {} in generation {}",
                                                    message.rank, size, message.sequence, current_.generation));
  auto& pending = pending_.try_emplace(message.sequence, contributions{size, {}}).first->second;
  if (pending.group_size != size)
    return fail(errc::invalid_argument, fmt::format("rank {} expects {} ranks in exchange {}, others expect {}",
                                                    message.rank, size, message.sequence, pending.group_size));
  auto [where, fresh] = pending.blobs.emplace(message.rank.value, message.blob);
  if (!fresh && where->second != message.blob)
    return fail(errc::invalid_argument, fmt::format("rank {} contributed twice, and differently, to exchange {}",
                                                    message.rank, message.sequence));
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
