#pragma once

#include <troupe/boosting/settings.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/data/feature_rows.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace troupe::boosting {

/// Rows of a data set in the format of tree libraries.
struct feature_table {
  std::uint64_t rows = 0;
  /// Row after row.
  std::vector<float> features;
  /// One number per row.
  std::vector<float> label;
  /// One number per row; empty if rows have no weights.
  std::vector<float> weight;
};

/// Fetches rows by number, with the codes of the known categories. Calls `fetched` after every 65,536 rows. Throws
/// `exception` if fetching fails, for a missing column, and for a label or weight that is not a single number.
[[nodiscard]] feature_table fetch_table(const settings& how, const data::data_set& set,
                                        std::span<const std::uint64_t> numbers,
                                        const data::known_categories& known = {},
                                        const std::function<void()>& fetched = {});

/// The numbers of a rank's rows: a range, in the order of ranks. The sizes of the ranks' ranges differ by at most one.
[[nodiscard]] std::vector<std::uint64_t> rows_of_rank(std::uint64_t rows, std::uint32_t rank, std::uint32_t ranks);

/// Throws `exception` if the data set has fewer rows than there are ranks.
void require_rows(const tree_library& library, const data::data_set& set, std::uint32_t ranks);

} // namespace troupe::boosting
