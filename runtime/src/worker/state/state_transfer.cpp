#include "worker/state/state_transfer.hpp"
#include "worker/state/state_chunks.hpp"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace troupe::runtime {

namespace {

/// As CBOR: a metric may be no number, which JSON text cannot say.
std::vector<std::uint8_t> description_of(const tracked_state& state, const transferred_extras& extras) {
  return nlohmann::json::to_cbor({{"values", state.values()}, {"metrics", extras.last_metrics}});
}

expected<void> give(collectives::communicator& group, rank_id joiner, std::size_t mine, std::size_t sources,
                    tracked_state& state, const std::vector<std::uint8_t>& text) {
  if (mine == 0) {
    auto size = std::uint64_t{text.size()};
    TROUPE_TRY(group.send(joiner, std::as_bytes(std::span{&size, 1})));
    TROUPE_TRY(group.send(joiner, std::as_bytes(std::span{text})));
  }
  auto carrier = chunk_carrier{state};
  auto chunks = chunks_of(state);
  for (auto i = mine; i < chunks.size(); i += sources)
    TROUPE_TRY(carrier.send(group, joiner, chunks[i]));
  return {};
}

expected<void> take(collectives::communicator& group, const std::vector<rank_id>& sources, tracked_state& state,
                    transferred_extras& extras) {
  std::uint64_t size = 0;
  TROUPE_TRY(group.receive(sources[0], std::as_writable_bytes(std::span{&size, 1})));
  std::vector<std::uint8_t> text(size);
  TROUPE_TRY(group.receive(sources[0], std::as_writable_bytes(std::span{text})));
  auto carrier = chunk_carrier{state};
  auto chunks = chunks_of(state);
  for (std::size_t i = 0; i < chunks.size(); ++i)
    TROUPE_TRY(carrier.receive(group, sources[i % sources.size()], chunks[i]));
  auto beside = nlohmann::json::from_cbor(text, true, false);
  if (beside.is_discarded())
    return fail(errc::internal, "the state that was sent cannot be read: an invariant of Troupe is broken");
  state.values() = beside.at("values");
  extras.last_metrics = beside.at("metrics").get<metric_map>();
  return {};
}

} // namespace

expected<void> transfer_state(collectives::communicator& group, std::span<const rank_id> joiners, tracked_state& state,
                              transferred_extras& extras) {
  std::vector<rank_id> sources;
  for (std::uint32_t rank = 0; rank < group.world_size(); ++rank)
    if (std::ranges::find(joiners, rank_id{rank}) == joiners.end())
      sources.push_back(rank_id{rank});
  auto mine = std::ranges::find(sources, group.rank());
  if (mine == sources.end())
    return take(group, sources, state, extras);
  auto text = description_of(state, extras);
  for (auto joiner : joiners)
    TROUPE_TRY(give(group, joiner, static_cast<std::size_t>(mine - sources.begin()), sources.size(), state, text));
  return {};
}

} // namespace troupe::runtime
