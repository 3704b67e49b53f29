// LibTorch's headers define macros with doctest's short names.
#define DOCTEST_CONFIG_NO_SHORT_MACRO_NAMES
#include <doctest/doctest.h>

#include <troupe/data/loader.hpp>
#include <troupe/libtorch/torch_data.hpp>

#include <torch/data.h>
#include <torch/types.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace troupe;

/// Sample i is {i, i + 1}, with the label i % 3.
struct pairs : torch::data::datasets::Dataset<pairs> {
  std::size_t count = 10;
  /// One whose data has another shape, or that throws.
  std::optional<std::size_t> odd;
  std::optional<std::size_t> throws;

  torch::data::Example<> get(std::size_t index) override {
    if (throws == index)
      throw std::runtime_error{"no such file"};
    const auto first = static_cast<float>(index);
    auto data = odd == index ? torch::tensor({first}) : torch::tensor({first, first + 1});
    return {std::move(data), torch::tensor(static_cast<std::int64_t>(index % 3))};
  }
  [[nodiscard]] torch::optional<std::size_t> size() const override { return count; }
};

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const exception& x) {
    return x.what();
  }
  return "";
}

DOCTEST_TEST_CASE("a data set of torch::data is one of Troupe") {
  const auto set = libtorch::adapt_data_set(pairs{}, "pairs");
  DOCTEST_CHECK(set->size() == 10);
  DOCTEST_REQUIRE(set->columns().size() == 2);
  DOCTEST_CHECK(set->columns()[0] == data::column_spec{"data", dtype::f32, {2}, {}});
  DOCTEST_CHECK(set->columns()[1] == data::column_spec{"target", dtype::i64, {}, {}});
  data::batch out;
  DOCTEST_REQUIRE(set->fetch(std::vector<std::uint64_t>{7, 0, 7}, out));
  const auto values = out.values<float>("data");
  DOCTEST_CHECK(std::vector<float>(values.begin(), values.end()) == std::vector<float>{7, 8, 0, 1, 7, 8});
  const auto labels = out.values<std::int64_t>("target");
  DOCTEST_CHECK(std::vector<std::int64_t>(labels.begin(), labels.end()) == std::vector<std::int64_t>{1, 0, 1});
}

DOCTEST_TEST_CASE("transformations are applied, also those that change type and shape") {
  using torch::data::transforms::TensorLambda;
  const auto set = libtorch::adapt_data_set(
      pairs{}.map(TensorLambda<>{[](torch::Tensor x) { return (x - 1) / 2; }}).map(TensorLambda<>{[](torch::Tensor x) {
        return x.to(torch::kFloat64).reshape({2, 1});
      }}),
      "pairs");
  DOCTEST_CHECK(set->columns()[0] == data::column_spec{"data", dtype::f64, {2, 1}, {}});
  data::batch out;
  DOCTEST_REQUIRE(set->fetch(std::vector<std::uint64_t>{3}, out));
  const auto values = out.values<double>("data");
  DOCTEST_CHECK(std::vector<double>(values.begin(), values.end()) == std::vector<double>{1, 1.5});
}

DOCTEST_TEST_CASE("a loader takes it, and the name identifies it") {
  const auto set = libtorch::adapt_data_set(pairs{}, "pairs");
  auto batches = data::loader{set, {.batch_samples = 4}, 2, 1};
  const auto plan = batches.plan(1);
  DOCTEST_CHECK(plan.data.samples == 10);
  const auto samples = std::vector<std::uint64_t>{2, 5};
  DOCTEST_CHECK(value_or_throw(batches.fetch(step_id{1}, shard_id{0}, samples))->values<float>("data")[2] == 5);
  DOCTEST_CHECK(set->fingerprint() == libtorch::adapt_data_set(pairs{}, "pairs")->fingerprint());
  DOCTEST_CHECK(set->fingerprint() != libtorch::adapt_data_set(pairs{}, "other pairs")->fingerprint());
}

DOCTEST_TEST_CASE("what cannot be adapted is refused, and a bad sample is named when it is fetched") {
  auto none = pairs{};
  none.count = 0;
  DOCTEST_CHECK(message_of([&] { std::ignore = libtorch::adapt_data_set(none, "x"); }) ==
                "a torch::data set without samples");
  DOCTEST_CHECK(message_of([] { std::ignore = libtorch::adapt_data_set(pairs{}, ""); }).find("needs a name") !=
                std::string::npos);
  auto mixed = pairs{};
  mixed.odd = 4;
  mixed.throws = 5;
  const auto set = libtorch::adapt_data_set(mixed, "x");
  data::batch out;
  DOCTEST_CHECK(set->fetch(std::vector<std::uint64_t>{3}, out).has_value());
  const auto odd = set->fetch(std::vector<std::uint64_t>{4}, out);
  DOCTEST_REQUIRE(!odd);
  DOCTEST_CHECK(odd.error().message ==
                "sample 4 of a torch::data set: its 'data' is not f32[2], as that of sample 0 is");
  const auto thrown = set->fetch(std::vector<std::uint64_t>{5}, out);
  DOCTEST_REQUIRE(!thrown);
  DOCTEST_CHECK(thrown.error().message == "sample 5 of a torch::data set: no such file");
}

} // namespace
