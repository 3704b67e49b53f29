#pragma once

#include "worker/state/state_transfer.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/communicator.hpp>
#include <troupe/error.hpp>
#include <troupe/tracked_state.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <variant>
#include <vector>

/// Sends the state to joiners while training continues. A *staging group* is a separate communicator: the members of a
/// generation, which have the state, are its ranks 0 to N - 1, and the joiners follow. Each member copies a share of
/// the state between two steps and sends it in the background; rank 0 then sends the reduced gradients and the
/// evaluations since, with which the joiners catch up.
namespace troupe::runtime {

enum class staging_kind : std::uint64_t { snapshot = 1, gradient = 2, evaluation = 3, end = 4 };

/// A place in a staging group, as a member has it.
struct staging_settings {
  /// In the staging group; less than `sources`.
  rank_id rank;
  /// The members.
  std::uint32_t sources = 1;
  std::uint32_t joiners = 1;
  /// The step after which the state is as it is now.
  step_id step;
  /// How many bytes of gradients and evaluations may wait for joiners that are slower than training, and how many
  /// gradients in any case.
  std::uint64_t queue_limit_bytes = std::uint64_t{1} << 30;
  std::uint32_t queue_limit_gradients = 16;
  /// How long the group waits for a joiner that takes nothing; none: as its communicator has it.
  std::optional<std::chrono::milliseconds> deadline = {};
  /// Called when the group has failed, so that peers stop waiting for it. From any thread.
  std::function<void()> given_up = {};
  /// Forms the group. Called once, on the stager's thread; returns soon after it is asked to stop. The communicator's
  /// deadline bounds each wait for a joiner, which may be in the middle of a step.
  std::function<expected<std::unique_ptr<collectives::communicator>>(std::stop_token)> form = {};
};

/// A member's side, through any number of groups, one at a time. `begin` and the pushes are called by the training
/// thread, the rest from any thread. A failure ends only the staging: the joiners lose their group and ask again.
class state_stager {
 public:
  state_stager() = default;
  state_stager(const state_stager&) = delete;
  state_stager& operator=(const state_stager&) = delete;
  /// Aborts what is under way.
  ~state_stager();

  /// Copies this member's share of the state, and has it sent. Called by all members between the same two steps.
  /// Returns after the copy; `state` and `extras` may change then. A group that is still under way is aborted first.
  void begin(staging_settings settings, const tracked_state& state, const transferred_extras& extras);

  // -- on rank 0, while it is active; otherwise without effect

  /// The reduced bucket of a step that counts as applied, which is copied. Each step after that of `begin`, in order.
  void push_gradient(step_id step, std::span<const std::byte> bytes);
  /// The result of an evaluation, between the gradients as it was between the steps.
  void push_evaluation(std::span<const double> values);
  /// The joiners go on with the others after this step, whose barrier has agreed on `commands_agreed`, and up to
  /// which there were so many evaluations. The group ends once they have heard it.
  void push_end(step_id boundary, std::uint64_t commands_agreed, std::uint64_t evaluations);

  // -- from any thread

  /// Gives up the group that is under way, if there is one. Does not wait.
  void abort(error reason);
  /// Whether a group is under way.
  [[nodiscard]] bool is_active() const;
  /// The error that ended the last group; `errc::none` if there was none.
  [[nodiscard]] error last_error() const;

 private:
  struct frame {
    staging_kind kind;
    step_id step;
    std::vector<std::byte> bytes;
  };

  enum class phase : std::uint8_t {
    /// No group is under way.
    none,
    /// A group is under way and takes frames.
    open,
    /// Its last frame is queued; the group ends once the joiners have it.
    ending,
  };

  void stage_share(const tracked_state& state, const transferred_extras& extras);
  void push(staging_kind kind, step_id step, std::span<const std::byte> bytes);
  [[nodiscard]] bool takes_frames() const;
  [[nodiscard]] step_id latest_step() const;
  [[nodiscard]] bool is_first() const noexcept { return settings_.rank == rank_id{0}; }

  // -- on the thread
  void run();
  void adopt(collectives::communicator& group);
  [[nodiscard]] expected<void> give_share(collectives::communicator& group);
  [[nodiscard]] expected<void> give_frames(collectives::communicator& group);
  [[nodiscard]] expected<void> give(collectives::communicator& group, const frame& what);
  [[nodiscard]] expected<void> give_to_all(collectives::communicator& group, std::span<const std::byte> bytes);
  [[nodiscard]] frame take_frame();
  void release(frame sent);
  void leave(std::unique_ptr<collectives::communicator> group, error reason);

  /// Not changed while the thread runs.
  staging_settings settings_;
  collectives::aligned_buffer share_;
  /// In `share_`.
  std::vector<std::span<const std::byte>> staged_chunks_;
  frame snapshot_{staging_kind::snapshot, {}, {}};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  phase phase_ = phase::none;
  error last_error_;
  std::stop_source cancel_forming_;
  /// The thread's, once it is formed.
  collectives::communicator* group_ = nullptr;
  std::deque<frame> queue_;
  /// In the queue, on the way into it, and being sent.
  std::uint64_t queued_bytes_ = 0;
  /// Memory of gradients that were sent, for those to come.
  std::vector<std::vector<std::byte>> spare_;
  /// The last step that was pushed.
  step_id latest_;

  std::thread thread_;
};

/// A reduced bucket.
struct gradient_frame {
  step_id step;
  /// The last step that rank 0 had committed when this arrived here.
  step_id latest;
  /// From a 64-byte boundary; valid until the next call.
  std::span<const std::byte> bytes;
};

struct evaluation_frame {
  std::vector<double> values;
};

/// This joiner is a member after this step.
struct end_frame {
  step_id boundary;
  std::uint64_t commands_agreed = 0;
  std::uint64_t evaluations = 0;
};

using staged_frame = std::variant<gradient_frame, evaluation_frame, end_frame>;

/// A joiner's side of one staging group: `receive`, then `next` until the end. On its training thread, except for
/// `abort`. Errors are those of the communicator, and final; `errc::aborted` if a source has given up.
class staged_state {
 public:
  /// `sources` members are the first ranks of `group`.
  staged_state(std::unique_ptr<collectives::communicator> group, std::uint32_t sources);

  /// Fills the tensors in place, and the values. Returns the step after which the state is so. `errc::mismatch`: the
  /// sources track tensors of other sizes. After an error the state is of no use.
  [[nodiscard]] expected<step_id> receive(tracked_state& state, transferred_extras& extras);

  /// Waits for what comes next.
  [[nodiscard]] expected<staged_frame> next();

  /// Ends pending and later calls with this error. From any thread.
  void abort(error reason) noexcept { group_->abort(std::move(reason)); }

 private:
  struct arrived {
    staging_kind kind;
    step_id step;
    step_id latest;
    std::span<const std::byte> bytes;
  };

  [[nodiscard]] expected<arrived> take_frame();
  [[nodiscard]] expected<void> take_from_first(std::span<std::byte> bytes);

  std::unique_ptr<collectives::communicator> group_;
  std::uint32_t sources_;
  collectives::aligned_buffer buffer_;
};

} // namespace troupe::runtime
