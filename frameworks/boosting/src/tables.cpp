#include <troupe/boosting/tables.hpp>

#include <troupe/data/batch.hpp>
#include <troupe/data/feature_rows.hpp>

#include <algorithm>
#include <numeric>
#include <string>

namespace troupe::boosting {

namespace {

/// So many rows are there twice while a table is fetched: as the data set has them, and as numbers.
constexpr std::size_t rows_at_once = 1 << 16;

/// Appends; room is made for `all` rows.
void append(std::vector<float>& to, const std::vector<float>& part, std::size_t rows, std::size_t all) {
  if (to.empty() && rows > 0)
    to.reserve(part.size() / rows * all);
  to.insert(to.end(), part.begin(), part.end());
}

std::vector<float> numbers_of(const data::batch& samples, const std::string& column,
                              const data::known_categories& known) {
  auto values = value_or_throw(data::feature_rows(samples, std::span{&column, 1}, known));
  if (values.size() != samples.size())
    throw exception{errc::mismatch, "column '" + column + "' is no single number"};
  return values;
}

} // namespace

feature_table fetch_table(const settings& how, const data::data_set& set, std::span<const std::uint64_t> numbers,
                          const data::known_categories& known, const std::function<void()>& fetched) {
  feature_table result;
  result.rows = numbers.size();
  data::batch samples;
  // Once without rows, too, so that a column that is not there is told.
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
    throw exception{errc::invalid_argument, "a data set of " + std::to_string(set.size()) + " samples for " +
                                                std::to_string(ranks) + " workers: each of " + library.name +
                                                "'s workers needs one at least"};
}

} // namespace troupe::boosting
