#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace search {

/// The steps at which trials are compared: `first`, `first * factor` and so on below `last`, then `last`. Fails with
/// `errc::invalid_argument` for a factor below 2, and for a first rung of 0 or above the last.
[[nodiscard]] troupe::expected<std::vector<std::uint64_t>> make_rungs(std::uint64_t first, std::uint64_t last,
                                                                      std::uint32_t factor);

/// The decision at a rung, once all trials there have a loss.
struct rung_decision {
  std::uint64_t steps = 0;
  /// The trials that go on, best first.
  std::vector<std::size_t> kept;
  /// The others, best first; those whose loss was no finite number come last.
  std::vector<std::size_t> dropped;

  bool operator==(const rung_decision&) const = default;
};

/// Successive halving (Jamieson and Talwalkar, 2016): all trials train to the first rung, the best part of them to the
/// next, and so on. A rung is decided when all of its trials are there, so the decisions follow from the losses alone,
/// and not from which trial was faster. Without clock, thread or I/O.
class successive_halving {
 public:
  /// Trials are numbered from 0. `rungs` grows and is not empty; of n trials at a rung n / factor, rounded up, go on.
  successive_halving(std::size_t trials, std::vector<std::uint64_t> rungs, std::uint32_t factor);

  /// Whether the last rung is decided, or no trial is left.
  [[nodiscard]] bool is_over() const noexcept { return rung_ == rungs_.size() || contenders_.empty(); }
  /// The step to which trials train now. Only before the end.
  [[nodiscard]] std::uint64_t rung() const { return rungs_.at(rung_); }
  /// The trials that have no loss at this rung yet, in order.
  [[nodiscard]] std::vector<std::size_t> due() const;

  /// Takes a trial's loss at the present rung. A loss that is not finite means that the trial goes no further. Returns
  /// the decision if this was the last one. Fails with `errc::invalid_argument` for a trial that is not due.
  [[nodiscard]] troupe::expected<std::optional<rung_decision>> record(std::size_t trial, double loss);

  /// The best trial at the last rung; of equal ones the first. Nothing before the end, and if no trial has a finite
  /// loss.
  [[nodiscard]] std::optional<std::size_t> winner() const;

 private:
  [[nodiscard]] rung_decision decide();

  std::vector<std::uint64_t> rungs_;
  std::uint32_t factor_;
  std::size_t rung_ = 0;
  std::vector<std::size_t> contenders_;
  /// At the present rung.
  std::map<std::size_t, double> losses_;
};

} // namespace search
