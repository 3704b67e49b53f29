#include <troupe/boosting/tables.hpp>

#include <troupe/data/batch.hpp>
#include <troupe/data/feature_rows.hpp>

#include <numeric>
#include <string>

namespace troupe::boosting {

feature_table fetch_table(const settings& how, const data::data_set& set, std::span<const std::uint64_t> numbers) {
  data::batch samples;
  value_or_throw(set.fetch(numbers, samples));
  auto column = [&](const std::string& name) {
    auto values = value_or_throw(data::feature_rows(samples, std::span{&name, 1}));
    if (values.size() != numbers.size())
      throw failure{errc::mismatch, "column '" + name + "' is no single number"};
    return values;
  };
  feature_table result{
      numbers.size(), value_or_throw(data::feature_rows(samples, how.features)), column(how.label), {}};
  if (!how.weight.empty())
    result.weight = column(how.weight);
  return result;
}

std::vector<std::uint64_t> rows_of_rank(std::uint64_t rows, std::uint32_t rank, std::uint32_t ranks) {
  auto first = rows * rank / ranks;
  std::vector<std::uint64_t> result(rows * (rank + 1) / ranks - first);
  std::iota(result.begin(), result.end(), first);
  return result;
}

void require_rows(const framework& library, const data::data_set& set, std::uint32_t ranks) {
  if (set.size() < ranks)
    throw failure{errc::invalid_argument, "a data set of " + std::to_string(set.size()) + " samples for " +
                                              std::to_string(ranks) + " workers: each of " + library.name +
                                              "'s workers needs one at least"};
}

} // namespace troupe::boosting
