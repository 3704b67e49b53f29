#pragma once

#include <troupe/resources.hpp>

#include <cstdint>
#include <string>

/// Arithmetic over all kinds of resources. Pure.
namespace troupe::actors {

/// What this many workers take together: whole GPUs, because a GPU is shared within a run only.
[[nodiscard]] resources resources_of(const resources& each, std::uint32_t workers);

[[nodiscard]] resources sum(const resources& a, const resources& b);
/// What is left of `from`, at least nothing of each kind.
[[nodiscard]] resources difference(const resources& from, const resources& taken);
/// The larger amount of each kind.
[[nodiscard]] resources larger(const resources& a, const resources& b);
/// Without the kinds that `kinds` has something of.
[[nodiscard]] resources without_kinds(const resources& x, const resources& kinds);
[[nodiscard]] bool is_within(const resources& x, const resources& limit);
[[nodiscard]] bool is_nothing(const resources& x);
/// Whether both ask for something of the same kind.
[[nodiscard]] bool overlap(const resources& a, const resources& b);
/// How many workers of this kind fit; the largest number if they take nothing.
[[nodiscard]] std::uint32_t count_fitting(const resources& each, const resources& free);

/// "2 CPUs, 16 GiB of memory and 3 licences": what it has something of; "nothing" for none.
[[nodiscard]] std::string describe(const resources& x);
/// "4 CPUs, 0 GPUs and 2 licences": CPUs, GPUs, and all that `kinds` has something of.
[[nodiscard]] std::string describe_kinds(const resources& x, const resources& kinds);

} // namespace troupe::actors
