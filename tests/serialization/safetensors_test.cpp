#include <troupe/serialization/interchange/safetensors.hpp>

#include <troupe/serialization/files/digest.hpp>

#include "plain_reader.hpp"
#include "scratch.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

/// Every dtype in every shape: a scalar, empty, one element, odd, several dimensions.
std::vector<tensor_spec> all_specs() {
  auto result = std::vector<tensor_spec>{};
  auto shapes = std::vector<std::vector<std::uint64_t>>{{}, {0}, {3, 0, 2}, {1}, {7}, {2, 3, 5}};
  for (std::uint8_t type = 1; is_dtype(type); ++type)
    for (const auto& shape : shapes) {
      auto name = std::string{to_string(static_cast<dtype>(type))};
      for (auto dimension : shape)
        name += "." + std::to_string(dimension);
      result.push_back({name, static_cast<dtype>(type), shape});
    }
  return result;
}

std::string with_length(const std::string& header, const std::string& data = {}) {
  auto result = std::string(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    result[i] = static_cast<char>(header.size() >> (8 * i));
  return result + header + data;
}

/// The error of opening a file with these bytes.
error error_of(const fs::path& path, const std::string& bytes) {
  overwrite_file(path, bytes);
  auto opened = safetensors_file::open(path);
  return opened ? error{} : opened.error();
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::vector<std::byte> read_all(const safetensors_file& source, std::size_t index) {
  auto result = std::vector<std::byte>(source.tensors()[index].spec.size_bytes());
  REQUIRE(source.read(index, 0, result));
  return result;
}

void check_round_trip(const fs::path& path, booleans_that_are& state, const std::map<std::string, std::string>& about) {
  REQUIRE(write_safetensors(path, state.views(), about, existing_file::keep));
  auto opened = safetensors_file::open(path);
  REQUIRE_MESSAGE(opened, opened.error().message);
  CHECK(opened->metadata() == about);
  REQUIRE(opened->tensors().size() == state.specs().size());
  auto plain = testing::read_safetensors_plainly(read_file(path));
  REQUIRE(plain.size() == state.specs().size());
  for (std::size_t i = 0; i < state.specs().size(); ++i) {
    const auto& spec = state.specs()[i];
    CAPTURE(spec.name);
    auto index = opened->find(spec.name);
    REQUIRE(index);
    const auto& entry = opened->tensors()[*index];
    CHECK(entry.spec == spec);
    CHECK(entry.offset_bytes % size_of(spec.type) == 0);
    CHECK(read_all(*opened, *index) == state.bytes(i));
    const auto& seen = plain.at(spec.name);
    CHECK(seen.dtype == testing::safetensors_dtype_name(spec.type));
    CHECK(seen.shape == spec.shape);
    CHECK(seen.bytes == std::string(reinterpret_cast<const char*>(state.bytes(i).data()), state.bytes(i).size()));
  }
}

} // namespace

TEST_CASE(
    "tensors of every dtype and shape are read back from a safetensors file, and an independent reader sees the same") {
  auto scratch = scratch_directory{};
  auto state = booleans_that_are{all_specs()};
  check_round_trip(scratch.path() / "all.safetensors", state, {});
  check_round_trip(scratch.path() / "told.safetensors", state, {{"", "empty key"}, {"note", "\"quoted\"\n\u00e9\\"}});
  auto large = booleans_that_are{{{"large", dtype::f32, {1 << 19, 5}}, {"small", dtype::i8, {3}}}};
  check_round_trip(scratch.path() / "large.safetensors", large, {});
  auto nothing = booleans_that_are{{}};
  check_round_trip(scratch.path() / "nothing.safetensors", nothing, {});
  auto odd_names =
      booleans_that_are{{{"", dtype::u8, {1}}, {"a\"b\\c\n\x01", dtype::u8, {2}}, {"\u5f35", dtype::u8, {}}}};
  check_round_trip(scratch.path() / "names.safetensors", odd_names, {});
}

TEST_CASE("a safetensors file has a padded header and the same bytes for any order of tensors") {
  auto scratch = scratch_directory{};
  auto a = scratch.path() / "a";
  auto b = scratch.path() / "b";
  auto state = booleans_that_are{all_specs()};
  auto views = state.views();
  REQUIRE(write_safetensors(a, views, {{"k", "v"}}, existing_file::keep));
  std::ranges::reverse(views);
  REQUIRE(write_safetensors(b, views, {{"k", "v"}}, existing_file::keep));
  auto text = read_file(a);
  CHECK(text == read_file(b));
  CHECK(static_cast<unsigned char>(text[0]) % 8 == 0);
  CHECK(text[8] == '{');
  // The temporary file is gone.
  CHECK(std::distance(fs::directory_iterator{scratch.path()}, {}) == 2);
}

TEST_CASE("a range of a tensor is read from its place") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "x";
  auto state = booleans_that_are{{{"a", dtype::f64, {4}}, {"b", dtype::i16, {100}}}};
  REQUIRE(write_safetensors(path, state.views(), {}, existing_file::keep));
  auto opened = safetensors_file::open(path);
  REQUIRE(opened);
  auto piece = std::vector<std::byte>(20);
  auto b = opened->find("b").value();
  REQUIRE(opened->read(b, 180, piece));
  CHECK(std::ranges::equal(piece, std::span{state.bytes(1)}.subspan(180)));
  CHECK(opened->read(b, 181, piece).error().code == errc::invalid_argument);
  CHECK(opened->read(b, ~std::uint64_t{0}, piece).error().code == errc::invalid_argument);
  CHECK(opened->read(2, 0, piece).error().code == errc::invalid_argument);
  CHECK_FALSE(opened->find("c"));
}

TEST_CASE("a safetensors file is not overwritten by default, and a failed one leaves nothing") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "x.safetensors";
  overwrite_file(path, "precious");
  auto state = booleans_that_are{{{"a", dtype::f64, {4}}}};
  auto kept = write_safetensors(path, state.views(), {}, existing_file::keep);
  REQUIRE_FALSE(kept);
  CHECK(kept.error().code == errc::already_exists);
  CHECK(has(kept.error().message, path.string()));
  CHECK(read_file(path) == "precious");
  auto short_source = [&](std::size_t, const byte_sink& sink) -> expected<void> {
    sink(std::span{state.bytes(0)}.first(31));
    return {};
  };
  auto failed = write_safetensors(path, state.specs(), {}, short_source, existing_file::replace);
  REQUIRE_FALSE(failed);
  CHECK(has(failed.error().message, "31"));
  auto long_source = [&](std::size_t, const byte_sink& sink) -> expected<void> {
    sink(state.bytes(0));
    sink(state.bytes(0));
    return {};
  };
  CHECK_FALSE(write_safetensors(path, state.specs(), {}, long_source, existing_file::replace));
  auto broken_source = [](std::size_t, const byte_sink&) -> expected<void> { return fail(errc::damaged, "worn out"); };
  CHECK(write_safetensors(path, state.specs(), {}, broken_source, existing_file::replace).error().message ==
        "worn out");
  CHECK(read_file(path) == "precious");
  CHECK(std::distance(fs::directory_iterator{scratch.path()}, {}) == 1);
  REQUIRE(write_safetensors(path, state.views(), {}, existing_file::replace));
  CHECK(safetensors_file::open(path));
  CHECK(write_safetensors(scratch.path(), state.views(), {}, existing_file::replace).error().code ==
        errc::invalid_argument);
  CHECK(write_safetensors(scratch.path() / "no" / "x", state.views(), {}, existing_file::keep).error().code ==
        errc::not_found);
}

TEST_CASE("names that a safetensors file cannot hold are refused") {
  auto head_error = [](std::vector<tensor_spec> specs, std::map<std::string, std::string> metadata = {}) {
    auto head = make_safetensors_head(specs, metadata);
    return head ? error{} : head.error();
  };
  CHECK(head_error({{"a", dtype::u8, {1}}}).code == errc::none);
  CHECK(has(head_error({{"a", dtype::u8, {1}}, {"a", dtype::f32, {1}}}).message, "two tensors \"a\""));
  CHECK(head_error({{"__metadata__", dtype::u8, {1}}}).code == errc::invalid_argument);
  CHECK(has(head_error({{"\xff", dtype::u8, {1}}}).message, "UTF-8"));
  CHECK(has(head_error({}, {{"k", "\xc3"}}).message, "UTF-8"));
  CHECK(head_error({{"a", dtype::u8, {1ull << 40, 1ull << 40}}}).code == errc::invalid_argument);
  CHECK(head_error({{"a", dtype::u8, {1ull << 63}}, {"b", dtype::u8, {1ull << 63}}}).code == errc::invalid_argument);
  CHECK(has(head_error({{std::string(max_safetensors_header_bytes, 'n'), dtype::u8, {1}}}).message, "several files"));
}

TEST_CASE("a valid header unlike our own is read") {
  auto index =
      parse_safetensors_header(std::string{R"({  "b" : {"data_offsets":[4,8], "shape":[1], "dtype":"F32"},)"} +
                                   R"("__metadata__":{}, "a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]},)" +
                                   R"("none":{"dtype":"I64","shape":[0],"data_offsets":[4,4]}} )" + "   ",
                               8);
  REQUIRE_MESSAGE(index, index.error().message);
  REQUIRE(index->tensors.size() == 3);
  CHECK(index->tensors[0].spec == tensor_spec{"a", dtype::u8, {2, 2}});
  CHECK(index->tensors[1].spec == tensor_spec{"none", dtype::i64, {0}});
  CHECK(index->tensors[2].spec == tensor_spec{"b", dtype::f32, {1}});
  CHECK(parse_safetensors_header("{}", 0));
}

TEST_CASE("a malformed safetensors file is refused with the reason") {
  struct malformed {
    std::string bytes;
    std::string expected;
    errc code = errc::damaged;
  };
  auto entry = [](const std::string& text, const std::string& data = {}) {
    return with_length(R"({"x":)" + text + "}", data);
  };
  auto nested = std::string{};
  for (int i = 0; i < 100'000; ++i)
    nested += '[';
  auto dimensions = std::string{"1"};
  for (int i = 0; i < 64; ++i)
    dimensions += ",1";
  auto four = std::string(4, '\1');
  auto table = std::vector<malformed>{
      {"", "0 bytes"},
      {"1234567", "7 bytes"},
      {std::string(8, '\0'), "does not begin with {"},
      {std::string(7, '\0') + '\x80', "more than the format's limit of 100000000"},
      {std::string(8, '\xff'), "more than the format's limit of 100000000"},
      {with_length("{}").substr(0, 9), "truncated"},
      {with_length("[]"), "does not begin with {"},
      {with_length(" {}"), "does not begin with {"},
      {with_length("\xef\xbb\xbf{}"), "does not begin with {"},
      {with_length("{"), "not JSON"},
      {with_length("{}x"), "not JSON"},
      {with_length("{} {}"), "not JSON"},
      {with_length(std::string{"{}\0{}", 5}), "not JSON at byte 2"},
      {with_length("{\"x\xff\":{}}"), "not JSON"},
      {with_length("{/**/}"), "not JSON"},
      {with_length(R"({"x":1e999})"), "not JSON"},
      {with_length(R"({"x":)" + nested), "entry \"x\" is an array"},
      {with_length(R"({"x":{"shape":)" + nested), "an array in its shape"},
      {entry("null"), "entry \"x\" is null"},
      {entry("7"), "entry \"x\" is 7"},
      {entry("\"text\""), "entry \"x\" is \"text\""},
      {entry("{}"), "tensor \"x\" has no dtype"},
      {entry(R"({"dtype":"U8","data_offsets":[0,0]})"), "has no shape"},
      {entry(R"({"dtype":"U8","shape":[0]})"), "has no data_offsets"},
      {entry(R"({"dtype":8,"shape":[0],"data_offsets":[0,0]})"), "has 8 in its dtype"},
      {entry(R"({"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]})"), "two fields \"dtype\""},
      {entry(R"({"dtype":"U8","shape":[0],"data_offsets":[0,0],"strides":[1]})"), "a field \"strides\""},
      {entry(R"({"dtype":"U128","shape":[2],"data_offsets":[0,4]})", four), "\"U128\"", errc::invalid_argument},
      {entry(R"({"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]})", four), "\"F8_E4M3\"", errc::invalid_argument},
      {entry(R"({"dtype":"f32","shape":[1],"data_offsets":[0,4]})", four), "\"f32\"", errc::invalid_argument},
      {entry(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", four), "has -1 in its shape"},
      {entry(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", four), "has 1.0 in its shape"},
      {entry(R"({"dtype":"F32","shape":["1"],"data_offsets":[0,4]})", four), "in its shape"},
      {entry(R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})", four), "has 1 in its shape"},
      {entry(R"({"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]})", four), "in its shape"},
      {entry(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]})", four), "64 bits"},
      {entry(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), "64 bits"},
      {entry(R"({"dtype":"U8","shape":[)" + dimensions + R"(],"data_offsets":[0,1]})", "1"), "more than 64 dimensions"},
      {entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", four), "1 data_offsets, not two"},
      {entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", four), "has 8 in its data_offsets"},
      {entry(R"({"dtype":"F32","shape":[1],"data_offsets":[[0],4]})", four), "an array in its data_offsets"},
      {entry(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", four), "ends before it begins"},
      {entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,3]})", four), "has 4 bytes by shape and dtype, and 3"},
      {entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "123"), "ends at byte 4 of 3"},
      {entry(R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615]})", four),
       "by its data_offsets"},
      {entry(R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551608,18446744073709551612]})", four),
       "leaves a gap"},
      {entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", four + "!"), "1 bytes follow"},
      {entry(R"({"dtype":"F32","shape":[1],"data_offsets":[1,5]})", four + "!"), "leaves a gap from byte 0"},
      {with_length("{}", "!"), "1 bytes follow"},
      {with_length(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],)"
                   R"("data_offsets":[2,4]}})",
                   four),
       "tensor \"b\" begins at byte 2 and overlaps"},
      {with_length(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[2],)"
                   R"("data_offsets":[2,4]}})",
                   four),
       "tensor \"b\" begins at byte 2 and leaves a gap from byte 1"},
      {with_length(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[0],)"
                   R"("data_offsets":[2,2]}})",
                   four),
       "overlaps"},
      {with_length(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],)"
                   R"("data_offsets":[2,4]}})",
                   four),
       "two entries \"a\""},
      {with_length(R"({"__metadata__":{"k":"v","k":"w"}})"), "__metadata__ has two entries \"k\""},
      {with_length(R"({"__metadata__":{"k":1}})"), "__metadata__ has 1 under \"k\""},
      {with_length(R"({"__metadata__":{"k":{"a":"b"}}})"), "__metadata__ has an object under \"k\""},
      {with_length(R"({"__metadata__":[]})"), "entry \"__metadata__\" is an array"},
      {with_length(R"({"__metadata__":{},"__metadata__":{}})"), "two entries \"__metadata__\""},
  };
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "bad.safetensors";
  for (const auto& row : table) {
    auto reason = error_of(path, row.bytes);
    CAPTURE(row.expected);
    CAPTURE(reason.message);
    CHECK(reason.code == row.code);
    CHECK(has(reason.message, row.expected));
    CHECK(has(reason.message, path.string()));
  }
  CHECK(
      error_of(scratch.path() / "good", with_length(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four))
          .code == errc::none);
}

TEST_CASE("names in a malformed file do not reach the terminal unescaped") {
  auto reason = parse_safetensors_header("{\"a\\u001b[2J" + std::string(5000, 'x') + "\":1}", 0);
  REQUIRE_FALSE(reason);
  CHECK_FALSE(has(reason.error().message, "\x1b"));
  CHECK(reason.error().message.size() < 300);
}

TEST_CASE("a bool that is neither true nor false is damage") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "x";
  overwrite_file(path, with_length(R"({"x":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}})", {"\0\1\2\1", 4}));
  auto opened = safetensors_file::open(path);
  REQUIRE(opened);
  auto bytes = std::vector<std::byte>(4);
  auto read = opened->read(0, 0, bytes);
  REQUIRE_FALSE(read);
  CHECK(read.error().code == errc::damaged);
  CHECK(has(read.error().message, "element 2"));
}

TEST_CASE("files that cannot be safetensors are distinguished") {
  auto scratch = scratch_directory{};
  CHECK(safetensors_file::open(scratch.path() / "none").error().code == errc::not_found);
  CHECK_FALSE(safetensors_file::open(scratch.path()));
}
