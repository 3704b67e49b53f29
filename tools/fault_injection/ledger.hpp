#pragma once

#include <troupe/data_order.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace troupe::chaos {

/// A line of `ledger.jsonl`: the process has applied the step and contributed the shards.
struct ledger_entry {
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  std::uint32_t pid = 0;
  std::uint32_t first_shard = 0;
  std::uint32_t last_shard = 0;
  /// A digest of the samples that its training function received in these shards.
  std::uint64_t samples_digest = 0;

  bool operator==(const ledger_entry&) const = default;
};

/// Each process of a run counts its generations from 1. Adds a million for each process before the one that a line is
/// from, so that later generations have higher numbers. `starts` has the steps after which they began, in order.
void number_generations(std::vector<ledger_entry>& entries, const std::vector<std::uint64_t>& starts);

/// Reads the ledger of a run while it is being written.
class ledger_tail {
 public:
  explicit ledger_tail(const std::filesystem::path& run_directory)
      : path_(run_directory / "ledger.jsonl"), events_(run_directory / "events.jsonl") {}

  /// Returns the lines added since the last call, with generations as `number_generations` numbers them. A ledger that
  /// was written anew, as happens when a run is resumed, is read again from its beginning.
  [[nodiscard]] std::vector<ledger_entry> read();

 private:
  void read_starts();

  std::filesystem::path path_;
  std::uintmax_t offset_ = 0;
  std::uintmax_t inode_ = 0;
  std::filesystem::path events_;
  std::uintmax_t events_offset_ = 0;
  std::vector<std::uint64_t> starts_;
};

/// The conclusions from a ledger.
struct ledger_account {
  /// Violations of "each shard of each step exactly once"; at most ten.
  std::vector<std::string> problems;
  /// Pairs of a step and a shard.
  std::uint64_t pairs = 0;
  /// Pairs without a line because their process was killed before it had sent the line, which takes some hundredths of
  /// a second, or longer while the driver cannot be reached.
  std::uint64_t died_with_writer = 0;
};

/// The ledger's content when a process was killed or given up.
struct victim_record {
  /// The last step known to have been applied.
  std::uint64_t step = 0;
  /// No line had come for a while, as when the driver is away: the process may have been any number of steps ahead.
  bool lines_waited = false;
};

/// By pid. In a long run several processes may have the same pid.
using victim_records = std::multimap<std::uint32_t, victim_record>;

/// Checks steps 1 to `steps`: in the generation that committed a step, which is the last that computed it, the entries
/// must cover all `shards` exactly once.
[[nodiscard]] ledger_account account(const std::vector<ledger_entry>& entries, std::uint32_t shards,
                                     std::uint64_t steps, const victim_records& victims);

/// Checks samples: every epoch must contain each sample of the data set exactly once, the unfinished last epoch none
/// twice, and each process must have received the samples of its shards. Returns the violations and the number of
/// complete epochs.
struct sample_account {
  std::vector<std::string> problems;
  std::uint64_t whole_epochs = 0;
};
[[nodiscard]] sample_account account_samples(const data_order& order, std::uint64_t samples, std::uint32_t shards,
                                             std::uint64_t steps, const std::vector<ledger_entry>& entries);

} // namespace troupe::chaos
