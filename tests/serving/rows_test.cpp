#include "decisions/rows.hpp"

#include <troupe/serialization/interchange/npy.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::serving;

namespace {

template <class T>
std::vector<T> values(const row_values& rows, std::size_t column) {
  std::vector<T> result(rows.columns.at(column).size() / sizeof(T));
  std::memcpy(result.data(), rows.columns[column].data(), result.size() * sizeof(T));
  return result;
}

using columns = std::vector<data::column_spec>;

const input_table image{columns{{"image", dtype::f32, {2, 2}, {}}}};
const input_table number{columns{{"x", dtype::f32, {}, {}}}};
const input_table table{columns{
    {"age", dtype::f64, {}, {}},
    {"kind", dtype::i64, {}, std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"elm", "oak"})},
    {"code", dtype::u8, {3}, {}}}};

std::string json_error(std::string_view body, const input_table& inputs, std::uint64_t most = 100) {
  auto rows = parse_json_rows(body, inputs, most);
  return rows ? "accepted" : rows.error().message;
}

template <class T>
std::string npy(const std::vector<std::uint64_t>& shape, const std::vector<T>& all) {
  auto result = value_or_throw(serialization::make_npy_head({{}, dtype_of<T>, shape}));
  result.append(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(T));
  return result;
}

} // namespace

TEST_CASE("rows of one input are its values, nested, flat or single") {
  const auto nested = value_or_throw(parse_json_rows(R"({"inputs": [[[1, 2], [3, 4.5]], [5, 6, 7, 8]]})", image, 9));
  CHECK(nested.rows == 2);
  CHECK(values<float>(nested, 0) == std::vector<float>{1, 2, 3, 4.5, 5, 6, 7, 8});
  const auto single = value_or_throw(parse_json_rows(R"({"inputs": [1, [2], {"x": 3}, {"x": [4]}, null]})", number, 9));
  CHECK(single.rows == 5);
  const auto found = values<float>(single, 0);
  CHECK(std::vector<float>{found.begin(), found.begin() + 4} == std::vector<float>{1, 2, 3, 4});
  CHECK(std::isnan(found[4]));
  CHECK(value_or_throw(parse_json_rows(R"({"inputs": []})", number, 9)).rows == 0);
}

TEST_CASE("rows of several inputs are objects, or arrays in the order of the inputs") {
  const auto rows = value_or_throw(parse_json_rows(
      R"({"inputs": [{"code": [1, 2, 3], "kind": "oak", "age": 0.1}, [null, "ash", [4, 5, 255]], [7, 0, [0, 0, true]]]})",
      table, 9));
  CHECK(rows.rows == 3);
  const auto ages = values<double>(rows, 0);
  CHECK(ages[0] == 0.1);
  CHECK(std::isnan(ages[1]));
  CHECK(ages[2] == 7);
  // A text that the model does not know is missing.
  CHECK(values<std::int64_t>(rows, 1) == std::vector<std::int64_t>{1, -1, 0});
  CHECK(values<std::uint8_t>(rows, 2) == std::vector<std::uint8_t>{1, 2, 3, 4, 5, 255, 0, 0, 1});
}

TEST_CASE("wrong JSON is refused with the place and what belongs there") {
  const auto refuses = [](std::string_view body, const input_table& inputs, const std::string& text) {
    const auto message = json_error(body, inputs);
    CHECK_MESSAGE(message.find(text) != std::string::npos, body << "\n" << message);
  };
  refuses("", image, "not valid JSON at byte 1");
  refuses("[1]", image, R"(an array stands where {"inputs": [row, ...]} belongs)");
  refuses("7", image, R"(the body is not {"inputs": [row, ...]})");
  refuses("{}", image, R"(the body has no "inputs")");
  refuses(R"({"input": []})", image, R"(unknown field "input")");
  refuses(R"({"inputs": 3})", image, R"(the body is not {"inputs": [row, ...]})");
  refuses(R"({"inputs": {}})", image, "an object stands where an array of rows belongs");
  refuses(R"({"inputs": [], "inputs": []})", image, "given twice");
  refuses(R"({"inputs": [[1, 2, 3, 4], [1, 2, 3]]})", image, "row 1, input 'image': an array of 3, expected 4");
  refuses(R"({"inputs": [[1, 2, 3, 4, 5]]})", image, "row 0, input 'image': more than 4 numbers");
  refuses(R"({"inputs": [[[1, 2], [3]]]})", image, "an array of 1, expected 2: the input is f32[2, 2]");
  refuses(R"({"inputs": [[[1, 2]]]})", image, "an array of 1, expected 2");
  refuses(R"({"inputs": [[[[1], 2]]]})", image, "nested too deeply");
  refuses(R"({"inputs": [[]]})", image, "an array of 0, expected 2");
  refuses(R"({"inputs": [5]})", image, "a single value");
  refuses(R"({"inputs": [[1, 2, 3, "x"]]})", image, "a text cannot be a value: it takes numbers");
  refuses(R"({"inputs": [[1, 2, 3, 1e39]]})", image, "1e+39 cannot be a value: the input is f32[2, 2]");
  refuses(R"({"inputs": [[1, 2, 3, {}]]})", image, "an object stands where a value belongs");
  refuses(R"({"inputs": [[1, 2, 3, 4]]} x)", image, "not valid JSON at byte 28");
  refuses(R"({"inputs": [[1, 2, 3, 4])", image, "not valid JSON");
  refuses(R"({"inputs": [[1, "oak"]]})", table, "row 0: 2 values for 3 inputs");
  refuses(R"({"inputs": [[1, "oak", [1, 2, 3], 4]]})", table, "row 0: more than 3 values");
  refuses(R"({"inputs": [{"age": 1, "kind": "oak"}]})", table, "row 0: input 'code' is missing");
  refuses(R"({"inputs": [{"age": 1, "age": 2}]})", table, "row 0: input 'age' is given twice");
  refuses(R"({"inputs": [{"colour": 1}]})", table, "row 0: the model has no input 'colour': it takes 'age' (f64)");
  refuses(R"({"inputs": [[1, 2, [1, 2, 3]]]})", table, "row 0, input 'kind': 2 cannot be a value");
  refuses(R"({"inputs": [[1, -1, [1, 2, 3]]]})", table, "row 0, input 'kind': -1 cannot be a value");
  refuses(R"({"inputs": [[1, "oak", [1, 2, 256]]]})", table,
          "row 0, input 'code': 256 cannot be a value: the input is u8[3]");
  refuses(R"({"inputs": [[1, "oak", [1, 2, -1]]]})", table, "-1 cannot be a value");
  refuses(R"({"inputs": [[1, "oak", [1, 2, 0.5]]]})", table, "0.5 cannot be a value");
  refuses(R"({"inputs": [[1, "oak", [1, 2, null]]]})", table, "null cannot be a value");
  refuses(R"({"inputs": [[1, "oak", 3]]})", table, "a single value, but the input is u8[3]");
  refuses("{\"inputs\": [[\"\xff\"]]}", table, "not valid JSON");
  // Depth costs nothing.
  refuses(R"({"inputs": )" + std::string(100'000, '['), image, "nested too deeply");
  refuses(std::string(100'000, '{'), image, "not valid JSON");
}

TEST_CASE("a request with too many rows is told apart from a wrong one") {
  const auto rows = parse_json_rows(R"({"inputs": [1, 2, 3]})", number, 2);
  REQUIRE_FALSE(rows);
  CHECK(rows.error().code == errc::unsatisfiable);
  CHECK(parse_json_rows(R"({"inputs": [1, 2]})", number, 2));
  const auto array = parse_npy_rows(npy<float>({3}, {1, 2, 3}), number, 2);
  REQUIRE_FALSE(array);
  CHECK(array.error().code == errc::unsatisfiable);
}

TEST_CASE("integers keep all their digits, and fractions are none") {
  const input_table wide{columns{{"x", dtype::i64, {}, {}}, {"y", dtype::u64, {}, {}}}};
  const auto rows = value_or_throw(parse_json_rows(
      R"({"inputs": [[-9223372036854775808, 18446744073709551615], [9007199254740993, 1.0]]})", wide, 9));
  CHECK(values<std::int64_t>(rows, 0) ==
        std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min(), 9007199254740993});
  CHECK(values<std::uint64_t>(rows, 1) == std::vector<std::uint64_t>{std::numeric_limits<std::uint64_t>::max(), 1});
  CHECK(json_error(R"({"inputs": [[9223372036854775808, 1]]})", wide) != "accepted");
  CHECK(json_error(R"({"inputs": [[9.3e18, 1]]})", wide) != "accepted");
  CHECK(json_error(R"({"inputs": [[1, 1.9e19]]})", wide) != "accepted");
  CHECK(json_error(R"({"inputs": [[1, -0.0]]})", wide) == "accepted");
}

TEST_CASE("an NPY array is taken as it is, or converted where all its numbers fit") {
  const auto same = value_or_throw(parse_npy_rows(npy<float>({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), image, 9));
  CHECK(same.rows == 2);
  CHECK(values<float>(same, 0) == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  const auto wide = value_or_throw(parse_npy_rows(npy<double>({1, 4}, {0.1, 2, 3, 4}), image, 9));
  CHECK(values<float>(wide, 0) == std::vector<float>{0.1F, 2, 3, 4});
  const auto mixed =
      value_or_throw(parse_npy_rows(npy<std::int32_t>({2, 5}, {30, 1, 7, 8, 9, 31, -1, 0, 0, 255}), table, 9));
  CHECK(values<double>(mixed, 0) == std::vector<double>{30, 31});
  CHECK(values<std::int64_t>(mixed, 1) == std::vector<std::int64_t>{1, -1});
  CHECK(values<std::uint8_t>(mixed, 2) == std::vector<std::uint8_t>{7, 8, 9, 0, 0, 255});
  CHECK(value_or_throw(parse_npy_rows(npy<float>({0, 4}, {}), image, 9)).rows == 0);
  const auto refuses = [](const std::string& body, const input_table& inputs, const std::string& text) {
    const auto rows = parse_npy_rows(body, inputs, 9);
    REQUIRE_FALSE(rows);
    CHECK_MESSAGE(rows.error().message.find(text) != std::string::npos, rows.error().message);
  };
  refuses(npy<float>({2, 3}, {1, 2, 3, 4, 5, 6}), image, "a row of the NPY body has 3 numbers, and the model takes 4");
  refuses(npy<float>({}, {1}), image, "scalar");
  refuses(npy<std::int32_t>({1, 5}, {30, 2, 7, 8, 9}), table, "row 0, input 'kind'");
  refuses(npy<std::int64_t>({1, 5}, {30, 1, 7, 8, 256}), table, "row 0, input 'code'");
  refuses(npy<double>({1, 4}, {1e39, 2, 3, 4}), image, "row 0, input 'image'");
  refuses("\x93NUMPY", image, "cannot be read");
  auto cut = npy<float>({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  cut.pop_back();
  refuses(cut, image, "cannot be read");
  // i64 codes are looked at even where the type is the input's own.
  const input_table kind{columns{table.columns()[1]}};
  refuses(npy<std::int64_t>({1}, {2}), kind, "row 0, input 'kind'");
  const input_table flag{columns{{"flag", dtype::boolean, {}, {}}}};
  refuses(npy<std::uint8_t>({1}, {2}), flag, "row 0, input 'flag'");
}

TEST_CASE("outputs read back as the same bits, from JSON and from NPY") {
  std::vector<float> all{0.1F, -0.0F, 1e-45F, 3.4028235e38F, 16777216, 1.0F / 3};
  auto random = std::mt19937{7};
  while (all.size() < 3000) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(value))
      all.push_back(value);
  }
  const auto document = nlohmann::json::parse(json_of_outputs({"a \"name\" \xff", 12}, all, 3));
  CHECK(document["model"]["step"] == 12);
  REQUIRE(document["outputs"].size() == 1000);
  auto equal = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto digits = document["outputs"][i / 3][i % 3].dump();
    equal += std::bit_cast<std::uint32_t>(std::strtof(digits.c_str(), nullptr)) == std::bit_cast<std::uint32_t>(all[i]);
  }
  CHECK(equal == 3000);
  const auto array = npy_of_outputs(all, 3);
  const auto layout = value_or_throw(serialization::parse_npy_header(std::as_bytes(std::span{array}), array.size()));
  CHECK(layout.shape == std::vector<std::uint64_t>{1000, 3});
  CHECK(std::memcmp(array.data() + layout.offset_bytes, all.data(), all.size() * sizeof(float)) == 0);
  const std::vector<float> none{std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  CHECK(nlohmann::json::parse(json_of_outputs({"m", 0}, none, 2))["outputs"].dump() == "[[null,null]]");
  CHECK(nlohmann::json::parse(json_of_outputs({"m", 0}, {}, 2))["outputs"].dump() == "[]");
}

TEST_CASE("no bytes break the readers") {
  auto random = std::mt19937{11};
  const std::string json =
      R"({"inputs": [{"code": [1, 2, 3], "kind": "oak", "age": 0.1}, [null, "ash", [4, 5, 255]]]})";
  const std::string array = npy<std::int32_t>({2, 5}, {30, 1, 7, 8, 9, 31, -1, 0, 0, 255});
  std::uint64_t accepted = 0;
  for (auto i = 0; i < 30'000; ++i) {
    auto body = i % 2 == 0 ? json : array;
    for (auto changes = random() % 4; changes > 0; --changes) {
      const auto at = random() % body.size();
      switch (random() % 3) {
      case 0:
        body[at] = static_cast<char>(random());
        break;
      case 1:
        body.erase(at, random() % 8);
        break;
      default:
        body.insert(at, body.substr(random() % body.size(), random() % 8));
      }
      if (body.empty())
        body = " ";
    }
    const auto rows = is_npy(body) ? parse_npy_rows(body, table, 8) : parse_json_rows(body, table, 8);
    if (!rows) {
      CHECK(rows.error().message.size() < 2000);
      continue;
    }
    ++accepted;
    for (std::size_t c = 0; c < table.columns().size(); ++c)
      REQUIRE(rows->columns[c].size() == rows->rows * table.columns()[c].size_bytes());
    std::uint64_t held = 0;
    for (const auto& each : rows->columns)
      held += each.capacity();
    REQUIRE(held <= most_column_bytes(body, table, 8));
    for (auto code : values<std::int64_t>(*rows, 1))
      REQUIRE((code >= -1 && code < 2));
  }
  CHECK(accepted > 1000);
}
