#pragma once

#include <troupe/boosting/settings.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/data/feature_rows.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace troupe::boosting {

/// Rows of a data set as libraries of trees take them.
struct feature_table {
  std::uint64_t rows = 0;
  /// Row after row.
  std::vector<float> features;
  /// A number for each row.
  std::vector<float> label;
  /// The same; empty where rows have no weights.
  std::vector<float> weight;
};

/// Fetches the rows of these numbers, with the codes of the categories that are known. Calls `fetched` after every
/// 65,536 of them. Throws `exception` for what cannot be fetched, for a column that is not there, and for a label or
/// weight that is no single number.
[[nodiscard]] feature_table fetch_table(const settings& how, const data::data_set& set,
                                        std::span<const std::uint64_t> numbers,
                                        const data::known_categories& known = {},
                                        const std::function<void()>& fetched = {});

/// The numbers of the rows that a rank has of so many: a range, in the order of ranks, as long as the others' but for
/// one row.
[[nodiscard]] std::vector<std::uint64_t> rows_of_rank(std::uint64_t rows, std::uint32_t rank, std::uint32_t ranks);

/// Throws `exception` for a data set that is dealt to the workers and has no row for one of them.
void require_rows(const tree_library& library, const data::data_set& set, std::uint32_t ranks);

} // namespace troupe::boosting
