#pragma once

#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::runtime {

/// More workers than a node can hold; an absurd number must not make it allocate.
inline constexpr std::uint32_t max_local_world_size = 4096;

/// The place that a worker claims among the workers of its node in one generation.
struct descriptor_offer {
  generation_id generation;
  std::uint32_t local_rank = 0;
  std::uint32_t local_world_size = 0;
};

/// What a worker is told instead of the others' descriptors.
struct offer_refusal {
  worker_id worker;
  generation_id generation;
  error reason;
};

/// What follows from an offer.
struct offer_decision {
  /// The offer begins a generation: whatever belongs to an older one is over.
  bool new_generation = false;

  /// The offer has its place: keep the descriptors that came with it.
  bool placed = false;

  /// Not only the one who offers: also those who wait for an exchange that can no longer be.
  std::vector<offer_refusal> refused;

  /// All workers of the exchange, in the order of their local ranks, once the last one has its place; else empty.
  std::vector<worker_id> complete;
};

/// Decides which offers of one run complete which exchange. Only the newest generation has an exchange: an offer of a
/// newer one ends the older one's, and an older offer is refused. Knows no descriptors.
class descriptor_table {
 public:
  /// Each worker offers once per generation. Offers that contradict each other end the exchange for all, with
  /// `errc::mismatch`: it could only be waited for in vain.
  [[nodiscard]] offer_decision offer(worker_id worker, const descriptor_offer& what);

  /// The worker is gone. An exchange that waits leaves its place open, and so does not come about.
  void leave(worker_id worker);

  /// Whether the worker waits for an exchange.
  [[nodiscard]] bool waits(worker_id worker) const;

 private:
  void begin(const descriptor_offer& what);
  [[nodiscard]] std::optional<error> contradiction(worker_id worker, const descriptor_offer& what) const;
  void refuse_all_waiting(const error& reason, offer_decision& result);

  /// Of the newest generation, which is 0 before the first offer.
  generation_id newest_;
  std::vector<std::optional<worker_id>> places_;
  bool complete_ = false;
  std::optional<error> failure_;
};

} // namespace troupe::runtime
