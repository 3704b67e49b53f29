#include <troupe/data/evaluation.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/chunk_plan.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/part.hpp>

#include <troupe/data_order.hpp>

#include <doctest/doctest.h>
#include <scratch_directory.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::data;

namespace {

constexpr auto missing = std::numeric_limits<float>::quiet_NaN();

category_names names(std::vector<std::string> x) {
  return std::make_shared<const std::vector<std::string>>(std::move(x));
}

data_set_ptr table_of(std::vector<column> columns) {
  return value_or_throw(make_table(std::move(columns)));
}

batch all_of(const data_set& set) {
  std::vector<std::uint64_t> samples(set.size());
  std::iota(samples.begin(), samples.end(), 0u);
  batch result;
  value_or_throw(set.fetch(samples, result));
  return result;
}

batch fitted_and_applied(preprocessor& how, const data_set& set) {
  auto reduction = local_reduction{4};
  how.fit(set, reduction);
  auto result = all_of(set);
  value_or_throw(how.transform(result));
  return result;
}

/// Counts heartbeats.
class watched_reduction final : public exact_reduction {
 public:
  [[nodiscard]] std::uint32_t shards() const noexcept override { return all_.shards(); }
  [[nodiscard]] std::vector<double> sum(std::uint64_t samples, std::size_t number_of_sums,
                                        const contribution& function) override {
    return all_.sum(samples, number_of_sums, function);
  }
  void heartbeat() noexcept override { ++told; }

  int told = 0;

 private:
  local_reduction all_{2};
};

template <class T>
std::vector<T> values(const batch& x, const char* column) {
  auto found = x.values<T>(column);
  return {found.begin(), found.end()};
}

std::vector<float> floats(const batch& x, const char* column) {
  return values<float>(x, column);
}

/// The error that `f` throws.
template <class F>
error thrown_by(F f) {
  try {
    f();
  } catch (const exception& x) {
    return x.reason();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A checkpoint of the tracked state.
serialization::checkpoint saved(const testing::scratch_directory& scratch, const tracked_state& state) {
  serialization::manifest content;
  content.run = run_id{"0123456789abcdef0123456789abcdef"};
  content.step = step_id{5};
  content.generation = generation_id{1};
  content.world_size = 1;
  content.values_json = state.values().dump();
  auto specs = state.specs();
  auto plan = serialization::plan_chunks(specs, 1);
  auto temporary = scratch.path() / serialization::temporary_name({content.run, content.step, content.generation, 1});
  std::vector<serialization::part_report> reports{
      value_or_throw(serialization::write_part(temporary, 0, plan, state.tensors()))};
  value_or_throw(serialization::add_parts(content, specs, plan, reports));
  return value_or_throw(serialization::checkpoint::open(
      value_or_throw(serialization::commit_checkpoint(scratch.path(), temporary, content))));
}

/// Numbers and categories, some missing; enough that shards differ.
data_set_ptr mixed(std::uint64_t size) {
  std::vector<double> a;
  std::vector<float> b;
  std::vector<std::int64_t> kind;
  std::vector<std::int64_t> grade;
  for (std::uint64_t i = 0; i < size; ++i) {
    auto x = keyed_permutation{1u << 20u, 9, i}(7);
    a.push_back(1e6 + static_cast<double>(x) / 997);
    b.push_back(x % 5 == 0 ? missing : static_cast<float>(x % 1000) / 7);
    b.push_back(static_cast<float>(x % 3) * 1e-3f);
    kind.push_back(static_cast<std::int64_t>(x % 6) - 1);
    grade.push_back(static_cast<std::int64_t>(x % 11) * 10 - 30);
  }
  return table_of({make_column("a", a), make_column("b", b, {2}),
                   make_column("kind", kind, {}, names({"red", "", "green", "blu\xc3\xa9", "never", "a\nb"})),
                   make_column("grade", grade)});
}

preprocessor_ptr everything() {
  return chain({mean_imputer({"b"}), standard_scaler({"a"}), min_max_scaler({"b"}, -1, 1),
                one_hot_encoder({"kind"}, unknown_category::own_category), ordinal_encoder({"grade"}),
                column_join({"a", "b", "kind"}, "inputs")});
}

} // namespace

TEST_CASE("numbers and bytes are collected shard by shard, whatever they are") {
  for (std::uint32_t shards : {1u, 3u, 8u, 13u})
    for (std::uint64_t samples : {1u, 5u, 8u, 100u}) {
      auto reduction = local_reduction{shards};
      auto numbers = reduction.collect(samples, 2, [](std::span<const std::uint64_t> own, std::span<double> out) {
        out[0] = own.size() % 2 == 0 ? missing : -1e300;
        out[1] = static_cast<double>(own.front());
      });
      CHECK(numbers.size() == std::min<std::uint64_t>(shards, samples));
      CHECK(std::ranges::is_sorted(numbers, {}, [](const auto& x) { return x[1]; }));
      auto text_of = [](std::uint64_t first) {
        std::string result;
        for (std::uint64_t i = 0; i < first % 20; ++i)
          result += static_cast<char>(255 - 11 * i);
        return result;
      };
      auto texts =
          reduction.collect_bytes(samples, [&](std::span<const std::uint64_t> own) { return text_of(own.front()); });
      REQUIRE(texts.size() == numbers.size());
      for (std::size_t i = 0; i < texts.size(); ++i)
        CHECK(texts[i] == text_of(static_cast<std::uint64_t>(numbers[i][1])));
    }
}

TEST_CASE("a standard scaler yields mean 0 and variance 1, and constants become 0") {
  auto set = table_of({make_column("x", std::vector<float>{1, 2, 3, 4}),
                       make_column("y", std::vector<std::int64_t>{5, 5, 5, 5, -1, 1, -1, 1}, {2})});
  auto scaler = standard_scaler({"x", "y"});
  auto out = fitted_and_applied(*scaler, *set);
  auto scaled = [](double x) { return static_cast<float>((x - 2.5) / std::sqrt(1.25)); };
  CHECK(floats(out, "x") == std::vector<float>{scaled(1), scaled(2), scaled(3), scaled(4)});
  // Each element of a sample is a feature: (5, 5, -1, -1) and (5, 5, 1, 1).
  CHECK(floats(out, "y") == std::vector<float>{1, 1, 1, 1, -1, -1, -1, -1});
  CHECK(out.tensor("y").spec.shape == std::vector<std::uint64_t>{4, 2});
  value_or_throw(scaler->inverse(out));
  CHECK(floats(out, "y") == std::vector<float>{5, 5, 5, 5, -1, 1, -1, 1});
  auto constant = table_of({make_column("x", std::vector<double>{7, 7, 7})});
  CHECK(floats(fitted_and_applied(*standard_scaler({"x"}), *constant), "x") == std::vector<float>{0, 0, 0});
}

TEST_CASE("two passes keep the variance of numbers far from zero") {
  std::vector<double> x(1000);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = 1e9 + static_cast<double>(i % 2);
  auto out = fitted_and_applied(*standard_scaler({"x"}), *table_of({make_column("x", x)}));
  CHECK(floats(out, "x")[0] == doctest::Approx(-1));
  CHECK(floats(out, "x")[1] == doctest::Approx(1));
}

TEST_CASE("a min-max scaler maps the training range, and a mean imputer fills missing values") {
  auto set = table_of({make_column("x", std::vector<float>{2, missing, 6, 4, -0.0f})});
  auto scaler = min_max_scaler({"x"}, -1, 2);
  auto out = fitted_and_applied(*scaler, *set);
  CHECK(floats(out, "x")[0] == 0);
  CHECK(std::isnan(floats(out, "x")[1]));
  CHECK(floats(out, "x")[2] == 2);
  CHECK(floats(out, "x")[4] == -1);
  value_or_throw(scaler->inverse(out));
  CHECK(floats(out, "x")[3] == 4);
  CHECK(floats(fitted_and_applied(*min_max_scaler({"x"}), *table_of({make_column("x", std::vector<float>{3, 3})})),
               "x") == std::vector<float>{0, 0});
  CHECK(floats(fitted_and_applied(*mean_imputer({"x"}), *set), "x") == std::vector<float>{2, 3, 6, 4, 0});
}

TEST_CASE("normalisers and rescalers learn nothing") {
  auto set = table_of(
      {make_column("x", std::vector<float>{3, -4, 0, 0}, {2}), make_column("p", std::vector<std::uint8_t>{0, 255})});
  auto normalised = [&](vector_norm norm) { return floats(fitted_and_applied(*normaliser({"x"}, norm), *set), "x"); };
  CHECK(normalised(vector_norm::l2) == std::vector<float>{0.6f, -0.8f, 0, 0});
  CHECK(normalised(vector_norm::l1) == std::vector<float>{3.0f / 7, -4.0f / 7, 0, 0});
  CHECK(normalised(vector_norm::max) == std::vector<float>{0.75f, -1, 0, 0});
  auto pixels = all_of(*set);
  REQUIRE(rescaler({"p"}, 1.0 / 255)->transform(pixels).has_value()); // without fit
  CHECK(floats(pixels, "p") == std::vector<float>{0, 1});
  REQUIRE(rescaler({"p"}, 1.0 / 255)->inverse(pixels).has_value());
  CHECK(floats(pixels, "p") == std::vector<float>{0, 255});
  auto done = normaliser({"x"})->inverse(pixels);
  REQUIRE_FALSE(done.has_value());
  CHECK(done.error() == error{errc::unsatisfiable, "normaliser has no inverse"});
}

TEST_CASE("encoders number categories by their texts, or by value, and decode them") {
  auto set = table_of({make_column("c", std::vector<std::int64_t>{2, 0, 2, 3}, {}, names({"b", "unused", "a", "B"})),
                       make_column("n", std::vector<std::int64_t>{10, -5, 9, 10})});
  auto encoder = ordinal_encoder({"c", "n"});
  auto out = fitted_and_applied(*encoder, *set);
  CHECK(values<std::int64_t>(out, "c") == std::vector<std::int64_t>{1, 2, 1, 0}); // B a b
  CHECK(values<std::int64_t>(out, "n") == std::vector<std::int64_t>{2, 0, 1, 2});
  value_or_throw(encoder->inverse(out));
  CHECK(values<std::int64_t>(out, "n") == std::vector<std::int64_t>{10, -5, 9, 10});
  CHECK(*out.columns()[0].categories == std::vector<std::string>{"B", "a", "b"});
  CHECK(values<std::int64_t>(out, "c") == std::vector<std::int64_t>{1, 2, 1, 0});

  auto one_hot = one_hot_encoder({"c"}, unknown_category::own_category);
  auto vectors = fitted_and_applied(*one_hot, *set);
  CHECK(floats(vectors, "c") == std::vector<float>{0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0});
  value_or_throw(one_hot->inverse(vectors));
  CHECK(values<std::int64_t>(vectors, "c") == std::vector<std::int64_t>{1, 2, 1, 0});
}

TEST_CASE("another file's codes are translated by their texts, and unknown texts are refused or a category") {
  auto training = table_of({make_column("c", std::vector<std::int64_t>{0, 1}, {}, names({"x", "y"}))});
  auto other = table_of({make_column("c", std::vector<std::int64_t>{0, 1, 2, -1}, {}, names({"new\n", "y", "x"}))});
  auto reduction = local_reduction{};
  auto strict = ordinal_encoder({"c"});
  strict->fit(*training, reduction);
  auto refused = all_of(*other);
  auto done = strict->transform(refused);
  REQUIRE_FALSE(done.has_value());
  CHECK(done.error().code == errc::invalid_argument);
  CHECK(contains(done.error().message, "ordinal_encoder: column 'c': 'new?' was not in the training data"));

  auto open = ordinal_encoder({"c"}, unknown_category::own_category);
  open->fit(*training, reduction);
  auto encoded = all_of(*other);
  REQUIRE(open->transform(encoded).has_value());
  CHECK(values<std::int64_t>(encoded, "c") == std::vector<std::int64_t>{2, 1, 0, 2});
  REQUIRE(open->inverse(encoded).has_value());
  CHECK(values<std::int64_t>(encoded, "c") == std::vector<std::int64_t>{-1, 1, 0, -1});
  auto whole = one_hot_encoder({"c"}, unknown_category::own_category);
  whole->fit(*training, reduction);
  auto vectors = all_of(*other);
  REQUIRE(whole->transform(vectors).has_value());
  CHECK(floats(vectors, "c") == std::vector<float>{0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 1});
}

TEST_CASE("a chain fits each part on the output of those before it, and transforms a data set") {
  auto set = mixed(500);
  auto how = everything();
  auto reduction = local_reduction{};
  how->fit(*set, reduction);
  auto view = value_or_throw(transformed(set, how));
  REQUIRE(view->columns().size() == 2);
  CHECK(view->columns()[0] == column_spec{"grade", dtype::i64, {}, {}});
  // The data has five kinds (one of six codes is "missing"; "a\nb" has no sample), plus one for unknown ones.
  CHECK(view->columns()[1] == column_spec{"inputs", dtype::f32, {1 + 2 + 6}, {}});
  CHECK(view->fingerprint() != set->fingerprint());
  auto inputs = all_of(*view);
  auto rows = inputs.values<float>("inputs");
  auto once = all_of(*set);
  REQUIRE(how->transform(once).has_value());
  CHECK(std::ranges::equal(rows, once.values<float>("inputs")));
  double mean = 0;
  for (std::size_t i = 0; i < rows.size(); i += 9) {
    mean += rows[i] / 500;
    CHECK(std::abs(rows[i + 1]) <= 1);
    CHECK(std::accumulate(rows.begin() + static_cast<std::ptrdiff_t>(i) + 3,
                          rows.begin() + static_cast<std::ptrdiff_t>(i) + 9, 0.0f) == 1);
  }
  CHECK(mean == doctest::Approx(0).epsilon(1e-6));
}

TEST_CASE("what cannot be fitted or applied is refused with the reason") {
  auto set =
      table_of({make_column("x", std::vector<float>{1, 2}), make_column("gone", std::vector<float>{missing, missing}),
                make_column("far", std::vector<double>{1, std::numeric_limits<double>::infinity()}),
                make_column("c", std::vector<std::int64_t>{0, -1}, {}, names({"a"})),
                make_column("none", std::vector<std::int64_t>{-1, -1}, {}, names({"a"})),
                make_column("v", std::vector<std::int64_t>{1, 2, 3, 4}, {2})});
  auto reduction = local_reduction{};
  struct sample_case {
    preprocessor_ptr how;
    errc code;
    std::string says;
  };
  for (const auto& [how, code, says] : {
           sample_case{standard_scaler({"y"}), errc::not_found, "standard_scaler: no column 'y'"},
           sample_case{standard_scaler({"c"}), errc::mismatch, "column 'c' is categorical, and this takes numbers"},
           sample_case{standard_scaler({"x", "gone"}), errc::invalid_argument,
                       "column 'gone', number 0 of a sample: all values are missing"},
           sample_case{mean_imputer({"gone"}), errc::invalid_argument, "all values are missing"},
           sample_case{min_max_scaler({"gone"}), errc::invalid_argument, "all values are missing"},
           sample_case{standard_scaler({"far"}), errc::invalid_argument, "the mean is not finite"},
           sample_case{min_max_scaler({"far"}), errc::invalid_argument, "the range is not finite"},
           sample_case{one_hot_encoder({"x"}), errc::mismatch, "column 'x' is f32, and only texts and integers"},
           sample_case{one_hot_encoder({"v"}), errc::mismatch, "column 'v' is i64[2], and only single numbers"},
           sample_case{ordinal_encoder({"none"}), errc::invalid_argument, "column 'none': all values are missing"},
           sample_case{column_join({"c"}, "all"), errc::mismatch, "only f32 numbers are joined"},
           sample_case{column_join({"x"}, "v"), errc::invalid_argument, "column 'v' already exists"},
           sample_case{chain({standard_scaler({"x"}), standard_scaler({"z"})}), errc::not_found, "no column 'z'"},
       }) {
    auto why = thrown_by([&] { how->fit(*set, reduction); });
    CHECK_MESSAGE(why.code == code, says);
    CHECK_MESSAGE(contains(why.message, says), why.message);
  }
  for (const auto& how : {standard_scaler({"x"}), min_max_scaler({"x"}), mean_imputer({"x"}), ordinal_encoder({"c"}),
                          one_hot_encoder({"c"}), chain({standard_scaler({"x"})})}) {
    auto samples = all_of(*set);
    auto done = how->transform(samples);
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().code == errc::invalid_argument);
    CHECK(contains(done.error().message, "is not fitted: call fit first"));
    CHECK_FALSE(transformed(set, how).has_value());
  }
  auto scaler = standard_scaler({"x"});
  scaler->fit(*set, reduction);
  auto wide = all_of(*table_of({make_column("x", std::vector<float>{1, 2}, {2})}));
  CHECK(contains(scaler->transform(wide).error().message, "fitted on 1 numbers per sample"));
  CHECK_THROWS_AS((void)min_max_scaler({"x"}, 1, 1), exception);
  CHECK_THROWS_AS((void)rescaler({"x"}, 0), exception);
}

TEST_CASE("what was learned is tracked, saved and loaded for predictions") {
  auto set = mixed(300);
  auto how = everything();
  auto reduction = local_reduction{};
  how->fit(*set, reduction);
  tracked_state state;
  how->track(state, "inputs");
  testing::scratch_directory scratch;
  auto stored = saved(scratch, state);

  auto loaded = load_preprocessor(stored, "inputs");
  REQUIRE_MESSAGE(loaded.has_value(), loaded.error().message);
  auto expected = all_of(*set);
  auto found = all_of(*set);
  value_or_throw(how->transform(expected));
  value_or_throw((*loaded)->transform(found));
  CHECK(std::ranges::equal(expected.values<float>("inputs"), found.values<float>("inputs")));
  CHECK(std::ranges::equal(expected.values<std::int64_t>("grade"), found.values<std::int64_t>("grade")));

  CHECK(load_preprocessor(stored, "outputs").error().code == errc::not_found);
  auto other = standard_scaler({"a"});
  CHECK(other->restore(stored, "inputs").error().code == errc::mismatch);
  // Tracked memory must not move.
  CHECK(thrown_by([&] { how->fit(*set, reduction); }).code == errc::invalid_argument);
}

TEST_CASE("a resumed run has what its checkpoint learned, and refuses another shape") {
  testing::scratch_directory scratch;
  auto reduction = local_reduction{};
  tracked_state before;
  auto first = standard_scaler({"x"});
  first->fit(*table_of({make_column("x", std::vector<float>{0, 4})}), reduction);
  first->track(before, "p");
  auto stored = std::make_shared<const serialization::checkpoint>(saved(scratch, before));

  tracked_state after;
  after.restore_from(stored);
  auto again = standard_scaler({"x"});
  again->fit(*table_of({make_column("x", std::vector<float>{10, 30})}), reduction);
  again->track(after, "p");
  auto out = all_of(*table_of({make_column("x", std::vector<float>{4})}));
  value_or_throw(again->transform(out));
  CHECK(floats(out, "x")[0] == 1);
  CHECK(after.sha256() == before.sha256());

  tracked_state wrong;
  wrong.restore_from(stored);
  auto wide = standard_scaler({"x"});
  wide->fit(*table_of({make_column("x", std::vector<float>{1, 2, 3, 4}, {2})}), reduction);
  wide->track(wrong, "p");
  CHECK(thrown_by([&] { wrong.check_restored(); }).code == errc::mismatch);
}

TEST_CASE("a preprocessor is made again from its description, and from nothing else") {
  for (const auto& how : {standard_scaler({"a", "b"}), min_max_scaler({"a"}, -2, 3), mean_imputer({"a"}),
                          normaliser({"a"}, vector_norm::l1), normaliser({"a"}, vector_norm::max), rescaler({"a"}, 0.5),
                          one_hot_encoder({"a"}, unknown_category::own_category), ordinal_encoder({"a"}),
                          column_join({"a"}, "b"), everything()}) {
    auto again = make_preprocessor(how->description());
    REQUIRE(again.has_value());
    CHECK((*again)->description() == how->description());
  }
  using nlohmann::json;
  CHECK(make_preprocessor(json{{"kind", "magic"}, {"columns", json::array()}}).error().code == errc::not_found);
  CHECK(make_preprocessor(json{{"kind", "rescaler"}}).error().code == errc::damaged);
  CHECK(make_preprocessor(json{{"kind", "normaliser"}, {"columns", {"a"}}, {"norm", "l9"}}).error().code ==
        errc::damaged);
  CHECK(make_preprocessor(json{3}).error().code == errc::damaged);
}

TEST_CASE("damaged categories are refused and never read beyond their end") {
  auto encoder = ordinal_encoder({"c"});
  using tensors = std::map<std::string, preprocessor::state_tensor>;
  auto tensor = [](std::string name, dtype type, auto values) {
    auto bytes = std::as_bytes(std::span{values});
    return std::pair{name, preprocessor::state_tensor{{name, type, {values.size()}}, {bytes.begin(), bytes.end()}}};
  };
  auto text = std::vector<std::uint8_t>{'a', 'b'};
  CHECK(encoder->adopt_state(
      "", tensors{tensor("c.texts", dtype::u8, text), tensor("c.ends", dtype::i64, std::vector<std::int64_t>{1, 2})}));
  for (const auto& ends : {std::vector<std::int64_t>{1, 3}, std::vector<std::int64_t>{2, 1},
                           std::vector<std::int64_t>{-1, 2}, std::vector<std::int64_t>{1}, std::vector<std::int64_t>{}})
    CHECK_FALSE(
        encoder->adopt_state("", tensors{tensor("c.texts", dtype::u8, text), tensor("c.ends", dtype::i64, ends)}));
}

TEST_CASE("an evaluation sums over all samples, however they are distributed and fetched") {
  auto set = mixed(101);
  for (std::uint32_t shards : {1u, 8u, 200u})
    for (std::uint64_t piece : {1u, 7u, 1000u}) {
      auto reduction = local_reduction{shards};
      auto sums = evaluate(
          reduction, *set, 2,
          [](const batch& samples, std::span<double> out) {
            for (auto grade : samples.values<std::int64_t>("grade"))
              out[0] += static_cast<double>(grade);
            out[1] += static_cast<double>(samples.size());
          },
          piece);
      auto grades = values<std::int64_t>(all_of(*set), "grade");
      CHECK(sums[0] == static_cast<double>(std::accumulate(grades.begin(), grades.end(), std::int64_t{0})));
      CHECK(sums[1] == 101);
    }
  auto reduction = local_reduction{};
  auto nothing = table_of({make_column("x", std::vector<float>{})});
  CHECK_THROWS_AS((void)evaluate(reduction, *nothing, 1, [](const batch&, std::span<double>) {}), exception);
  CHECK_THROWS_AS((void)evaluate(
                      reduction, *set, 1, [](const batch&, std::span<double>) {}, 0),
                  exception);
}

TEST_CASE("each fitted or evaluated batch sends a heartbeat") {
  std::vector<float> sizes(20'000);
  std::iota(sizes.begin(), sizes.end(), 0.0f);
  auto codes = std::vector<std::int64_t>(sizes.begin(), sizes.end());
  auto table = table_of({make_column("size", std::move(sizes)), make_column("code", std::move(codes))});
  const std::vector<preprocessor_ptr> all{standard_scaler({"size"}), min_max_scaler({"size"}), mean_imputer({"size"}),
                                          ordinal_encoder({"code"})};
  for (const auto& each : all) {
    watched_reduction reduction;
    each->fit(*table, reduction);
    INFO(each->description().dump());
    CHECK(reduction.told >= 4);
  }
  watched_reduction reduction;
  (void)evaluate(
      reduction, *table, 1, [](const batch&, std::span<double>) {}, 500);
  CHECK(reduction.told == 40);
}
