#include <troupe/boosting/tables.hpp>

#include <troupe/data/batch.hpp>
#include <troupe/data/feature_rows.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <string>

namespace troupe::boosting {

namespace {

/// While a table is fetched, this many rows are in memory twice: in the data set's format, and as numbers.
constexpr std::size_t rows_at_once = 1 << 16;

/// Appends `part`; the first call reserves memory for `all` rows.
void append(std::vector<float>& to, const std::vector<float>& part, std::size_t rows, std::size_t all) {
  if (to.empty() && rows > 0)
    to.reserve(part.size() / rows * all);
  to.insert(to.end(), part.begin(), part.end());
}

std::vector<float> numbers_of(const data::batch& samples, const std::string& column,
                              const data::known_categories& known) {
  auto values = value_or_throw(data::feature_rows(samples, std::span{&column, 1}, known));
  if (values.size() != samples.size())
    throw exception{errc::mismatch, fmt::format("column '{}' does not hold single numbers", column)};
  return values;
}

} // namespace

feature_table fetch_table(const settings& how, const data::data_set& set, std::span<const std::uint64_t> numbers,
                          const data::known_categories& known, const std::function<void()>& fetched) {
  feature_table result;
  result.rows = numbers.size();
  data::batch samples;
  // Runs once even without rows, so that a missing column is reported.
  do {
    auto part = numbers.first(std::min(numbers.size(), rows_at_once));
    numbers = numbers.subspan(part.size());
    value_or_throw(set.fetch(part, samples));
    auto add = [&](std::vector<float>& to, const std::vector<float>& values) {
      append(to, values, part.size(), result.rows);
    };
    add(result.features, value_or_throw(data::feature_rows(samples, how.features, known)));
    add(result.label, numbers_of(samples, how.label, known));
    if (!how.weight.empty())
      add(result.weight, numbers_of(samples, how.weight, known));
    if (fetched)
      fetched();
  } while (!numbers.empty());
  return result;
}

std::vector<std::uint64_t> rows_of_rank(std::uint64_t rows, std::uint32_t rank, std::uint32_t ranks) {
  auto first = rows * rank / ranks;
  std::vector<std::uint64_t> result(rows * (rank + 1) / ranks - first);
  std::iota(result.begin(), result.end(), first);
  return result;
}

void require_rows(const tree_library& library, const data::data_set& set, std::uint32_t ranks) {
  if (set.size() < ranks)
    throw exception{errc::invalid_argument, fmt::format("a data set of {} samples for {} workers: each of {}'s workers "
                                                        "needs at least one",
                                                        set.size(), ranks, library.name)};
}

} // namespace troupe::boosting
