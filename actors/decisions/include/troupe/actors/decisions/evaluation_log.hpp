#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace troupe::actors {

/// The evaluations of one worker: their count, the results since the last loop, and for a joiner the members' results
/// before each loop. A part of `worker_protocol`. A plain class.
class evaluation_log {
 public:
  /// The results of several evaluations, in order.
  using results = std::vector<std::vector<double>>;

  /// `of_members`, by loop: the members' results before that loop.
  explicit evaluation_log(std::vector<results> of_members) : of_members_(std::move(of_members)) {}

  /// How many evaluations have a result.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] const std::vector<double>& last() const noexcept { return last_; }
  /// The results that the training function got since the last loop.
  [[nodiscard]] const results& since_loop() const noexcept { return since_loop_; }

  /// Evaluation `number` has this result.
  void add(std::uint64_t number, std::vector<double> values);
  /// The members have done this many, without this worker.
  void skip_to(std::uint64_t count) noexcept { count_ = count; }
  /// The training function gets the last result, before a loop.
  void on_returned() { since_loop_.push_back(last_); }
  /// A loop begins, or is skipped.
  void forget_since_loop() noexcept { since_loop_.clear(); }

  // -- for a joiner

  /// Whether the members' results before this loop, counted from 0, are known: they have completed the previous loop.
  [[nodiscard]] bool has_members_before(std::uint32_t loop) const noexcept { return loop < of_members_.size(); }
  /// The members have completed one more loop.
  void add_loop_of_members(results before) { of_members_.push_back(std::move(before)); }
  /// The members' result at this point before their loop of this number. Throws `exception` if they did not evaluate
  /// here.
  [[nodiscard]] std::vector<double> take_from_members(std::uint32_t loop);

 private:
  std::uint64_t count_ = 0;
  std::vector<double> last_;
  std::vector<results> of_members_;
  results since_loop_;
};

} // namespace troupe::actors
