#pragma once

#include <troupe/actors/decisions/placement.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/types.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <variant>
#include <vector>

namespace troupe::actors {

/// Any clock that does not go back.
using run_time = std::chrono::steady_clock::time_point;

/// The cause of a process's end.
enum class ended_by : std::uint8_t {
  itself,
  /// An external cause (SIGKILL, SIGTERM, the loss of its node), or it never began: another attempt may succeed.
  outside,
};

/// A joiner's data that outlasts repeated requests for a place.
struct joiner_history {
  /// When its process was started, it last made progress towards its loop, or it asked for a place.
  run_time since = {};
  /// The progress count of its last heartbeat.
  std::uint64_t progress = 0;
  /// The loop of the training function that it has reached.
  std::uint32_t loop = 0;
  /// How many staging groups it has been in.
  std::uint32_t stagings = 0;
};

/// A worker's stage in an attempt. Each alternative holds only what is meaningful there.
namespace standing {

/// Its process was started.
struct started {
  run_time since = {};
};

/// It has joined, and waits for training to begin, or for the members to agree on their first plan.
struct ready {
  run_time since = {};
};

/// A joiner on its way to its next loop.
struct preparing {
  joiner_history history;
};

/// A joiner that asks for a place.
struct waiting {
  joiner_history history;
};

/// A joiner that is given the state while the members train on, and applies what they reduce.
struct following {
  enum class distance : std::uint8_t {
    behind,
    /// It is where the members are, or will be in a moment.
    caught_up,
  };

  joiner_history history;
  distance now = distance::behind;
};

/// A member of the generation.
struct active {
  /// The plan of the loop that it has reached, until all plans are accepted.
  std::optional<run_plan> plan;
  /// Its report, until the next generation is formed.
  std::optional<regroup_report> report;
  /// If its first generation ends before it has the state, it waits for a place again.
  joiner_history history;
};

/// Its training function has returned or failed.
struct finished {};

/// A former member that was released on purpose: the end of its process is no failure.
struct released {
  /// Its training function has thrown and not ended yet: its process may end after that.
  bool unwinds = false;
};

/// A joiner that never got a place and will not get one. The run does not wait for the end of its process.
struct dismissed {};

/// Its process has ended.
struct ended {
  ended_by who = ended_by::itself;
};

} // namespace standing

using worker_standing =
    std::variant<standing::started, standing::ready, standing::preparing, standing::waiting, standing::following,
                 standing::active, standing::finished, standing::released, standing::dismissed, standing::ended>;

template <class... Standings>
[[nodiscard]] bool is_any(const worker_standing& x) noexcept {
  return (std::holds_alternative<Standings>(x) || ...);
}

/// It is on its way to become a member.
[[nodiscard]] inline bool is_joining(const worker_standing& x) noexcept {
  using namespace standing;
  return is_any<started, ready, preparing, waiting, following>(x);
}

/// The run does not miss it: the end of its process is no failure.
[[nodiscard]] inline bool is_let_go(const worker_standing& x) noexcept {
  return is_any<standing::released, standing::dismissed>(x);
}

/// The worker's history as a joiner; before it is one, only `since` is set.
[[nodiscard]] joiner_history history_of(const worker_standing& x);

/// Its training function has returned or failed, or the run does not need that.
[[nodiscard]] inline bool is_done(const worker_standing& x) noexcept {
  return std::holds_alternative<standing::finished>(x) || is_let_go(x);
}

/// Whether a member is to leave at the next boundary.
enum class departure : std::uint8_t {
  none,
  /// Fewer workers are wanted. It stays if others are lost.
  surplus,
  /// Its node goes away.
  with_node,
};

/// One worker process of an attempt.
struct worker_record {
  worker_place place;
  worker_standing stands;
  departure leaves = departure::none;
  /// Empty and 0 until it has joined.
  std::string host;
  std::uint32_t pid = 0;
  /// JSON text of its numerics fingerprint, once it is admitted.
  std::optional<std::string> numerics;
  /// The last step that it is known to have applied.
  step_id applied;
  /// The step after which it got the state, once it has been in a generation.
  std::optional<step_id> came_after;
  /// Who ends it if it is killed: the worker itself once it is killed because it hangs.
  ended_by killed_by = ended_by::outside;

  template <class Standing>
  [[nodiscard]] bool is() const noexcept {
    return std::holds_alternative<Standing>(stands);
  }
  template <class Standing>
  [[nodiscard]] Standing* as() noexcept {
    return std::get_if<Standing>(&stands);
  }
  template <class Standing>
  [[nodiscard]] const Standing* as() const noexcept {
    return std::get_if<Standing>(&stands);
  }

  [[nodiscard]] bool is_active() const noexcept { return is<standing::active>(); }
  [[nodiscard]] bool is_joining() const noexcept { return actors::is_joining(stands); }
  [[nodiscard]] bool is_leaving() const noexcept { return leaves != departure::none; }
  /// A follower that is where the members are, or will be in a moment.
  [[nodiscard]] bool is_caught_up() const noexcept;
  /// An active worker that has not reported.
  [[nodiscard]] bool is_awaited() const noexcept;
  /// Whether a member certainly has the state. A member that gets it in its first generation has it once it has applied
  /// a step or reported so. `first_step`: members since that step have made or loaded the state themselves.
  [[nodiscard]] bool surely_has_state(step_id first_step) const noexcept;
  /// A joiner on its way to its loop that has made progress is not overdue.
  void note_sign_of_life(std::uint64_t progress, run_time now);
  /// A joiner has reached this loop.
  void note_loop(std::uint32_t loop);
  void note_applied(step_id step) { applied = std::max(applied, step); }
};

/// "worker 3 (rank 1)"
[[nodiscard]] std::string name_of(const worker_place& place);

/// "worker 3 (rank 3), worker 4 (rank 4) join"
[[nodiscard]] std::string describe_joining(const std::vector<worker_record*>& joiners);

/// "1 worker", "3 workers"
[[nodiscard]] std::string count_workers(std::uint64_t n);

/// All workers of an attempt, by id: members, joiners, and those that are gone.
class worker_table {
 public:
  using map = std::map<worker_id, worker_record>;

  void add(const worker_place& place, step_id applied, run_time now);

  [[nodiscard]] worker_record* find(worker_id worker);
  [[nodiscard]] const worker_record* find(worker_id worker) const;
  template <class Standing>
  [[nodiscard]] bool stands_as(worker_id worker) const {
    const auto* who = find(worker);
    return who != nullptr && who->is<Standing>();
  }
  [[nodiscard]] map::iterator begin() noexcept { return workers_.begin(); }
  [[nodiscard]] map::iterator end() noexcept { return workers_.end(); }
  [[nodiscard]] map::const_iterator begin() const noexcept { return workers_.begin(); }
  [[nodiscard]] map::const_iterator end() const noexcept { return workers_.end(); }
  [[nodiscard]] std::size_t size() const noexcept { return workers_.size(); }

  template <class Predicate>
  [[nodiscard]] bool all(Predicate predicate) const {
    return std::ranges::all_of(workers_ | std::views::values, predicate);
  }
  template <class Predicate>
  [[nodiscard]] bool any(Predicate predicate) const {
    return std::ranges::any_of(workers_ | std::views::values, predicate);
  }
  template <class Predicate>
  [[nodiscard]] std::uint32_t count(Predicate predicate) const {
    return static_cast<std::uint32_t>(std::ranges::count_if(workers_ | std::views::values, predicate));
  }

  /// The worker with the lowest id that stands so; null if there is none.
  template <class Standing>
  [[nodiscard]] const worker_record* first() const {
    auto i = std::ranges::find_if(workers_, [](const auto& entry) { return entry.second.template is<Standing>(); });
    return i == workers_.end() ? nullptr : &i->second;
  }
  [[nodiscard]] bool nobody_is_active() const { return first<standing::active>() == nullptr; }
  /// Active workers that are to stay, or to leave, at the next boundary.
  [[nodiscard]] std::uint32_t staying() const;
  [[nodiscard]] std::uint32_t leaving() const;
  /// Whether the processes of all that were ever members have ended.
  [[nodiscard]] bool all_members_have_ended() const;
  [[nodiscard]] bool any_ended_by_itself() const;
  /// The furthest step that any of them has applied.
  [[nodiscard]] step_id furthest() const;
  /// "worker 1 (rank 1), worker 2 (rank 2)": those that were started and have not joined.
  [[nodiscard]] std::string missing() const;
  /// "worker 2 (rank 2) on host-1, worker 3 (rank 3) on host-2": those whose reports are awaited.
  [[nodiscard]] std::string awaited_reports() const;
  /// Where processes are that were started and have not ended.
  [[nodiscard]] std::vector<worker_place> occupied() const;

  /// The plans of all active workers are answered, or no longer valid.
  void forget_plans();
  /// This node could not be reached: restarts the deadlines of its joiners.
  void restart_deadlines(std::uint32_t node, run_time now);
  /// The processes on this node have ended, all at once. Returns their workers, with what they were before.
  struct loss {
    worker_record* who = nullptr;
    worker_standing before;
  };
  [[nodiscard]] std::vector<loss> end_all_on(std::uint32_t node);
  /// Lets members that are surplus stay as long as fewer than `wanted` would.
  void keep_needed(std::uint32_t wanted);
  /// Marks the members of the highest ranks as surplus, so that `wanted` stay.
  void mark_surplus(std::uint32_t wanted);

 private:
  map workers_;
};

} // namespace troupe::actors
