#include "ledger.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

namespace troupe::chaos {

namespace {

constexpr std::size_t most_problems = 10;

/// A process sends its lines some fifty times a second. How many steps may lie between what it has done and what the
/// ledger holds, and between a victim's last step and what was known of it: many, where steps take a millisecond.
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

/// What one process did in one generation.
struct stay {
  std::uint32_t first_shard = 0;
  std::uint32_t last_shard = 0;
  std::uint64_t last_step = 0;
};

class accountant {
 public:
  accountant(const std::vector<ledger_entry>& entries, std::uint32_t shards, std::uint64_t steps,
             const victim_steps& victims)
      : entries_(entries), shards_(shards), victims_(victims), by_step_(steps + 1) {}

  ledger_account run() {
    sort_entries();
    auto before = std::uint64_t{0};
    for (std::uint64_t step = 1; step < by_step_.size(); ++step) {
      auto committed = std::uint64_t{0};
      for (const auto* entry : by_step_[step])
        committed = std::max(committed, entry->generation);
      if (committed < before && committed > 0)
        problem("step " + std::to_string(step) + " was committed by generation " + std::to_string(committed) +
                ", after generation " + std::to_string(before) + " had begun");
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
      auto where = "step " + std::to_string(entry.step) + ", process " + std::to_string(entry.pid);
      if (!seen.emplace(entry.step, entry.pid).second)
        problem(where + ": applied twice");
      // Who joins applies what others have computed, before it has shards.
      if (entry.first_shard == entry.last_shard)
        continue;
      if (entry.step == 0 || entry.step >= by_step_.size() || entry.first_shard > entry.last_shard ||
          entry.last_shard > shards_) {
        problem(where + ": no step of this run, or no shards of it");
        continue;
      }
      auto [found, fresh] =
          stays_[entry.generation].try_emplace(entry.pid, stay{entry.first_shard, entry.last_shard, entry.step});
      auto& own = found->second;
      if (!fresh && (own.first_shard != entry.first_shard || own.last_shard != entry.last_shard))
        problem(where + ": other shards than before in generation " + std::to_string(entry.generation));
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
      auto where = "step " + std::to_string(step) + ", shard " + std::to_string(v) + ", generation " +
                   std::to_string(generation);
      if (times[v] > 1)
        problem(where + ": computed " + std::to_string(times[v]) + " times");
      if (times[v] > 0)
        continue;
      if (generation > 0 && died(step, v, generation))
        ++result_.died_with_writer;
      else
        problem(where + ": computed by nobody");
    }
  }

  /// Whether the owner of the shard was killed before it could tell of this step.
  bool died(std::uint64_t step, std::uint32_t shard, std::uint64_t generation) const {
    const auto& here = stays_.at(generation);
    for (const auto& [pid, own] : here)
      if (own.first_shard <= shard && shard < own.last_shard)
        return victims_.contains(pid) && own.last_step < step;
    // Its owner told nothing at all in this generation: then it was hit when this had only just begun.
    auto begin = begins_.at(generation);
    return step < begin + steps_under_way && std::ranges::any_of(victims_, [&](const auto& victim) {
             auto [pid, last] = victim;
             return !here.contains(pid) && last + steps_under_way >= begin && last < begin + steps_under_way;
           });
  }

  const std::vector<ledger_entry>& entries_;
  std::uint32_t shards_;
  const victim_steps& victims_;
  std::vector<std::vector<const ledger_entry*>> by_step_;
  std::map<std::uint64_t, std::map<std::uint32_t, stay>> stays_;
  /// The first step of each generation.
  std::map<std::uint64_t, std::uint64_t> begins_;
  ledger_account result_;
};

} // namespace

std::vector<ledger_entry> ledger_tail::read() {
  std::vector<ledger_entry> result;
  auto code = std::error_code{};
  auto size = std::filesystem::file_size(path_, code);
  if (code)
    return result;
  if (size < offset_)
    offset_ = 0;
  if (size == offset_)
    return result;
  auto in = std::ifstream{path_, std::ios::binary};
  in.seekg(static_cast<std::streamoff>(offset_));
  for (std::string line; std::getline(in, line) && !in.eof(); offset_ += line.size() + 1)
    if (auto entry = parse(line))
      result.push_back(*entry);
  return result;
}

ledger_account account(const std::vector<ledger_entry>& entries, std::uint32_t shards, std::uint64_t steps,
                       const victim_steps& victims) {
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
  // An epoch ends inside of a batch: the first `filling` samples that come belong to the epoch that has begun.
  auto seen = std::vector<bool>(samples);
  auto filling = std::uint64_t{0};
  auto take = [&](std::uint64_t step, std::uint64_t sample) {
    if (sample >= samples || seen[sample]) {
      problem("step " + std::to_string(step) + ", epoch " + std::to_string(result.whole_epochs) + ": sample " +
              std::to_string(sample) + " comes twice, or does not exist");
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
        problem("step " + std::to_string(step) + ", process " + std::to_string(entry.pid) +
                ": was given other samples");
    }
  }
  return result;
}

} // namespace troupe::chaos
