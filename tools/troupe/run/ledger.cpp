#include "run/ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace troupe::tool {

namespace {

/// Whether no part was lost with a rank.
bool is_complete(const recorded_step& x) {
  return x.gradient.size() == x.pieces && x.state;
}

std::vector<std::string> differences(const digest_ledger& names, std::uint64_t step, const recorded_step& a,
                                     const recorded_step& b) {
  std::vector<std::string> result;
  if (a.pieces != b.pieces)
    return {fmt::format("the gradient's size or its tensors ({} and {} pieces): two different programs", a.pieces,
                        b.pieces)};
  for (std::uint32_t piece = 0; piece < a.pieces; ++piece) {
    const auto here = a.gradient.find(piece);
    const auto there = b.gradient.find(piece);
    const auto differ = here != a.gradient.end() && there != b.gradient.end() && here->second != there->second;
    if (a.disagreements.contains(piece) || b.disagreements.contains(piece))
      result.push_back(names.name_of_piece(piece) + ", on which ranks of one run disagree");
    else if (differ)
      result.push_back(names.name_of_piece(piece));
  }
  if (a.state_disagrees || b.state_disagrees)
    result.push_back("the state after it: " + names.name_of_slice(step) + ", on which ranks of one run disagree");
  else if (a.state && b.state && *a.state != *b.state)
    result.push_back("the state after it: " + names.name_of_slice(step));
  return result;
}

} // namespace

expected<digest_ledger> digest_ledger::read(const std::filesystem::path& run) {
  constexpr auto advice = ": train with run.keep_ledger (charlm: --ledger) to have digests of each step";
  auto file = std::ifstream{run / "ledger.jsonl"};
  if (!file)
    return fail(errc::not_found, "there is no ledger in " + run.string() + advice);
  digest_ledger result;
  // The last line of a run that goes on may be torn.
  for (std::string line; std::getline(file, line);)
    if (const auto row = nlohmann::json::parse(line, nullptr, false); row.is_object())
      result.add(row);
  if (result.steps_.empty())
    return fail(errc::not_found, "the ledger in " + run.string() + " has no digests" + advice);
  return result;
}

void digest_ledger::add(const nlohmann::json& row) {
  const auto found = row.find("digest");
  if (found == row.end())
    return;
  const auto pieces = found->at("pieces").get<std::uint32_t>();
  if (pieces == 0)
    return;
  auto& step = steps_[row.at("step").get<std::uint64_t>()];
  step.pieces = pieces;
  auto piece = found->at("first_piece").get<std::uint32_t>();
  for (const auto& each : found->at("gradient")) {
    const auto digest = each.get<std::uint64_t>();
    if (step.gradient.emplace(piece, digest).first->second != digest)
      step.disagreements.insert(piece);
    piece = (piece + 1) % step.pieces;
  }
  const auto state = found->at("state").get<std::uint64_t>();
  step.state_disagrees = step.state_disagrees || (step.state && *step.state != state);
  step.state = state;
  if (const auto names = row.find("names"); names != row.end() && pieces_.empty()) {
    names->at("pieces").get_to(pieces_);
    names->at("slices").get_to(slices_);
  }
}

std::string digest_ledger::name_of_piece(std::uint32_t piece) const {
  return piece < pieces_.size() ? pieces_[piece] : fmt::format("piece {} of the gradient", piece);
}

std::string digest_ledger::name_of_slice(std::uint64_t step) const {
  std::uint64_t total = 0;
  for (const auto& [name, count] : slices_)
    total += count;
  if (total == 0)
    return "a slice of it";
  auto slice = step % total;
  for (const auto& [name, count] : slices_) {
    if (slice < count)
      return count == 1 ? name : fmt::format("{} (its slice {} of {})", name, slice + 1, count);
    slice -= count;
  }
  return {};
}

ledger_comparison compare(const digest_ledger& a, const digest_ledger& b, std::uint64_t first, std::uint64_t last) {
  ledger_comparison result;
  for (auto here = a.steps().lower_bound(first); here != a.steps().end() && here->first <= last; ++here) {
    const auto there = b.steps().find(here->first);
    if (there == b.steps().end())
      continue;
    result.first = result.compared == 0 ? here->first : result.first;
    result.last = here->first;
    ++result.compared;
    if (!is_complete(here->second) || !is_complete(there->second))
      ++result.incomplete;
    result.what = differences(a, here->first, here->second, there->second);
    if (!result.what.empty()) {
      result.differs = here->first;
      return result;
    }
  }
  return result;
}

} // namespace troupe::tool
