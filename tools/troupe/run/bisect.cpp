#include "run/commands.hpp"

#include "checkpoint/commands.hpp"
#include "run/ledger.hpp"
#include "run/run_json.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <limits>

namespace troupe::tool {

namespace {

/// What explains a difference from the first step on.
void tell_of_configurations(const nlohmann::json& a, const nlohmann::json& b) {
  for (const auto* key : {"build_id", "seed", "shards", "config"})
    if (a.value(key, nlohmann::json{}) != b.value(key, nlohmann::json{}))
      fmt::print("They differ in {}: {} and {}\n", key, a.value(key, nlohmann::json{}).dump(),
                 b.value(key, nlohmann::json{}).dump());
}

expected<int> bisect_or_fail(const bisect_arguments& given) {
  TROUPE_TRY(const auto left, read_run_json(given.left));
  TROUPE_TRY(const auto right, read_run_json(given.right));
  TROUPE_TRY(const auto a, digest_ledger::read(given.left));
  TROUPE_TRY(const auto b, digest_ledger::read(given.right));
  const auto compared = compare(a, b, 0, std::numeric_limits<std::uint64_t>::max());
  if (compared.compared == 0)
    return fail(errc::not_found,
                fmt::format("the ledgers have no step in common: {} to {}, and {} to {}", a.steps().begin()->first,
                            a.steps().rbegin()->first, b.steps().begin()->first, b.steps().rbegin()->first));
  tell_of_configurations(left, right);
  if (compared.differs) {
    fmt::print("step {} is the first that differs, in {}\n", *compared.differs, fmt::join(compared.what, "; "));
    fmt::print("Which run repeats it, and so was not disturbed:\n"
               "  troupe replay {} --step {}\n  troupe replay {} --step {}\n",
               given.left.string(), *compared.differs, given.right.string(), *compared.differs);
    return exit_found;
  }
  fmt::print("steps {} to {}: the digests of all {} steps that both runs have are equal{}\n", compared.first,
             compared.last, compared.compared, lost_parts(compared));
  return exit_good;
}

} // namespace

int bisect(const bisect_arguments& given) {
  return report_trouble("bisect", bisect_or_fail(given));
}

} // namespace troupe::tool
