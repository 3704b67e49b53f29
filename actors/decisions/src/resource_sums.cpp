#include <troupe/actors/decisions/resource_sums.hpp>

#include <troupe/actors/decisions/device_ledger.hpp>
#include <troupe/actors/decisions/plural.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

namespace {

/// Products and sums of other programs' numbers stop at the largest number, of which no node has as much.
template <class Number>
Number times(Number each, std::uint32_t count) {
  Number result = 0;
  return __builtin_mul_overflow(each, count, &result) ? std::numeric_limits<Number>::max() : result;
}

template <class Number>
Number plus(Number a, Number b) {
  Number result = 0;
  return __builtin_add_overflow(a, b, &result) ? std::numeric_limits<Number>::max() : result;
}

template <class Number>
Number rest(Number from, Number taken) {
  return from > taken ? from - taken : Number{0};
}

std::uint64_t amount(const resources& x, const std::string& name) {
  const auto found = x.custom.find(name);
  return found == x.custom.end() ? 0 : found->second;
}

std::string describe_bytes(std::uint64_t bytes) {
  constexpr auto mebibyte = std::uint64_t{1} << 20;
  constexpr auto gibibyte = std::uint64_t{1} << 30;
  return bytes >= gibibyte ? fmt::format("{:.3g} GiB", static_cast<double>(bytes) / gibibyte)
                           : fmt::format("{:.3g} MiB", static_cast<double>(bytes) / mebibyte);
}

/// "a, b and c", of at least one.
std::string enumerate(std::vector<std::string> parts) {
  const auto last = std::move(parts.back());
  parts.pop_back();
  return parts.empty() ? last : fmt::format("{} and {}", fmt::join(parts, ", "), last);
}

} // namespace

resources resources_of(const resources& each, std::uint32_t workers) {
  resources result;
  result.cpus = times(each.cpus, workers);
  result.gpus = each.gpus > 0 ? gpus_for_workers(each.gpus, workers) : 0;
  result.memory_bytes = times(each.memory_bytes, workers);
  for (const auto& [name, count] : each.custom)
    result.custom[name] = times(count, workers);
  return result;
}

resources sum(const resources& a, const resources& b) {
  auto result = a;
  result.cpus = plus(a.cpus, b.cpus);
  result.gpus += b.gpus;
  result.memory_bytes = plus(a.memory_bytes, b.memory_bytes);
  for (const auto& [name, count] : b.custom)
    result.custom[name] = plus(result.custom[name], count);
  return result;
}

resources difference(const resources& from, const resources& taken) {
  auto result = from;
  result.cpus = rest(from.cpus, taken.cpus);
  result.gpus = rest(from.gpus, taken.gpus);
  result.memory_bytes = rest(from.memory_bytes, taken.memory_bytes);
  for (auto& [name, count] : result.custom)
    count = rest(count, amount(taken, name));
  return result;
}

resources larger(const resources& a, const resources& b) {
  auto result = a;
  result.cpus = std::max(a.cpus, b.cpus);
  result.gpus = std::max(a.gpus, b.gpus);
  result.memory_bytes = std::max(a.memory_bytes, b.memory_bytes);
  for (const auto& [name, count] : b.custom)
    result.custom[name] = std::max(result.custom[name], count);
  return result;
}

resources without_kinds(const resources& x, const resources& kinds) {
  auto result = x;
  if (kinds.cpus > 0)
    result.cpus = 0;
  if (kinds.gpus > 0)
    result.gpus = 0;
  if (kinds.memory_bytes > 0)
    result.memory_bytes = 0;
  std::erase_if(result.custom, [&kinds](const auto& each) { return amount(kinds, each.first) > 0; });
  return result;
}

bool is_within(const resources& x, const resources& limit) {
  return x.cpus <= limit.cpus && x.gpus <= limit.gpus && x.memory_bytes <= limit.memory_bytes &&
         std::ranges::all_of(x.custom, [&limit](const auto& each) { return each.second <= amount(limit, each.first); });
}

bool is_nothing(const resources& x) {
  return is_within(x, {});
}

bool overlap(const resources& a, const resources& b) {
  return (a.cpus > 0 && b.cpus > 0) || (a.gpus > 0 && b.gpus > 0) || (a.memory_bytes > 0 && b.memory_bytes > 0) ||
         std::ranges::any_of(a.custom, [&b](const auto& each) { return each.second > 0 && amount(b, each.first) > 0; });
}

std::uint32_t count_fitting(const resources& each, const resources& free) {
  constexpr auto unlimited = std::numeric_limits<std::uint32_t>::max();
  auto result = std::uint64_t{unlimited};
  if (each.cpus > 0)
    result = std::min<std::uint64_t>(result, free.cpus / each.cpus);
  if (each.gpus > 0)
    result = std::min<std::uint64_t>(result, workers_on_gpus(each.gpus, static_cast<std::uint32_t>(free.gpus)));
  if (each.memory_bytes > 0)
    result = std::min(result, free.memory_bytes / each.memory_bytes);
  for (const auto& [name, count] : each.custom)
    if (count > 0)
      result = std::min(result, amount(free, name) / count);
  return static_cast<std::uint32_t>(result);
}

std::string describe(const resources& x) {
  std::vector<std::string> parts;
  if (x.cpus > 0)
    parts.push_back(plural(x.cpus, "CPU"));
  if (x.gpus > 0)
    parts.push_back(plural(x.gpus, "GPU"));
  if (x.memory_bytes > 0)
    parts.push_back(describe_bytes(x.memory_bytes) + " of memory");
  for (const auto& [name, count] : x.custom)
    if (count > 0)
      parts.push_back(fmt::format("{} {}", count, name));
  return parts.empty() ? "nothing" : enumerate(std::move(parts));
}

std::string describe_kinds(const resources& x, const resources& kinds) {
  auto parts = std::vector{plural(x.cpus, "CPU"), plural(x.gpus, "GPU")};
  if (kinds.memory_bytes > 0)
    parts.push_back(describe_bytes(x.memory_bytes) + " of memory");
  for (const auto& [name, count] : kinds.custom)
    if (count > 0)
      parts.push_back(fmt::format("{} {}", amount(x, name), name));
  return enumerate(std::move(parts));
}

} // namespace troupe::actors
