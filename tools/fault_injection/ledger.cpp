#include "ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sys/stat.h>
#include <utility>

namespace troupe::chaos {

namespace {

constexpr std::size_t most_problems = 10;

/// How many steps a process may be ahead of the ledger, and of what was known about it when it was hit. A process sends
/// its lines some fifty times a second, and a step may take only a millisecond.
constexpr std::uint64_t steps_under_way = 500;

std::optional<ledger_entry> parse(const std::string& line) {
  auto row = nlohmann::json::parse(line, nullptr, false);
  if (!row.is_object())
    return std::nullopt;
  try {
    return ledger_entry{row.at("step"),        row.at("generation"), row.at("pid"),
                        row.at("first_shard"), row.at("last_shard"), row.at("samples_digest")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

/// One process's part in one generation.
struct stay {
  std::uint32_t first_shard = 0;
  std::uint32_t last_shard = 0;
  std::uint64_t last_step = 0;
};

class accountant {
 public:
  accountant(const std::vector<ledger_entry>& entries, std::uint32_t shards, std::uint64_t steps,
             const victim_records& victims)
      : entries_(entries), shards_(shards), victims_(victims), by_step_(steps + 1) {}

  ledger_account run() {
    sort_entries();
    auto before = std::uint64_t{0};
    for (std::uint64_t step = 1; step < by_step_.size(); ++step) {
      auto committed = std::uint64_t{0};
      for (const auto* entry : by_step_[step])
        committed = std::max(committed, entry->generation);
      if (committed < before && committed > 0)
        problem(fmt::format("step {} was committed by generation {}, after generation {} had begun", step, committed,
                            before));
      before = std::max(before, committed);
      check(step, committed);
    }
    return std::move(result_);
  }

 private:
  void problem(std::string text) {
    if (result_.problems.size() < most_problems)
      result_.problems.push_back(std::move(text));
  }

  void sort_entries() {
    std::set<std::pair<std::uint64_t, std::uint32_t>> seen;
    for (const auto& entry : entries_) {
      auto where = fmt::format("step {}, process {}", entry.step, entry.pid);
      if (!seen.emplace(entry.step, entry.pid).second)
        problem(where + ": applied twice");
      // A joiner applies the others' results before it has shards.
      if (entry.first_shard == entry.last_shard)
        continue;
      if (entry.step == 0 || entry.step >= by_step_.size() || entry.first_shard > entry.last_shard ||
          entry.last_shard > shards_) {
        problem(where + ": the step or the shards are out of range");
        continue;
      }
      auto [found, fresh] =
          stays_[entry.generation].try_emplace(entry.pid, stay{entry.first_shard, entry.last_shard, entry.step});
      auto& own = found->second;
      if (!fresh && (own.first_shard != entry.first_shard || own.last_shard != entry.last_shard))
        problem(fmt::format("{}: other shards than before in generation {}", where, entry.generation));
      own.last_step = std::max(own.last_step, entry.step);
      by_step_[entry.step].push_back(&entry);
      auto& first = begins_.try_emplace(entry.generation, entry.step).first->second;
      first = std::min(first, entry.step);
    }
  }

  void check(std::uint64_t step, std::uint64_t generation) {
    std::vector<int> times(shards_);
    for (const auto* entry : by_step_[step])
      if (entry->generation == generation)
        for (auto v = entry->first_shard; v < entry->last_shard; ++v)
          ++times[v];
    result_.pairs += shards_;
    for (std::uint32_t v = 0; v < shards_; ++v) {
      auto where = fmt::format("step {}, shard {}, generation {}", step, v, generation);
      if (times[v] > 1)
        problem(fmt::format("{}: computed {} times", where, times[v]));
      if (times[v] > 0)
        continue;
      if (generation > 0 && died(step, v, generation))
        ++result_.died_with_writer;
      else
        problem(where + ": not computed");
    }
  }

  /// Whether the owner of the shard was killed before it could report this step.
  bool died(std::uint64_t step, std::uint32_t shard, std::uint64_t generation) const {
    const auto& here = stays_.at(generation);
    for (const auto& [pid, own] : here)
      if (own.first_shard <= shard && shard < own.last_shard)
        return victims_.contains(pid) && own.last_step < step;
    // The owner reported nothing in this generation, so it must have been hit shortly after its begin.
    auto begin = begins_.at(generation);
    return std::ranges::any_of(victims_, [&](const auto& victim) {
      const auto& [pid, known] = victim;
      return !here.contains(pid) && known.step + steps_under_way >= begin && known.step < begin + steps_under_way &&
             (known.lines_waited || step < begin + steps_under_way);
    });
  }

  const std::vector<ledger_entry>& entries_;
  std::uint32_t shards_;
  const victim_records& victims_;
  std::vector<std::vector<const ledger_entry*>> by_step_;
  std::map<std::uint64_t, std::map<std::uint32_t, stay>> stays_;
  /// The first step of each generation.
  std::map<std::uint64_t, std::uint64_t> begins_;
  ledger_account result_;
};

} // namespace

void number_generations(std::vector<ledger_entry>& entries, const std::vector<std::uint64_t>& starts) {
  constexpr std::uint64_t most_of_process = 1'000'000;
  for (auto& entry : entries) {
    // A process removes the lines after the step from which it begins.
    const auto last =
        std::find_if(starts.rbegin(), starts.rend(), [&](std::uint64_t after) { return after < entry.step; });
    const auto before = std::distance(last, starts.rend());
    entry.generation += most_of_process * static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(before - 1, 0));
  }
}

std::vector<ledger_entry> ledger_tail::read() {
  std::vector<ledger_entry> result;
  struct stat file {};
  if (::stat(path_.c_str(), &file) != 0)
    return result;
  const auto size = static_cast<std::uintmax_t>(file.st_size);
  if (file.st_ino != inode_ || size < offset_) {
    offset_ = 0;
    inode_ = file.st_ino;
  }
  if (size == offset_)
    return result;
  auto in = std::ifstream{path_, std::ios::binary};
  in.seekg(static_cast<std::streamoff>(offset_));
  for (std::string line; std::getline(in, line) && !in.eof(); offset_ += line.size() + 1)
    if (auto entry = parse(line))
      result.push_back(*entry);
  // A process's start is written before its lines.
  read_starts();
  number_generations(result, starts_);
  return result;
}

void ledger_tail::read_starts() {
  auto in = std::ifstream{events_, std::ios::binary};
  in.seekg(static_cast<std::streamoff>(events_offset_));
  for (std::string line; std::getline(in, line) && !in.eof(); events_offset_ += line.size() + 1)
    if (const auto event = nlohmann::json::parse(line, nullptr, false);
        event.is_object() && event.value("event", "") == "started")
      starts_.push_back(event.value("resumed_from_step", std::uint64_t{0}));
}

ledger_account account(const std::vector<ledger_entry>& entries, std::uint32_t shards, std::uint64_t steps,
                       const victim_records& victims) {
  return accountant{entries, shards, steps, victims}.run();
}

sample_account account_samples(const data_order& order, std::uint64_t samples, std::uint32_t shards,
                               std::uint64_t steps, const std::vector<ledger_entry>& entries) {
  sample_account result;
  auto problem = [&](std::string text) {
    if (result.problems.size() < most_problems)
      result.problems.push_back(std::move(text));
  };
  std::multimap<std::uint64_t, const ledger_entry*> by_step;
  for (const auto& entry : entries)
    if (entry.first_shard < entry.last_shard && entry.last_shard <= shards)
      by_step.emplace(entry.step, &entry);
  // Epochs may end within a batch. `filling` counts the samples of the current epoch.
  auto seen = std::vector<bool>(samples);
  auto filling = std::uint64_t{0};
  auto take = [&](std::uint64_t step, std::uint64_t sample) {
    if (sample >= samples || seen[sample]) {
      problem(fmt::format("step {}, epoch {}: sample {} occurs twice or does not exist", step, result.whole_epochs,
                          sample));
      return;
    }
    seen[sample] = true;
    if (++filling == samples) {
      ++result.whole_epochs;
      filling = 0;
      seen.assign(samples, false);
    }
  };
  std::vector<std::vector<std::uint64_t>> drawn(shards);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    for (std::uint32_t v = 0; v < shards; ++v) {
      order.samples_of(step_id{step}, shard_id{v}, drawn[v]);
      for (auto sample : drawn[v])
        take(step, sample);
    }
    for (auto [i, end] = by_step.equal_range(step); i != end; ++i) {
      const auto& entry = *i->second;
      auto digest = std::uint64_t{0};
      for (auto v = entry.first_shard; v < entry.last_shard; ++v)
        digest = digest_of_samples(digest, drawn[v]);
      if (digest != entry.samples_digest)
        problem(fmt::format("step {}, process {}: received other samples than those of its shards", step, entry.pid));
    }
  }
  return result;
}

} // namespace troupe::chaos
