#pragma once

#include <troupe/data_order.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace troupe::chaos {

/// A line of `ledger.jsonl`: this process has applied this step, to which it contributed these shards.
struct ledger_entry {
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  std::uint32_t pid = 0;
  std::uint32_t first_shard = 0;
  std::uint32_t last_shard = 0;
  /// Of the samples that its training function was given in them.
  std::uint64_t samples_digest = 0;

  bool operator==(const ledger_entry&) const = default;
};

/// Reads a ledger while it is being written.
class ledger_tail {
 public:
  explicit ledger_tail(std::filesystem::path path) : path_(std::move(path)) {}

  /// What has been added since the last call. A ledger that was cut, as it is when a run is resumed, is read again from
  /// its beginning.
  [[nodiscard]] std::vector<ledger_entry> read();

 private:
  std::filesystem::path path_;
  std::uintmax_t offset_ = 0;
};

/// What the ledger proves.
struct ledger_account {
  /// What contradicts "each shard of each step exactly once"; at most some ten.
  std::vector<std::string> problems;
  /// Pairs of a step and a shard.
  std::uint64_t pairs = 0;
  /// Those whose line is missing, because the process that owned the shard was killed before it had sent it: a line is
  /// under way for some hundredths of a second.
  std::uint64_t died_with_writer = 0;
};

/// Processes that were killed, or given up, and the last step known to have been applied when that was done to them. In
/// a long trial several have had one number.
using victim_steps = std::multimap<std::uint32_t, std::uint64_t>;

/// Checks that in the generation that committed a step, the last that computed it, the shards cover all `shards`
/// exactly once, for steps 1 to `steps`.
[[nodiscard]] ledger_account account(const std::vector<ledger_entry>& entries, std::uint32_t shards,
                                     std::uint64_t steps, const victim_steps& victims);

/// Turns steps and shards into samples: over every epoch, each of the data set's samples exactly once; in the last,
/// unfinished one none twice; and each process was given those of its shards. Gives what contradicts that, and how many
/// epochs are whole.
struct sample_account {
  std::vector<std::string> problems;
  std::uint64_t whole_epochs = 0;
};
[[nodiscard]] sample_account account_samples(const data_order& order, std::uint64_t samples, std::uint32_t shards,
                                             std::uint64_t steps, const std::vector<ledger_entry>& entries);

} // namespace troupe::chaos
