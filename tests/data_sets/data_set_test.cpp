#include <troupe/data/data_set.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace troupe::data;

namespace {

/// `size` samples: each one's number, and a small image made from it.
data_set_ptr numbered(std::uint64_t size, std::int64_t first = 0) {
  std::vector<std::int64_t> number(size);
  std::iota(number.begin(), number.end(), first);
  std::vector<std::uint8_t> image;
  for (auto n : number)
    for (int i = 0; i < 6; ++i)
      image.push_back(static_cast<std::uint8_t>(7 * n + i));
  return value_or_throw(make_table({make_column("image", image, {2, 3}), make_column("number", number)}));
}

std::vector<std::int64_t> numbers(const data_set& set, const std::vector<std::uint64_t>& samples) {
  batch out;
  value_or_throw(set.fetch(samples, out));
  auto values = out.values<std::int64_t>("number");
  return {values.begin(), values.end()};
}

std::vector<std::int64_t> all_numbers(const data_set& set) {
  std::vector<std::uint64_t> samples(set.size());
  std::iota(samples.begin(), samples.end(), 0u);
  return numbers(set, samples);
}

/// A user-defined data set: squares.
class squares final : public data_set {
 public:
  explicit squares(std::uint64_t size) : size_(size) {}
  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return columns_; }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_of("squares " + std::to_string(size_)); }

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override {
    auto square = out.values<double>("square");
    for (std::size_t i = 0; i < samples.size(); ++i)
      square[i] = static_cast<double>(samples[i] * samples[i]);
    return {};
  }

 private:
  std::uint64_t size_;
  std::vector<column_spec> columns_{{"square", dtype::f64, {}, {}}};
};

} // namespace

TEST_CASE("a batch holds the requested samples in order, in one tensor per column") {
  auto set = numbered(100);
  CHECK(set->size() == 100);
  batch out;
  const auto samples = std::vector<std::uint64_t>{5, 6, 7, 99, 0, 5};
  REQUIRE(set->fetch(samples, out).has_value());
  CHECK(out.size() == 6);
  auto number = out.values<std::int64_t>("number");
  CHECK(std::vector(number.begin(), number.end()) == std::vector<std::int64_t>{5, 6, 7, 99, 0, 5});
  auto image = out.tensor("image");
  CHECK(image.spec == tensor_spec{"image", dtype::u8, {6, 2, 3}});
  CHECK(reinterpret_cast<std::uintptr_t>(image.data) % 64 == 0);
  for (std::size_t i = 0; i < samples.size(); ++i)
    for (std::size_t j = 0; j < 6; ++j)
      CHECK(std::to_integer<std::uint8_t>(image.data[6 * i + j]) == static_cast<std::uint8_t>(7 * samples[i] + j));
}

TEST_CASE("rows of every size are copied completely") {
  for (std::uint64_t width : {1u, 2u, 3u, 4u, 7u, 8u, 9u, 64u, 100u}) {
    std::vector<std::uint8_t> values(50 * width);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::uint8_t>(i * 31 % 251);
    auto set = value_or_throw(make_table({make_column("row", values, {width})}));
    batch out;
    for (const auto& samples : {std::vector<std::uint64_t>{3, 49, 0}, std::vector<std::uint64_t>{1, 2, 3, 4, 10, 11}}) {
      REQUIRE(set->fetch(samples, out).has_value());
      auto row = out.values<std::uint8_t>("row");
      REQUIRE(row.size() == samples.size() * width);
      for (std::size_t i = 0; i < samples.size(); ++i)
        CHECK(std::ranges::equal(row.subspan(i * width, width), std::span{values}.subspan(samples[i] * width, width)));
    }
  }
}

TEST_CASE("accessing a missing column names the existing ones") {
  batch out;
  REQUIRE(numbered(3)->fetch(std::vector<std::uint64_t>{0}, out).has_value());
  try {
    (void)out.values<float>("label");
    FAIL("there is no such column");
  } catch (const exception& x) {
    CHECK(x.code() == errc::not_found);
    CHECK(std::string{x.what()} == "no column 'label': the batch has 'image', 'number'");
  }
  try {
    (void)out.values<float>("image");
    FAIL("the column has another type");
  } catch (const exception& x) {
    CHECK(x.code() == errc::mismatch);
    CHECK(std::string{x.what()} == "column 'image' is u8[2, 3], but is accessed as f32");
  }
}

TEST_CASE("every kind of data set refuses a sample that does not exist") {
  auto set = numbered(10);
  auto parts = value_or_throw(split(set, 0.2));
  for (const auto& each :
       {set, parts.training, value_or_throw(slice(set, 2, 5)), value_or_throw(subset(set, {3, 1})),
        value_or_throw(concatenate({set, set})), value_or_throw(zip({std::make_shared<const squares>(10), set}))}) {
    batch out;
    auto done = each->fetch(std::vector<std::uint64_t>{0, each->size()}, out);
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().code == errc::invalid_argument);
    CHECK(done.error().message.find("sample " + std::to_string(each->size()) + " of a data set of") == 0);
  }
}

TEST_CASE("columns that do not match are refused") {
  const auto two = std::vector<float>{1, 2};
  struct sample_case {
    std::vector<column> columns;
    std::string says;
  };
  for (const auto& [columns, says] : {
           sample_case{{}, "at least one column"},
           sample_case{{make_column("a", two), make_column("a", two)}, "two columns are named 'a'"},
           sample_case{{make_column("a", two), make_column("b", std::vector<float>{1})}, "column 'b' has 1 samples"},
           sample_case{{make_column("a", two, {3})}, "not a whole number of samples of f32[3]"},
       }) {
    auto made = make_table(columns);
    REQUIRE_FALSE(made.has_value());
    CHECK(made.error().code == errc::invalid_argument);
    CHECK_MESSAGE(made.error().message.find(says) != std::string::npos, made.error().message);
  }
}

TEST_CASE("a tensor becomes a column whose first dimension is the samples") {
  auto bytes = std::vector<std::byte>(24);
  auto made = make_column("x", tensor_spec{"", dtype::f32, {3, 2}}, bytes);
  REQUIRE(made.has_value());
  CHECK(made->spec == column_spec{"x", dtype::f32, {2}, {}});
  CHECK(made->samples() == 3);
  CHECK_FALSE(make_column("x", tensor_spec{"", dtype::f32, {}}, {}).has_value());
  CHECK_FALSE(make_column("x", tensor_spec{"", dtype::f32, {3, 3}}, bytes).has_value());
}

TEST_CASE("a fingerprint changes with the content, and only with it") {
  auto made = [](std::string name, std::vector<float> values, std::vector<std::uint64_t> shape = {},
                 category_names categories = {}) {
    return value_or_throw(make_table({make_column(std::move(name), std::move(values), std::move(shape), categories)}))
        ->fingerprint();
  };
  auto names = [](std::vector<std::string> x) {
    return std::make_shared<const std::vector<std::string>>(std::move(x));
  };
  const auto print = made("a", {1, 2, 3, 4});
  CHECK(made("a", {1, 2, 3, 4}) == print);
  // Stored values: other processes and versions must yield the same.
  CHECK(print == "b951e6391ba769c52290aefb500623a1");
  std::set<std::string> prints{print,
                               made("b", {1, 2, 3, 4}),
                               made("a", {1, 2, 3, 5}),
                               made("a", {1, 2, 3}),
                               made("a", {1, 2, 3, 4}, {2}),
                               made("a", {1, 2, 3, 4}, {4}),
                               made("a", {1, 2, 3, 4}, {}, names({})),
                               made("a", {1, 2, 3, 4}, {}, names({"x", "yz"})),
                               made("a", {1, 2, 3, 4}, {}, names({"xy", "z"}))};
  CHECK(prints.size() == 9);

  auto set = numbered(20);
  auto parts = value_or_throw(split(set, 0.5));
  auto others = value_or_throw(split(set, 0.5, split_by::permutation, 1));
  auto tails = value_or_throw(split(set, 0.5, split_by::tail));
  std::set<std::string> views{set->fingerprint(),
                              parts.training->fingerprint(),
                              parts.validation->fingerprint(),
                              others.training->fingerprint(),
                              tails.training->fingerprint(),
                              tails.validation->fingerprint(),
                              value_or_throw(subset(set, {1, 2}))->fingerprint(),
                              value_or_throw(subset(set, {2, 1}))->fingerprint(),
                              value_or_throw(concatenate({set, set}))->fingerprint()};
  CHECK(views.size() == 9);
  CHECK(value_or_throw(split(numbered(20), 0.5)).training->fingerprint() == parts.training->fingerprint());
}

TEST_CASE("a split assigns every sample to one part, by its fraction, deterministically") {
  for (std::uint64_t size : {2u, 3u, 10u, 150u, 1001u})
    for (double fraction : {0.1, 0.25, 0.5, 0.9})
      for (auto how : {split_by::permutation, split_by::tail}) {
        CAPTURE(size);
        CAPTURE(fraction);
        auto set = numbered(size);
        auto parts = split(set, fraction, how, 7);
        auto held_out = static_cast<std::uint64_t>(fraction * static_cast<double>(size));
        if (held_out == 0) {
          CHECK_FALSE(parts.has_value());
          continue;
        }
        REQUIRE(parts.has_value());
        CHECK(parts->validation->size() == held_out);
        auto all = all_numbers(*parts->training);
        auto rest = all_numbers(*parts->validation);
        CHECK(all_numbers(*value_or_throw(split(set, fraction, how, 7)).training) == all);
        all.insert(all.end(), rest.begin(), rest.end());
        if (how == split_by::tail)
          CHECK(std::ranges::is_sorted(all));
        std::ranges::sort(all);
        CHECK(all == all_numbers(*set));
      }
  auto set = numbered(1000);
  CHECK(all_numbers(*value_or_throw(split(set, 0.5, split_by::permutation, 1)).training) !=
        all_numbers(*value_or_throw(split(set, 0.5, split_by::permutation, 2)).training));
  for (double fraction : {0.0, 1.0, -1.0, 2.0, std::nan("")})
    CHECK_FALSE(split(set, fraction).has_value());
}

TEST_CASE("slices, subsets and concatenations have the samples they name") {
  auto set = numbered(10);
  CHECK(all_numbers(*value_or_throw(slice(set, 3, 4))) == std::vector<std::int64_t>{3, 4, 5, 6});
  CHECK(all_numbers(*value_or_throw(subset(set, {9, 0, 9}))) == std::vector<std::int64_t>{9, 0, 9});
  auto both = value_or_throw(concatenate({set, numbered(3, 100), numbered(1, 200)}));
  CHECK(both->size() == 14);
  CHECK(numbers(*both, {13, 0, 10, 9, 12}) == std::vector<std::int64_t>{200, 0, 100, 9, 102});
  CHECK(all_numbers(*value_or_throw(slice(both, 9, 3))) == std::vector<std::int64_t>{9, 100, 101});
  CHECK_FALSE(slice(set, 8, 3).has_value());
  CHECK_FALSE(slice(set, 11, 0).has_value());
  CHECK_FALSE(subset(set, {10}).has_value());
  auto other = value_or_throw(make_table({make_column("number", std::vector<float>{1})}));
  CHECK(concatenate({set, other}).error().code == errc::mismatch);
  CHECK_FALSE(concatenate({}).has_value());
}

TEST_CASE("tables and user-defined data sets can be zipped") {
  auto images = value_or_throw(make_table({make_column("image", std::vector<std::uint8_t>(40), {4})}));
  auto joined = value_or_throw(zip({images, numbered(10)})
                                   .map_error([](const error& x) {
                                     CHECK(x.message.find("two columns are named 'image'") == 0);
                                     return x;
                                   })
                                   .or_else([&](const error&) {
                                     return zip({images, std::make_shared<const squares>(10)});
                                   }));
  CHECK(joined->columns().size() == 2);
  batch out;
  REQUIRE(joined->fetch(std::vector<std::uint64_t>{3, 9}, out).has_value());
  CHECK(out.values<double>("square")[1] == 81);
  CHECK(out.values<std::uint8_t>("image").size() == 8);
  CHECK_FALSE(zip({images, std::make_shared<const squares>(11)}).has_value());
  CHECK_FALSE(zip({}).has_value());
}

TEST_CASE("several threads fetch from one data set at once") {
  auto set = value_or_throw(concatenate({numbered(500), numbered(500, 500)}));
  std::vector<std::uint64_t> wrong(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      batch out;
      for (std::uint64_t i = 0; i < 500; ++i) {
        const auto samples = std::vector<std::uint64_t>{(i * 7 + t) % 1000, (i * 13 + t) % 1000};
        auto done = set->fetch(samples, out);
        for (std::size_t j = 0; done && j < samples.size(); ++j)
          wrong[t] += out.values<std::int64_t>("number")[j] != static_cast<std::int64_t>(samples[j]);
        wrong[t] += !done;
      }
    });
  for (auto& each : threads)
    each.join();
  CHECK(wrong == std::vector<std::uint64_t>(4));
}

TEST_CASE("a batch reuses its memory, and gives and takes columns") {
  auto set = numbered(100);
  batch out;
  REQUIRE(set->fetch(std::vector<std::uint64_t>{1, 2, 3, 4}, out).has_value());
  auto* place = out.tensor("image").data;
  REQUIRE(set->fetch(std::vector<std::uint64_t>{4, 5}, out).has_value());
  CHECK(out.tensor("image").data == place);
  CHECK(out.values<std::int64_t>("number").size() == 2);

  auto old = out.replace(out.index_of("image"), {"bright", dtype::f32, {2, 3}, {}});
  CHECK(old.spec.name == "image");
  CHECK(old.buffer.data() == place);
  CHECK(out.values<float>("bright").size() == 12);
  CHECK_FALSE(out.find("image").has_value());
  out.recycle(std::move(old));
  CHECK(out.add({"flag", dtype::u8, {}, {}}) == 2);
  CHECK(out.tensor("flag").data == place); // the smallest spare buffer that is large enough
  CHECK(out.remove(1).spec.name == "number");
  CHECK(out.columns().size() == 2);
  CHECK(out.index_of("flag") == 1);
}
