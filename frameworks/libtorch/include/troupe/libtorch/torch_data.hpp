#pragma once

#include <troupe/data/data_set.hpp>
#include <troupe/error.hpp>

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Data sets of torch::data as data sets of Troupe.
namespace troupe::libtorch {

/// Returns one sample's tensors. Not called by two threads at once.
using example_source = std::function<torch::data::Example<>(std::uint64_t sample)>;

/// `adapt_data_set` for samples from any source.
[[nodiscard]] data::data_set_ptr adapt_examples(std::uint64_t size, example_source source, std::string name);

/// A data set of torch::data with random access and of known size, also one with transformations
/// (`set.map(torch::data::transforms::Normalize<>{...})`), but without `Stack`: batches are made here. Columns are
/// "data" and "target", with type and shape of the first sample, which all others must have. Nothing is stored; a
/// sample is made when it is fetched, by one thread at a time.
///
/// A sample must be a function of its number: what a transformation draws at random makes runs differ. `name` stands
/// for the content, as in `data::make_table`. Throws `exception`: `errc::invalid_argument` for a data set that is empty
/// or of unknown size, for an empty name, and for tensors of a type that Troupe does not have. Fetching fails with
/// `errc::mismatch` for a sample of another type or shape, and with `errc::user_error` for what the data set throws.
///
///     auto set = torch::data::datasets::MNIST{path}.map(torch::data::transforms::Normalize<>{0.13, 0.31});
///     auto training = libtorch::adapt_data_set(std::move(set), "MNIST, training");
template <class DataSet>
[[nodiscard]] data::data_set_ptr adapt_data_set(DataSet set, std::string name) {
  using batch_of_set = typename DataSet::BatchType;
  static_assert(std::same_as<batch_of_set, std::vector<torch::data::Example<>>>,
                "a data set whose batches are lists of torch::data::Example<>: without the Stack transformation");
  const auto size = set.size();
  if (!size)
    throw exception{errc::invalid_argument, "a data set of torch::data that does not know its size has no samples by "
                                            "number"};
  auto shared = std::make_shared<DataSet>(std::move(set));
  auto source = [shared](std::uint64_t sample) {
    auto examples = shared->get_batch({static_cast<std::size_t>(sample)});
    if (examples.size() != 1)
      throw exception{errc::user_error, "get_batch of one sample did not return one example"};
    return std::move(examples.front());
  };
  return adapt_examples(*size, std::move(source), std::move(name));
}

} // namespace troupe::libtorch
