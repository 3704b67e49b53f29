#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/checkpoint.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace troupe::actors {

/// A checkpoint that has all its parts and can be committed.
struct complete_checkpoint {
  /// The name of the directory that the parts were written to.
  std::string temporary_directory;
  serialization::manifest content;
  /// When its first part came.
  std::chrono::sys_time<std::chrono::milliseconds> began;
};

/// Whether a worker of this run may still write into a temporary directory of this name, if `generation` is the latest
/// and all its parts up to step `over` have arrived. Directories of other runs are not in use. Names of other kinds and
/// last copies count as in use. Pure.
[[nodiscard]] bool may_be_in_use(std::string_view name, const run_id& run, generation_id generation, step_id over);

/// Which parts of which checkpoint attempt have come, for the checkpoint store. A plain class; it does no I/O.
class checkpoint_attempts {
 public:
  void set_metadata(checkpoint_metadata metadata) { metadata_ = std::move(metadata); }

  /// Takes one part. Returns nothing while others are missing. With the last one it returns the complete checkpoint, or
  /// the first error if a rank could not write: not earlier, so that no rank writes into a directory that is cleaned
  /// up. `now` becomes the checkpoint's time of creation.
  [[nodiscard]] std::optional<expected<complete_checkpoint>> add(const checkpoint_part& part,
                                                                 std::chrono::sys_time<std::chrono::milliseconds> now);

  /// Drops the parts of older generations: their other parts will not come.
  void forget_before(generation_id generation) {
    pending_.erase(pending_.begin(), pending_.lower_bound(key{generation, step_id{}, 0}));
  }

 private:
  using key = std::tuple<generation_id, step_id, std::uint32_t>;

  struct pending_attempt {
    std::map<rank_id, checkpoint_part> parts;
    /// When the first of them came.
    std::chrono::sys_time<std::chrono::milliseconds> began;
  };

  checkpoint_metadata metadata_;
  std::map<key, pending_attempt> pending_;
};

} // namespace troupe::actors
