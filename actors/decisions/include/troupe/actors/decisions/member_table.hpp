#pragma once

#include <troupe/member.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe::actors {

/// The members of a cluster as one node knows them, from what they say themselves and from what entry nodes pass on.
/// A member lives as long as its beat grows: what arrives late or twice changes nothing, by whatever way it comes. So
/// entry nodes may pass on all that they know, also in a circle.
class member_table {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  struct settings {
    /// A member whose beat has not grown for this long is silent. Members beat once a second.
    std::chrono::milliseconds silent_after{10'000};
    /// The same for a member whose connection to this node is lost: it dials again at once if it lives.
    std::chrono::milliseconds silent_after_loss{2'500};
    std::chrono::milliseconds forget_after{600'000};
    /// How many are kept, whatever peers say.
    std::size_t most = 4096;
  };

  /// Who says it.
  enum class source : std::uint8_t { itself, another };

  enum class outcome : std::uint8_t {
    /// It is new, was started again, or was silent.
    joined,
    /// It is known, and lives.
    heard,
    /// It says that it ends.
    left,
    /// An older message, or one about an earlier start of it.
    stale,
    /// The table is full.
    full,
  };

  member_table() = default;
  explicit member_table(settings how) : how_(how) {}

  outcome hear(const cluster_member& member, source from, time_point now);

  /// The connection over which this member spoke is lost.
  void note_loss(const std::string& address, time_point now);

  /// The members that have fallen silent since the last call, and forgets those that have been for long. A node that
  /// said that it ends is not among them.
  [[nodiscard]] std::vector<std::string> take_silent(time_point now);

  /// By address. Without those that have said that they end, and have fallen silent.
  [[nodiscard]] std::vector<listed_member> list(time_point now) const;

  /// What to pass on: all that are not silent.
  [[nodiscard]] std::vector<cluster_member> to_pass_on(time_point now) const;

  [[nodiscard]] std::size_t size() const noexcept { return members_.size(); }

 private:
  struct entry {
    cluster_member what;
    source from = source::itself;
    time_point heard;
    time_point lost = time_point::max();
    bool is_reported = false;
  };

  [[nodiscard]] bool is_silent(const entry& x, time_point now) const;
  [[nodiscard]] bool has_left(const entry& x) const { return x.what.phase == member_phase::leaving; }
  /// Whether this start of a node counts instead of the one that is known.
  [[nodiscard]] bool replaces(const cluster_member& next, source from, const entry& known, time_point now) const;
  /// Makes room for one by forgetting the one that was silent for longest.
  [[nodiscard]] bool make_room(time_point now);

  settings how_;
  std::map<std::string, entry> members_;
};

/// The members of several lists: of two that say something about one member, the later one counts.
[[nodiscard]] std::vector<listed_member> merge_members(std::vector<listed_member> all);

} // namespace troupe::actors
