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

/// What a store has acknowledged so far, and must therefore be found whatever happens.
struct store_promises {
  /// The newest acknowledged checkpoint.
  std::optional<step_id> newest;
  /// The acknowledged checkpoints whose removal has not started.
  std::set<step_id> kept;

  void acknowledged(step_id step) {
    newest = step;
    kept.insert(step);
  }
};

/// A small model of the life of a run's checkpoints: two or three tensors of a few pages, several checkpoints, in
/// parts.
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

  /// The second part is a whole tensor that never changes; its full chunks get their own files, which up to three
  /// checkpoints share.
  [[nodiscard]] static shape with_frozen_tensor() { return {2, 4096, 2, 12'000, {4096, 3}}; }

  checkpoint_scenario(file_system& files, shape sizes, store_promises promises = {});

  [[nodiscard]] const store_promises& promises() const noexcept { return promises_; }
  [[nodiscard]] static const std::filesystem::path& directory();

  /// The store's operations: several checkpoints, an abandoned attempt, one written while older ones are removed, a
  /// restart. Stops at the first error.
  [[nodiscard]] expected<void> run();

  /// Restarts from what a crash left, takes one more checkpoint and removes old ones.
  [[nodiscard]] expected<void> go_on();

  [[nodiscard]] expected<void> write(step_id step, std::uint32_t attempt, std::uint32_t part);
  [[nodiscard]] expected<void> commit(step_id step, std::uint32_t attempt);
  [[nodiscard]] expected<void> take(step_id step, std::uint32_t attempt = 1);
  [[nodiscard]] expected<void> retain();

  /// How the found checkpoints violate the guarantees; `nullopt` if they do not.
  [[nodiscard]] std::optional<std::string> find_flaw() const;

  /// Replaces some of the store's operations.
  std::function<expected<void>(checkpoint_scenario&)> retain_instead;
  std::function<expected<void>(checkpoint_scenario&, step_id)> before_commit;

  /// Removes a checkpoint unconditionally.
  [[nodiscard]] expected<void> remove(step_id step);

 private:
  [[nodiscard]] std::optional<std::string> find_flaw_in(const checkpoint& stored) const;
  [[nodiscard]] std::vector<std::vector<std::byte>> tensors_of(step_id step) const;

  file_system& files_;
  shape shape_;
  store_promises promises_;
  /// Reports of the parts of uncommitted attempts.
  std::map<std::pair<step_id, std::uint32_t>, std::vector<part_report>> reports_;
  std::vector<tensor_spec> specs_;
  std::vector<std::byte> frozen_;
  /// One per part, as each part has its own worker.
  std::vector<reusing_writer> writers_;
};

} // namespace troupe::serialization
