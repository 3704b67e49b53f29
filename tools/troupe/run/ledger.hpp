#pragma once

#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe::tool {

/// What a run's ledger says of one step, from the rows of all ranks.
struct recorded_step {
  /// How many pieces the gradient is cut into, with the sums of the metrics.
  std::uint32_t pieces = 0;
  /// By piece. A piece whose ranks were lost before they told is absent.
  std::map<std::uint32_t, std::uint64_t> gradient;
  std::optional<std::uint64_t> state;
  /// Pieces that two ranks have digested with different results.
  std::set<std::uint32_t> disagreements;
  bool state_disagrees = false;
};

/// The digests of a run's ledger.
class digest_ledger {
 public:
  /// Reads `RUN/ledger.jsonl`. Fails with `errc::not_found`, saying how to get one, for a run without ledger or
  /// digests.
  [[nodiscard]] static expected<digest_ledger> read(const std::filesystem::path& run);

  /// Takes in one row. Rows without digests, of older runs, are ignored.
  void add(const nlohmann::json& row);

  [[nodiscard]] const std::map<std::uint64_t, recorded_step>& steps() const noexcept { return steps_; }
  /// "the gradient of 'w1'".
  [[nodiscard]] std::string name_of_piece(std::uint32_t piece) const;
  /// What the slice of the state in this step is of: "tensor 'w1'".
  [[nodiscard]] std::string name_of_slice(std::uint64_t step) const;

 private:
  std::map<std::uint64_t, recorded_step> steps_;
  std::vector<std::string> pieces_;
  /// With the number of slices of each.
  std::vector<std::pair<std::string, std::uint64_t>> slices_;
};

/// How the digests of two ledgers compare.
struct ledger_comparison {
  /// Steps that both have.
  std::uint64_t compared = 0;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  /// Those of which one has lost a part.
  std::uint64_t incomplete = 0;
  /// The first step that differs, and in what.
  std::optional<std::uint64_t> differs;
  std::vector<std::string> what;
};

/// Compares the steps in [first, last] that both have, up to the first that differs. Pure.
[[nodiscard]] ledger_comparison compare(const digest_ledger& a, const digest_ledger& b, std::uint64_t first,
                                        std::uint64_t last);

} // namespace troupe::tool
