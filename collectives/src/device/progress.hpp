#pragma once

#include <troupe/collectives/device.hpp>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::collectives {

/// The work for which a stream waits before it reaches an event.
enum class waits_for : std::uint8_t { own_gpu, peers };

/// How far the running reductions have come, to tell a slow GPU from a slow peer. Used on the group's thread, except
/// for const members.
class device_progress {
 public:
  /// Names the last reduction that is on streams or on its way there.
  void begin(const std::string& call);
  /// All reductions have ended.
  void clear();

  /// Adds an event, in the order in which they complete.
  void expect(const device_event* event, waits_for whom) { milestones_.push_back({event, whom}); }
  /// Finds the first event that has not completed.
  void look() noexcept;
  void forget() noexcept { awaits_own_gpu_ = false; }

  /// Whether the first event that had not completed at the last look waits for this rank's own GPU.
  [[nodiscard]] bool awaits_own_gpu() const noexcept { return awaits_own_gpu_; }
  /// "in reduce_leaves #12 (part 3), which waits for this worker's own GPU".
  [[nodiscard]] std::string describe() const;

 private:
  struct milestone {
    const device_event* event;
    waits_for whom;
  };

  std::vector<milestone> milestones_;
  std::atomic<bool> awaits_own_gpu_{false};
  mutable std::mutex mutex_;
  std::string call_;
};

} // namespace troupe::collectives
