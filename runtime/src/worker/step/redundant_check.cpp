#include "worker/step/redundant_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <type_traits>

namespace troupe::runtime {

namespace {

constexpr std::size_t most_named_parts = 5;

} // namespace

std::optional<redundant_check> choose_redundant_check(step_id step, std::uint64_t every, std::uint32_t shards,
                                                      std::span<const shard_range> ownership) {
  if (every == 0 || shards == 0 || step.value == 0 || step.value % every != 0)
    return std::nullopt;
  auto turn = step.value / every - 1;
  auto shard = shard_id{static_cast<std::uint32_t>(turn % shards)};
  auto owner = std::ranges::find_if(ownership, [shard](const shard_range& x) { return x.contains(shard); });
  if (owner == ownership.end())
    return std::nullopt;
  auto rank = static_cast<std::uint64_t>(owner - ownership.begin());
  auto others = ownership.size() - 1;
  auto distance = others == 0 ? 0 : 1 + turn / shards % others;
  return redundant_check{shard, rank_id{static_cast<std::uint32_t>(rank)},
                         rank_id{static_cast<std::uint32_t>((rank + distance) % ownership.size())}};
}

std::vector<gradient_tensor> parts_of_gradient(std::vector<gradient_tensor> named, std::uint64_t elements) {
  std::ranges::sort(named, {}, &gradient_tensor::first);
  std::vector<gradient_tensor> result;
  std::uint64_t next = 0;
  auto add_unnamed = [&](std::uint64_t until) {
    if (next < until)
      result.push_back({fmt::format("elements {} to {} of the gradient", next, until - 1), next, until - next});
  };
  for (auto& each : named) {
    auto first = std::clamp(each.first, next, elements);
    auto last = std::min(elements, each.first > elements ? elements : each.first + each.elements);
    if (last <= first)
      continue;
    add_unnamed(first);
    result.push_back({"the gradient of '" + each.name + "'", first, last - first});
    next = last;
  }
  add_unnamed(elements);
  return result;
}

template <class T>
part_difference difference_of(std::span<const T> a, std::span<const T> b) {
  using bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  auto result = part_difference{a.size(), 0, 0};
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<bits>(a[i]) == std::bit_cast<bits>(b[i]))
      continue;
    ++result.different;
    auto apart = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (std::isnan(apart) || apart > result.largest)
      result.largest = std::isnan(result.largest) ? result.largest : apart;
  }
  return result;
}

template part_difference difference_of(std::span<const float>, std::span<const float>);
template part_difference difference_of(std::span<const double>, std::span<const double>);

std::string describe_disagreement(step_id step, const redundant_check& what, std::span<const std::string> parts,
                                  const part_difference& first, const std::string& frameworks) {
  char apart[96];
  std::snprintf(apart, sizeof(apart), " (%llu of %llu numbers, by %.3g at most)",
                static_cast<unsigned long long>(first.different), static_cast<unsigned long long>(first.elements),
                first.largest);
  std::string list;
  for (std::size_t i = 0; i < std::min(parts.size(), most_named_parts); ++i)
    list += (i == 0 ? "" : ", ") + parts[i] + (i == 0 ? apart : "");
  if (parts.size() > most_named_parts)
    list += fmt::format(" and {} more", parts.size() - most_named_parts);
  auto alone = what.owner == what.other;
  auto who = alone ? fmt::format("rank {} has computed it twice, and", what.owner)
                   : fmt::format("rank {}, whose it is, and rank {} have computed it, and", what.owner, what.other);
  auto text = fmt::format("step {}, shard {}: {}", step, what.shard, who) + " the results differ in " + list +
              ". The training function computes differently " + (alone ? "each time" : "on different workers") +
              ": code that depends on the rank, uninitialised memory, a random generator other than shard.random(), "
              "state that is not tracked, or sums whose order is left to several threads. Under a debugger: troupe "
              "replay RUN --step " +
              std::to_string(step.value) + " --debug (of a run with run.keep_ledger)";
  return frameworks.empty() ? text : text + "; " + frameworks;
}

} // namespace troupe::runtime
