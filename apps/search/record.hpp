#pragma once

#include <search/halving.hpp>

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace search {

/// What a search compares, and how.
struct search_plan {
  /// Of each trial.
  std::vector<double> learning_rates;
  std::vector<std::uint64_t> rungs;
  std::uint32_t factor = 2;
  std::uint64_t seed = 1;
  /// What all trials have in common of `trainer_config::config`.
  nlohmann::json config = nlohmann::json::object();

  bool operator==(const search_plan&) const = default;
};

/// A trial at a rung.
struct trial_score {
  std::size_t trial = 0;
  std::uint64_t steps = 0;
  /// Held out; nothing if it was not a finite number.
  std::optional<double> loss;
  std::string state_sha256;
  /// Directory of the checkpoint.
  std::string checkpoint;

  bool operator==(const trial_score&) const = default;
};

/// A search and its file `search.json`, from which an interrupted search goes on. The file says all that the decisions
/// follow from.
class search_record {
 public:
  /// Goes on with the search in this directory, or begins one and makes the directory. Fails with `errc::mismatch` if
  /// the one there has another plan, and with `errc::damaged` or `errc::io_error`.
  [[nodiscard]] static troupe::expected<search_record> open(const std::filesystem::path& directory, search_plan plan);

  /// Returns once the score is on the device. Returns the decision if the rung is complete.
  [[nodiscard]] troupe::expected<std::optional<rung_decision>> add(trial_score score);

  [[nodiscard]] const search_plan& plan() const noexcept { return plan_; }
  [[nodiscard]] const successive_halving& halving() const noexcept { return halving_; }
  [[nodiscard]] const std::vector<trial_score>& scores() const noexcept { return scores_; }
  /// Of the winner at the last rung. Only when there is a winner.
  [[nodiscard]] const trial_score& best() const;

 private:
  search_record(std::filesystem::path file, search_plan plan);
  [[nodiscard]] troupe::expected<void> take(const nlohmann::json& stored);
  [[nodiscard]] troupe::expected<void> write() const;

  std::filesystem::path file_;
  search_plan plan_;
  successive_halving halving_;
  std::vector<trial_score> scores_;
};

/// The text of `search.json`.
[[nodiscard]] nlohmann::json to_json(const search_plan& plan);

} // namespace search
