#include <troupe/serialization/interchange/npy.hpp>

#include "plain_reader.hpp"
#include "scratch.hpp"

#include <doctest/doctest.h>

#include <cstring>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string npy(const std::string& dictionary, const std::string& data, char version = 1) {
  auto result = std::string{"\x93NUMPY"} + version + '\0';
  auto size = dictionary.size();
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i)
    result += static_cast<char>(size >> (8 * i));
  return result + dictionary + data;
}

std::string described(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const std::map<dtype, std::string> codes{{dtype::f32, "<f4"}, {dtype::f64, "<f8"}, {dtype::f16, "<f2"},
                                         {dtype::i32, "<i4"}, {dtype::i64, "<i8"}, {dtype::u8, "|u1"},
                                         {dtype::i8, "|i1"},  {dtype::i16, "<i2"}, {dtype::boolean, "|b1"},
                                         {dtype::u16, "<u2"}, {dtype::u32, "<u4"}, {dtype::u64, "<u8"}};

} // namespace

TEST_CASE("tensors of every dtype and shape are read back from an NPY file, and an independent reader sees the same") {
  auto scratch = scratch_directory{};
  auto number = 0;
  for (const auto& [type, code] : codes)
    for (const auto& shape :
         std::vector<std::vector<std::uint64_t>>{{}, {0}, {4, 0}, {1}, {300}, {2, 3, 5}, {70'000}}) {
      auto state = booleans_that_are{{{"name", type, shape}}, static_cast<std::uint64_t>(++number)};
      CAPTURE(code);
      CAPTURE(shape.size());
      auto path = scratch.path() / std::to_string(number);
      REQUIRE(write_npy(path, state.views()[0], existing_file::keep));
      auto array = read_npy(path);
      REQUIRE_MESSAGE(array, array.error().message);
      CHECK(array->spec == tensor_spec{"", type, shape});
      CHECK(array->bytes == state.bytes(0));
      auto seen = testing::read_npy_plainly(read_file(path));
      CHECK(seen.dtype == code);
      CHECK(seen.shape == shape);
      CHECK(seen.bytes == text_of(state.bytes(0)));
    }
}

TEST_CASE("bf16 and too many dimensions cannot be written as NPY") {
  auto bf16 = make_npy_head({"w", dtype::bf16, {2}});
  REQUIRE_FALSE(bf16);
  CHECK(has(bf16.error().message, "\"w\""));
  CHECK(has(bf16.error().message, "bf16"));
  CHECK(has(bf16.error().message, "safetensors"));
  CHECK(make_npy_head({"w", dtype::f32, std::vector<std::uint64_t>(64, 1)}));
  CHECK_FALSE(make_npy_head({"w", dtype::f32, std::vector<std::uint64_t>(65, 1)}));
}

TEST_CASE("all versions, byte orders and element orders of NPY files are read") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "x.npy";
  auto read = [&](const std::string& bytes) {
    overwrite_file(path, bytes);
    auto array = read_npy(path);
    INFO((array ? "" : array.error().message));
    REQUIRE(array);
    return *array;
  };
  auto little = std::string{"\1\0\2\0\3\0\4\0\5\0\6\0", 12};
  auto big = std::string{"\0\1\0\2\0\3\0\4\0\5\0\6", 12};
  for (char version : {1, 2, 3}) {
    auto array = read(npy(described("'<i2'", "False", "(2, 3)"), little, version));
    CHECK(array.spec == tensor_spec{"", dtype::i16, {2, 3}});
    CHECK(text_of(array.bytes) == little);
    CHECK(text_of(read(npy(described("'>i2'", "False", "(6,)"), big, version)).bytes) == little);
  }
  // The columns are 1 2, 3 4, 5 6.
  auto transposed = std::string{"\1\0\3\0\5\0\2\0\4\0\6\0", 12};
  CHECK(text_of(read(npy(described("'<i2'", "True", "(2, 3)"), little)).bytes) == transposed);
  CHECK(text_of(read(npy(described("'>i2'", "True", "(2, 3)"), big)).bytes) == transposed);
  CHECK(text_of(read(npy(described("'<i2'", "True", "(6,)"), little)).bytes) == little);
  CHECK(text_of(read(npy(described("'<i2'", "True", "()"), little.substr(0, 2))).bytes) == little.substr(0, 2));
  CHECK(read(npy(described("'<i2'", "True", "(2, 0, 3)"), "")).bytes.empty());
  // Three dimensions, in closed form: element (i, j, k) is i + 2 j + 6 k in the file.
  auto cube = std::string(24, '\0');
  for (std::size_t i = 0; i < cube.size(); ++i)
    cube[i] = static_cast<char>(i);
  auto turned = read(npy(described("'|u1'", "True", "(2, 3, 4)"), cube)).bytes;
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t j = 0; j < 3; ++j)
      for (std::size_t k = 0; k < 4; ++k)
        CHECK(turned[12 * i + 4 * j + k] == static_cast<std::byte>(i + 2 * j + 6 * k));
  // Variants of other writers: other quotes, spaces and order, Python 2's long numbers, no trailing comma.
  CHECK(read(npy("{\"shape\":(3L,2L),\"descr\":\"<i2\",\"fortran_order\":False}", little)).spec.shape ==
        std::vector<std::uint64_t>{3, 2});
}

TEST_CASE("a malformed NPY file is refused with the reason") {
  struct malformed {
    std::string bytes;
    std::string expected;
    errc code = errc::damaged;
  };
  auto good = npy(described("'<i2'", "False", "(2,)"), "1234");
  auto shaped = [](const std::string& shape) { return npy(described("'<i2'", "False", shape), "1234"); };
  auto typed = [](const std::string& descr) { return npy(described(descr, "False", "(1,)"), "12345678"); };
  auto many = std::string{"("};
  for (int i = 0; i < 65; ++i)
    many += "1, ";
  auto table = std::vector<malformed>{
      {"", "does not begin"},
      {"\x93NUMPX\1", "does not begin"},
      {good.substr(0, 6), "truncated in its header"},
      {good.substr(0, 9), "truncated in its header"},
      {good.substr(0, 40), "truncated in its header"},
      {npy("{}", "", 2).substr(0, 11), "truncated in its header"},
      {good.substr(0, good.size() - 1), "4 bytes of elements, and there are 3"},
      {good + "5", "4 bytes of elements, and there are 5"},
      {npy("{}", "", 4), "version 4.0", errc::unsupported_version},
      {npy("{}", "", 0), "version 0.0", errc::unsupported_version},
      {std::string{"\x93NUMPY\2\0\xff\xff\xff\xff", 12}, "4294967295 bytes"},
      {npy("", ""), "'{' is missing"},
      {npy("{", ""), "a quoted string is missing"},
      {npy("{}", ""), "has no descr"},
      {npy("{'descr': '<f4'}", ""), "has no fortran_order"},
      {npy("{'descr': '<f4', 'fortran_order': True}", ""), "has no shape"},
      {npy("{'descr': '<f4', 'descr': '<f4'}", ""), "two entries \"descr\""},
      {npy("{'order': 'C'}", ""), "an entry \"order\""},
      {npy("{'descr' '<f4'}", ""), "':' is missing"},
      {npy("{'descr': '<f4' 'shape': ()}", ""), "'}' is missing"},
      {npy("{'descr': '<f4", ""), "not as NumPy writes it"},
      {npy("{'descr': '\\x3cf4'", ""), "not as NumPy writes it"},
      {npy("{'descr': __import__('os')", ""), "a quoted string is missing"},
      {npy(described("'<f4'", "False", "()") + "{}", "1234"), "something follows"},
      {npy(described("'<f4'", "0", "()"), "1234"), "neither True nor False"},
      {shaped("2"), "'(' is missing"},
      {shaped("(2)"), "not a tuple"},
      {shaped("[2]"), "'(' is missing"},
      {shaped("(2"), "not a number"},
      {shaped("(-2,)"), "not a number"},
      {shaped("(2.0,)"), "not a tuple"},
      {shaped("(,)"), "not a number"},
      {shaped("(1, 2 3)"), "')' is missing"},
      {shaped("(18446744073709551616,)"), "64 bits"},
      {shaped("(9223372036854775808, 2)"), "64 bits"},
      {shaped("(4294967296, 4294967296)"), "64 bits"},
      {shaped(many), "more than 64 dimensions"},
      {typed("'|O'"), "Python objects", errc::invalid_argument},
      {typed("[('a', '<f4')]"), "records", errc::invalid_argument},
      {typed("'<c8'"), "\"<c8\"", errc::invalid_argument},
      {typed("'<U2'"), "\"<U2\"", errc::invalid_argument},
      {typed("'|S8'"), "\"|S8\"", errc::invalid_argument},
      {typed("'<M8[ns]'"), "M8[ns]", errc::invalid_argument},
      {typed("'|f4'"), "\"|f4\"", errc::invalid_argument},
      {typed("''"), "\"\"", errc::invalid_argument},
      {npy(described("'|b1'", "False", "(3,)"), {"\0\1\2", 3}), "element 2"},
  };
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "bad.npy";
  for (const auto& row : table) {
    overwrite_file(path, row.bytes);
    auto array = read_npy(path);
    CAPTURE(row.expected);
    REQUIRE_FALSE(array);
    CAPTURE(array.error().message);
    CHECK(array.error().code == row.code);
    CHECK(has(array.error().message, row.expected));
    CHECK(has(array.error().message, path.string()));
  }
  overwrite_file(path, good);
  CHECK(read_npy(path));
  CHECK(read_npy(scratch.path() / "none").error().code == errc::not_found);
}

TEST_CASE("an NPY file is not overwritten by default, and a failed one leaves nothing") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "x.npy";
  auto state = sample_state{{{"a", dtype::f64, {4}}}};
  overwrite_file(path, "precious");
  CHECK(write_npy(path, state.views()[0], existing_file::keep).error().code == errc::already_exists);
  auto too_short = [&](const byte_sink& sink) -> expected<void> {
    sink(std::span{state.bytes(0)}.first(8));
    return {};
  };
  CHECK(has(write_npy(path, state.specs()[0], too_short, existing_file::replace).error().message, "gave 8"));
  CHECK(read_file(path) == "precious");
  CHECK(std::distance(fs::directory_iterator{scratch.path()}, {}) == 1);
  REQUIRE(write_npy(path, state.views()[0], existing_file::replace));
  CHECK(read_npy(path));
}
