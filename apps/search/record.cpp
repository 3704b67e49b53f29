#include <search/record.hpp>

#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

namespace search {

using troupe::errc;
using troupe::expected;
using troupe::fail;

namespace {

nlohmann::json to_json(const trial_score& score) {
  return {{"trial", score.trial},
          {"steps", score.steps},
          {"held_out_loss", score.loss ? nlohmann::json(*score.loss) : nlohmann::json()},
          {"state_sha256", score.state_sha256},
          {"checkpoint", score.checkpoint}};
}

trial_score parse_score(const nlohmann::json& in) {
  trial_score result;
  result.trial = in.at("trial");
  result.steps = in.at("steps");
  if (!in.at("held_out_loss").is_null())
    result.loss = in.at("held_out_loss").get<double>();
  result.state_sha256 = in.at("state_sha256");
  result.checkpoint = in.at("checkpoint");
  return result;
}

double loss_of(const trial_score& score) {
  return score.loss.value_or(std::numeric_limits<double>::quiet_NaN());
}

} // namespace

nlohmann::json to_json(const search_plan& plan) {
  return {{"learning_rates", plan.learning_rates},
          {"rungs", plan.rungs},
          {"factor", plan.factor},
          {"seed", plan.seed},
          {"config", plan.config}};
}

search_record::search_record(std::filesystem::path file, search_plan plan)
    : file_(std::move(file)),
      plan_(std::move(plan)),
      halving_(plan_.learning_rates.size(), plan_.rungs, plan_.factor) {}

expected<search_record> search_record::open(const std::filesystem::path& directory, search_plan plan) {
  TROUPE_TRY(troupe::serialization::create_directories_durably(directory));
  auto result = search_record{directory / "search.json", std::move(plan)};
  auto in = std::ifstream{result.file_};
  if (!in) {
    TROUPE_TRY(result.write());
    return result;
  }
  const auto stored = nlohmann::json::parse(in, nullptr, false);
  try {
    TROUPE_TRY(result.take(stored));
  } catch (const nlohmann::json::exception& x) {
    return fail(errc::damaged, fmt::format("{} cannot be read ({}): move {} away, or use another --name",
                                           result.file_.string(), x.what(), directory.string()));
  }
  return result;
}

expected<void> search_record::take(const nlohmann::json& stored) {
  if (const auto ours = to_json(plan_); stored.at("plan") != ours)
    return fail(errc::mismatch,
                fmt::format("{} is of a search with other settings: use another --name, or these settings: {} (this "
                            "one has {})",
                            file_.string(), stored.at("plan").dump(), ours.dump()));
  for (const auto& each : stored.at("scores")) {
    auto score = parse_score(each);
    if (auto known = halving_.record(score.trial, loss_of(score)); !known)
      return fail(errc::damaged, fmt::format("{}: {}: move the file away, or use another --name", file_.string(),
                                             known.error().message));
    scores_.push_back(std::move(score));
  }
  return {};
}

expected<std::optional<rung_decision>> search_record::add(trial_score score) {
  const auto loss = loss_of(score);
  TROUPE_TRY(auto decision, halving_.record(score.trial, loss));
  scores_.push_back(std::move(score));
  TROUPE_TRY(write());
  return decision;
}

const trial_score& search_record::best() const {
  return *std::ranges::find_if(scores_, [this](const trial_score& each) {
    return each.trial == halving_.winner().value() && each.steps == plan_.rungs.back();
  });
}

expected<void> search_record::write() const {
  auto out = nlohmann::json{{"plan", to_json(plan_)}, {"scores", nlohmann::json::array()}};
  for (const auto& each : scores_)
    out["scores"].push_back(to_json(each));
  if (const auto winner = halving_.winner())
    out["winner"] = {{"trial", *winner}, {"learning_rate", plan_.learning_rates[*winner]}};
  return troupe::serialization::write_file_durably(file_, out.dump(2) + "\n");
}

} // namespace search
