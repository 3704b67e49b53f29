#include <troupe/data/data_set.hpp>
#include <troupe/data/idx.hpp>

#include "sample_files.hpp"

#include <doctest/doctest.h>
#include <scratch_directory.hpp>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>
#include <zlib.h>

using namespace troupe;
using namespace troupe::data;

namespace {

namespace fs = std::filesystem;

using bytes = std::vector<std::uint8_t>;

bytes idx(std::uint8_t type, std::vector<std::uint32_t> dimensions, const bytes& values) {
  bytes result{0, 0, type, static_cast<std::uint8_t>(dimensions.size())};
  for (auto n : dimensions)
    for (int shift = 24; shift >= 0; shift -= 8)
      result.push_back(static_cast<std::uint8_t>(n >> shift));
  result.insert(result.end(), values.begin(), values.end());
  return result;
}

bytes packed(const bytes& content) {
  z_stream stream{};
  REQUIRE(::deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  bytes result(::deflateBound(&stream, content.size()) + 64);
  stream.next_in = const_cast<Bytef*>(content.data());
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = result.data();
  stream.avail_out = static_cast<uInt>(result.size());
  REQUIRE(::deflate(&stream, Z_FINISH) == Z_STREAM_END);
  result.resize(stream.total_out);
  ::deflateEnd(&stream);
  return result;
}

expected<column> parse(const bytes& content) {
  return parse_idx(std::as_bytes(std::span{content}), nullptr, "file", "x");
}

/// Value number i in the files of write_samples.py.
double value(std::size_t i, dtype type) {
  return static_cast<double>((i * 37 + 11) % 251) - (type == dtype::u8 ? 0 : 125);
}

template <class T>
void check_values(const column& read) {
  auto count = read.bytes.size() / sizeof(T);
  REQUIRE(count == read.samples() * read.spec.elements());
  for (std::size_t i = 0; i < count; ++i) {
    T found;
    std::memcpy(&found, read.bytes.data() + i * sizeof(T), sizeof(T));
    REQUIRE(static_cast<double>(found) == value(i, read.spec.type));
  }
}

} // namespace

TEST_CASE("files of every type written by Python, plain and packed, are read back") {
  struct sample_case {
    std::string name;
    dtype type;
    std::uint64_t size;
    std::vector<std::uint64_t> shape;
    void (*check)(const column&);
  };
  for (const auto& [name, type, size, shape, check] : {
           sample_case{"08", dtype::u8, 5, {3, 2}, check_values<std::uint8_t>},
           sample_case{"09", dtype::i8, 6, {}, check_values<std::int8_t>},
           sample_case{"0b", dtype::i16, 5, {3}, check_values<std::int16_t>},
           sample_case{"0c", dtype::i32, 3, {2, 2, 2}, check_values<std::int32_t>},
           sample_case{"0d", dtype::f32, 4, {3, 2}, check_values<float>},
           sample_case{"0e", dtype::f64, 7, {}, check_values<double>},
       }) {
    CAPTURE(name);
    auto plain = read_idx(testing::sample_files() / ("python-" + name + ".idx"), "values");
    auto compressed = read_idx(testing::sample_files() / ("python-" + name + ".idx.gz"), "values");
    for (const auto& read : {plain, compressed}) {
      REQUIRE_MESSAGE(read.has_value(), read.error().message);
      CHECK(read->spec == column_spec{"values", type, shape, {}});
      CHECK(read->samples() == size);
      check(*read);
    }
    CHECK(value_or_throw(make_table({*plain}))->fingerprint() ==
          value_or_throw(make_table({*compressed}))->fingerprint());
  }
}

TEST_CASE("images and labels make one data set, which keeps the mapped file alive") {
  testing::scratch_directory scratch;
  auto write = [&](const char* name, const bytes& content) {
    auto path = scratch.path() / name;
    std::ofstream{path, std::ios::binary}.write(reinterpret_cast<const char*>(content.data()),
                                                static_cast<std::streamsize>(content.size()));
    return path;
  };
  auto images =
      value_or_throw(read_idx(write("images", idx(8, {3, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})), "image"));
  auto labels = value_or_throw(read_idx(write("labels.gz", packed(idx(8, {3}, {7, 8, 9}))), "label"));
  auto set = value_or_throw(make_table({images, labels}));
  images = {};
  fs::remove(scratch.path() / "images");
  batch out;
  REQUIRE(set->fetch(std::vector<std::uint64_t>{2, 0}, out).has_value());
  CHECK(out.values<std::uint8_t>("label")[0] == 9);
  CHECK(out.values<std::uint8_t>("image")[0] == 8);
  CHECK(out.values<std::uint8_t>("image")[7] == 3);
}

TEST_CASE("a file without samples is read") {
  auto read = parse(idx(8, {0, 28, 28}, {}));
  REQUIRE(read.has_value());
  CHECK(read->samples() == 0);
}

TEST_CASE("several gzip members are one file") {
  auto whole = idx(8, {4}, {1, 2, 3, 4});
  auto file = packed({whole.begin(), whole.begin() + 9});
  auto rest = packed({whole.begin() + 9, whole.end()});
  file.insert(file.end(), rest.begin(), rest.end());
  auto read = parse(file);
  REQUIRE_MESSAGE(read.has_value(), read.error().message);
  CHECK(std::to_integer<int>(read->bytes[3]) == 4);
}

TEST_CASE("an invalid IDX file is refused with what was expected") {
  const auto values = bytes{1, 2, 3, 4, 5, 6};
  auto good = idx(8, {3, 2}, values);
  auto changed = [&](std::size_t place, std::uint8_t value) {
    auto result = good;
    result[place] = value;
    return result;
  };
  auto cut = [](bytes x, std::size_t size) {
    x.resize(size);
    return x;
  };
  auto longer = good;
  longer.push_back(0);
  auto zipped = packed(good);
  auto flipped = zipped;
  flipped[flipped.size() - 6] ^= 1u; // in the checksum
  auto trailing = zipped;
  trailing.push_back('x');
  struct sample_case {
    bytes content;
    std::string says;
  };
  for (const auto& [content, says] : {
           sample_case{{}, "not an IDX file: it has 0 bytes"},
           sample_case{cut(good, 3), "not an IDX file: it has 3 bytes"},
           sample_case{changed(0, 0x93), "it begins with 0x93 0x00, expected two zero bytes"},
           sample_case{changed(2, 0x0a), "IDX type 0x0a at byte 2: expected 0x08"},
           sample_case{changed(3, 0), "0 dimensions at byte 3: expected 1 to 4"},
           sample_case{changed(3, 5), "5 dimensions at byte 3: expected 1 to 4"},
           sample_case{cut(good, 11), "truncated: it has 11 bytes, and a header of 2 dimensions 12"},
           sample_case{cut(good, 17), "truncated: a header of u8[3, 2] requires 6 bytes of values, and there are 5"},
           sample_case{longer, "a header of u8[3, 2] requires 6 bytes of values, and there are more"},
           sample_case{changed(11, 0), "dimension 1 is 0"},
           sample_case{idx(14, {0xffffffff, 0xffffffff, 0xffffffff}, values), "impossibly large"},
           sample_case{cut(zipped, zipped.size() - 1), "the gzip stream is truncated"},
           sample_case{cut(zipped, 5), "the gzip stream is truncated"},
           sample_case{flipped, "invalid gzip stream at byte"},
           sample_case{trailing, "1 bytes follow the gzip stream"},
           sample_case{packed(longer), "and there are more"},
           sample_case{packed(cut(good, 17)), "requires 6 bytes of values, and there are 5"},
           sample_case{packed(cut(good, 7)), "truncated: it has 7 bytes"},
           sample_case{packed(idx(8, {0xffffffff, 1000}, values)), "bytes of values, and there are 6"},
       }) {
    auto read = parse(content);
    REQUIRE_FALSE_MESSAGE(read.has_value(), says);
    CHECK(read.error().code == errc::damaged);
    CHECK_MESSAGE(read.error().message.find("file: ") == 0, read.error().message);
    CHECK_MESSAGE(read.error().message.find(says) != std::string::npos, read.error().message);
  }
}

TEST_CASE("a file truncated anywhere is reported, and never read beyond its end") {
  for (auto content : {idx(8, {3, 2}, {1, 2, 3, 4, 5, 6}), packed(idx(0x0b, {3, 2}, bytes(12, 9)))})
    for (std::size_t size = 0; size < content.size(); ++size)
      CHECK_FALSE(parse({content.begin(), content.begin() + static_cast<std::ptrdiff_t>(size)}).has_value());
}

TEST_CASE("a file that cannot be opened is named") {
  CHECK(read_idx("/nowhere/images", "x").error() ==
        error{errc::not_found, "/nowhere/images: No such file or directory"});
  CHECK(read_idx("/", "x").error().code == errc::io_error);
}
