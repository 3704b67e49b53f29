#pragma once

#include <troupe/data/data_set.hpp>
#include <troupe/data/exact_reduction.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace troupe::data {

/// Adds a batch's values, such as losses and hits, to `sums`.
using batch_evaluation = std::function<void(const batch& samples, std::span<double> sums)>;

/// Evaluates a whole data set, split over the workers: each fetches its own shards' samples, `batch_samples` at a time.
/// Returns the sums over all samples, with the same bits for any number of workers; divide by `set.size()` for means.
/// Every rank calls it, before `for_each_step` or after `all_reduce` in a step. `batch_samples` may change the last
/// bits of the sums, so it belongs to the program. Throws `exception` for an empty data set and for samples that cannot
/// be fetched, and what `function` throws.
[[nodiscard]] std::vector<double> evaluate(train_context& ctx, const data_set& set, std::size_t number_of_sums,
                                           const batch_evaluation& function, std::uint64_t batch_samples = 256);

/// The same over any reduction.
[[nodiscard]] std::vector<double> evaluate(exact_reduction& reduction, const data_set& set, std::size_t number_of_sums,
                                           const batch_evaluation& function, std::uint64_t batch_samples = 256);

/// Fetches samples in pieces of at most `batch_samples`, passes each to `function`, and calls `reduction.heartbeat()`
/// after each. Throws `exception`.
void for_each_batch(exact_reduction& reduction, const data_set& set, std::span<const std::uint64_t> samples,
                    std::uint64_t batch_samples, const std::function<void(const batch& piece)>& function);

/// The same outside of a reduction.
void for_each_batch(const data_set& set, std::span<const std::uint64_t> samples, std::uint64_t batch_samples,
                    const std::function<void(const batch& piece)>& function);

} // namespace troupe::data
