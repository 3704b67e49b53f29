#pragma once

#include "worker/group/worker_group.hpp"
#include "worker/step/gradient_exchange.hpp"
#include "worker/step/step_bucket.hpp"

#include <troupe/messages/worker.hpp>
#include <troupe/tracked_state.hpp>
#include <troupe/train_context.hpp>
#include <troupe/types.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::runtime {

/// Digests what the steps of a loop reduced, and the state after them, for the ledger (`run_config::keep_ledger`).
/// Used by the training thread.
class step_digester {
 public:
  /// `names` are the gradient's tensors. The references outlive this object.
  step_digester(const loop_plan& plan, const step_bucket& bucket, std::vector<gradient_tensor> names,
                worker_group& group);

  /// The share of rank `mine` of `ranks`: its own pieces and those of the next rank. Call it after the body has applied
  /// what `exchange` holds. Throws `exception` where memory of a GPU cannot be read.
  [[nodiscard]] step_digest digest(step_id step, const gradient_exchange& exchange, const tracked_state& state,
                                   rank_id mine, std::size_t ranks);

 private:
  /// In bytes of the bucket.
  struct piece {
    std::uint64_t first = 0;
    std::uint64_t size = 0;
  };

  [[nodiscard]] std::uint64_t digest_of(const piece& which, const reduced_memory& reduced);

  worker_group& group_;
  std::vector<piece> pieces_;
  /// Empty once they are reported.
  std::vector<std::string> names_;
  /// A piece of a gradient in the memory of a GPU.
  std::vector<std::byte> copy_;
};

} // namespace troupe::runtime
