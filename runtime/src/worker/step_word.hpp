#pragma once

#include <troupe/types.hpp>

#include <atomic>
#include <cstdint>

namespace troupe::runtime {

enum class step_phase : std::uint8_t {
  /// Computing contributions, or reducing them.
  computing = 0,
  /// The reduced gradient is here.
  reduced = 1,
  /// The barrier is behind: the step counts as applied.
  committed = 2,
  /// An abort came first: the step is not applied until somebody decides.
  frozen = 3,
  /// An abort came after the barrier: the step is applied, and no other begins until somebody decides.
  committed_and_frozen = 4,
};

/// A worker's place in the protocol as one atomic word (generation, step, phase), in which leaving the barrier and
/// being aborted are one compare-exchange each, so that one of them wins (design, section 5).
class step_word {
 public:
  struct value {
    std::uint32_t generation = 0;
    std::uint64_t step = 0;
    step_phase phase = step_phase::computing;

    bool operator==(const value&) const = default;
  };

  /// Begins a step; false after an abort. From the training thread.
  bool begin(generation_id generation, step_id step) noexcept {
    auto old = word_.load(std::memory_order_acquire);
    if (is_frozen(unpack(old).phase))
      return false;
    return word_.compare_exchange_strong(
        old, pack({static_cast<std::uint32_t>(generation.value), step.value, step_phase::computing}));
  }

  /// computing -> reduced; false when an abort was faster.
  bool reduced() noexcept { return advance(step_phase::computing, step_phase::reduced); }

  /// reduced -> committed; false when an abort was faster.
  bool pass() noexcept { return advance(step_phase::reduced, step_phase::committed); }

  /// An abort: no step passes, and none begins, until `restart`. Returns what the worker had reached. From any thread.
  value freeze() noexcept {
    auto old = word_.load(std::memory_order_acquire);
    for (;;) {
      auto now = unpack(old);
      if (is_frozen(now.phase))
        return now;
      auto frozen = now;
      frozen.phase = now.phase == step_phase::committed ? step_phase::committed_and_frozen : step_phase::frozen;
      if (word_.compare_exchange_weak(old, pack(frozen)))
        return now;
    }
  }

  /// A new generation: everything up to `step` is applied. Nobody freezes at the same time.
  void restart(generation_id generation, step_id step) noexcept {
    word_.store(pack({static_cast<std::uint32_t>(generation.value), step.value, step_phase::committed}));
  }

  [[nodiscard]] value load() const noexcept { return unpack(word_.load(std::memory_order_acquire)); }

 private:
  static constexpr bool is_frozen(step_phase x) noexcept {
    return x == step_phase::frozen || x == step_phase::committed_and_frozen;
  }

  // 19 bits of generation, 42 of step, 3 of phase.
  static constexpr std::uint64_t pack(value x) noexcept {
    return (std::uint64_t{x.generation} << 45) | ((x.step & ((std::uint64_t{1} << 42) - 1)) << 3) |
           static_cast<std::uint64_t>(x.phase);
  }

  static constexpr value unpack(std::uint64_t x) noexcept {
    return {static_cast<std::uint32_t>(x >> 45), (x >> 3) & ((std::uint64_t{1} << 42) - 1),
            static_cast<step_phase>(x & 7)};
  }

  bool advance(step_phase from, step_phase to) noexcept {
    auto old = word_.load(std::memory_order_acquire);
    auto next = unpack(old);
    if (next.phase != from)
      return false;
    next.phase = to;
    return word_.compare_exchange_strong(old, pack(next));
  }

  std::atomic<std::uint64_t> word_{0};
};

} // namespace troupe::runtime
