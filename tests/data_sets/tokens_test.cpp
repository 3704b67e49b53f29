#include <troupe/data/npy.hpp>
#include <troupe/data/raw.hpp>
#include <troupe/data/tokens.hpp>

#include <doctest/doctest.h>
#include <scratch_directory.hpp>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::data;

namespace {

/// A file of the numbers 0, 1, 2, ...
struct token_file {
  testing::scratch_directory place;
  std::filesystem::path path = place.path() / "train.bin";

  explicit token_file(std::size_t count, std::uint16_t first = 0) {
    std::vector<std::uint16_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), first);
    std::ofstream{path, std::ios::binary}.write(reinterpret_cast<const char*>(tokens.data()),
                                                static_cast<std::streamsize>(tokens.size() * 2));
  }

  [[nodiscard]] column open() const { return value_or_throw(read_raw(path, "tokens", dtype::u16)); }
};

std::string error_of(const expected<data_set_ptr>& result) {
  REQUIRE(!result);
  return result.error().message;
}

TEST_CASE("a window is a context, and the tokens that follow each of its own") {
  const auto file = token_file{11};
  const auto set = value_or_throw(make_token_windows(file.open(), {.context = 3}));
  // 0-3, 3-6, 6-9: token 10 does not fill another.
  CHECK(set->size() == 3);
  batch out;
  REQUIRE(set->fetch(std::vector<std::uint64_t>{2, 0}, out));
  CHECK(std::ranges::equal(out.values<std::int64_t>("context"), std::vector<std::int64_t>{6, 7, 8, 0, 1, 2}));
  CHECK(std::ranges::equal(out.values<std::int64_t>("target"), std::vector<std::int64_t>{7, 8, 9, 1, 2, 3}));
  CHECK(set->columns()[0].shape == std::vector<std::uint64_t>{3});
}

TEST_CASE("every token but the first is a target once, unless windows overlap") {
  const auto file = token_file{1 + 5 * 20};
  const auto set = value_or_throw(make_token_windows(file.open(), {.context = 5}));
  std::vector<std::uint64_t> samples(set->size());
  std::iota(samples.begin(), samples.end(), std::uint64_t{0});
  batch out;
  REQUIRE(set->fetch(samples, out));
  const auto targets = out.values<std::int64_t>("target");
  REQUIRE(targets.size() == 100);
  for (std::size_t i = 0; i < targets.size(); ++i)
    CHECK(targets[i] == static_cast<std::int64_t>(i) + 1);
  CHECK(value_or_throw(make_token_windows(file.open(), {.context = 5, .stride = 1}))->size() == 96);
  CHECK(value_or_throw(make_token_windows(file.open(), {.context = 100}))->size() == 1);
}

TEST_CASE("the fingerprint changes with the tokens, the windows and the name") {
  const auto file = token_file{50};
  const auto other = token_file{50, 1};
  const auto of = [](const token_file& x, const token_window_options& options) {
    return value_or_throw(make_token_windows(x.open(), options))->fingerprint();
  };
  CHECK(of(file, {.context = 5}) == of(token_file{50}, {.context = 5}));
  CHECK(of(file, {.context = 5}) == of(file, {.context = 5, .stride = 5}));
  CHECK(of(file, {.context = 5}) != of(other, {.context = 5}));
  CHECK(of(file, {.context = 5}) != of(file, {.context = 6}));
  CHECK(of(file, {.context = 5}) != of(file, {.context = 5, .stride = 1}));
  CHECK(of(file, {.context = 5, .name = "a"}) != of(file, {.context = 5}));
  CHECK(of(file, {.context = 5, .name = "a"}) != of(file, {.context = 5, .name = "b"}));
  // A name stands for the content.
  CHECK(of(file, {.context = 5, .name = "a"}) == of(other, {.context = 5, .name = "a"}));
}

TEST_CASE("a token outside of the vocabulary is named when it is read") {
  const auto file = token_file{50};
  const auto set = value_or_throw(make_token_windows(file.open(), {.context = 5, .vocabulary = 40}));
  batch out;
  CHECK(set->fetch(std::vector<std::uint64_t>{6}, out).has_value());
  const auto bad = set->fetch(std::vector<std::uint64_t>{7}, out);
  REQUIRE(!bad);
  CHECK(bad.error().code == errc::damaged);
  CHECK(bad.error().message == "column 'tokens': the token at 40 is not from 0 to 39");
  const auto negative =
      value_or_throw(make_token_windows(make_column("t", std::vector<std::int32_t>{0, -1, 2}), {.context = 1}));
  CHECK_FALSE(negative->fetch(std::vector<std::uint64_t>{0}, out).has_value());
}

TEST_CASE("tokens of all integer types, and from an NPY file") {
  batch out;
  const auto check = [&](column tokens) {
    const auto set = value_or_throw(make_token_windows(std::move(tokens), {.context = 2}));
    REQUIRE(set->fetch(std::vector<std::uint64_t>{0}, out));
    CHECK(std::ranges::equal(out.values<std::int64_t>("target"), std::vector<std::int64_t>{2, 3}));
  };
  check(make_column("t", std::vector<std::uint8_t>{1, 2, 3}));
  check(make_column("t", std::vector<std::uint16_t>{1, 2, 3}));
  check(make_column("t", std::vector<std::uint32_t>{1, 2, 3}));
  check(make_column("t", std::vector<std::int16_t>{1, 2, 3}));
  check(make_column("t", std::vector<std::int32_t>{1, 2, 3}));
  check(make_column("t", std::vector<std::int64_t>{1, 2, 3}));
  CHECK(error_of(make_token_windows(make_column("t", std::vector<float>{1, 2, 3}), {.context = 1}))
            .starts_with("column 't' is f32: tokens are"));
  CHECK_FALSE(make_token_windows(make_column("t", std::vector<std::int64_t>{1, 2, 3, 4}, {2}), {.context = 1}));
}

TEST_CASE("there is a heartbeat while tokens are hashed, and none is needed for a name") {
  const auto file = token_file{5};
  auto beats = 0;
  CHECK(make_token_windows(file.open(), {.context = 2, .heartbeat = [&] { ++beats; }}));
  CHECK(beats == 1);
  CHECK(make_token_windows(file.open(), {.context = 2, .name = "a", .heartbeat = [&] { ++beats; }}));
  CHECK(beats == 1);
}

TEST_CASE("windows that cannot be made are refused") {
  const auto file = token_file{5};
  CHECK(error_of(make_token_windows(file.open(), {})).find("context is 0") != std::string::npos);
  CHECK(error_of(make_token_windows(file.open(), {.context = 5})) ==
        "column 'tokens' has 5 tokens: a context of 5 needs at least one more than that");
}

TEST_CASE("a raw file is mapped, and its size checked") {
  const auto file = token_file{6};
  const auto rows = value_or_throw(read_raw(file.path, "x", dtype::u16, {3}));
  CHECK(rows.samples() == 2);
  const auto bad = read_raw(file.path, "x", dtype::u16, {4});
  REQUIRE(!bad);
  CHECK(bad.error().code == errc::damaged);
  CHECK(bad.error().message.find("it has 12 bytes, expected a multiple of 8, the size of a sample of u16[4]") !=
        std::string::npos);
  CHECK(read_raw(file.path, "x", dtype::u16, {0}).error().code == errc::invalid_argument);
  CHECK(read_raw(file.path, "x", dtype::u16, {(std::uint64_t{1} << 62) + 1, 8}).error().code == errc::invalid_argument);
  CHECK(read_raw(file.path, "x", dtype::boolean).error().code == errc::invalid_argument);
  CHECK(read_raw(file.place.path() / "absent", "x", dtype::u16).error().code == errc::not_found);
  std::ofstream{file.place.path() / "empty"} << "";
  CHECK(read_raw(file.place.path() / "empty", "x", dtype::u16).error().code == errc::damaged);
}

} // namespace
