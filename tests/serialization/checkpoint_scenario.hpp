#pragma once

#include "scratch.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/reusing_writer.hpp>
#include <troupe/serialization/files/file_system.hpp>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe::serialization {

/// What a store has told the world so far, and what must therefore be found whatever happens.
struct store_promises {
  /// The newest checkpoint that was acknowledged.
  std::optional<step_id> newest;
  /// Those that were acknowledged and that no removal has begun on.
  std::set<step_id> kept;

  void acknowledged(step_id step) {
    newest = step;
    kept.insert(step);
  }
};

/// The life of a run's checkpoints, in small: two or three tensors of a few pages, several checkpoints, in parts.
class checkpoint_scenario {
 public:
  struct shape {
    std::uint32_t parts = 2;
    std::uint64_t limit_bytes = 4096;
    std::size_t num_to_keep = 2;
    /// Of a third tensor, which never changes; 0 for none.
    std::uint64_t frozen_bytes = 0;
    reuse_policy reuse = reuse_policy::none();
  };

  /// The second part is all of a tensor that never changes; its whole chunks are worth a file of their own, which up to
  /// three checkpoints share.
  [[nodiscard]] static shape with_frozen_tensor() { return {2, 4096, 2, 12'000, {4096, 3}}; }

  checkpoint_scenario(file_system& files, shape sizes, store_promises promises = {});

  [[nodiscard]] const store_promises& promises() const noexcept { return promises_; }
  [[nodiscard]] static const std::filesystem::path& directory();

  /// What the store does: several checkpoints, an attempt that is given up, one that is prepared while older ones go,
  /// a restart. Ends at the first error.
  [[nodiscard]] expected<void> run();

  /// Begins as a restarted run does, with what a crash has left, takes one more checkpoint and removes old ones.
  [[nodiscard]] expected<void> go_on();

  [[nodiscard]] expected<void> write(step_id step, std::uint32_t attempt, std::uint32_t part);
  [[nodiscard]] expected<void> commit(step_id step, std::uint32_t attempt);
  [[nodiscard]] expected<void> take(step_id step, std::uint32_t attempt = 1);
  [[nodiscard]] expected<void> retain();

  /// What is wrong with what is found, by the promises; nothing if all is well.
  [[nodiscard]] std::optional<std::string> find_flaw() const;

  /// Replaces parts of what the store does.
  std::function<expected<void>(checkpoint_scenario&)> retain_instead;
  std::function<expected<void>(checkpoint_scenario&, step_id)> before_commit;

  /// Removes a checkpoint, whatever others there are.
  [[nodiscard]] expected<void> remove(step_id step);

 private:
  [[nodiscard]] std::optional<std::string> find_flaw_in(const checkpoint& stored) const;
  [[nodiscard]] std::vector<std::vector<std::byte>> tensors_of(step_id step) const;

  file_system& files_;
  shape shape_;
  store_promises promises_;
  /// Reports of the parts of attempts that are not committed.
  std::map<std::pair<step_id, std::uint32_t>, std::vector<part_report>> reports_;
  std::vector<tensor_spec> specs_;
  std::vector<std::byte> frozen_;
  /// One for each part, as each has a worker of its own.
  std::vector<reusing_writer> writers_;
};

} // namespace troupe::serialization
