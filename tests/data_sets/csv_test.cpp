#include <troupe/data/csv.hpp>
#include <troupe/data/data_set.hpp>

#include "sample_files.hpp"

#include <doctest/doctest.h>
#include <scratch_directory.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::data;

namespace {

namespace fs = std::filesystem;

template <class T>
std::vector<T> values(const column& read) {
  REQUIRE(read.spec.type == dtype_of<T>);
  const auto* first = reinterpret_cast<const T*>(read.bytes.data());
  return {first, first + read.bytes.size() / sizeof(T)};
}

std::vector<column> parsed(const std::string& text, const csv_options& options = {}) {
  auto result = parse_csv(text, "file", options);
  REQUIRE_MESSAGE(result.has_value(), result.error().message);
  return std::move(*result);
}

csv_options with(std::vector<csv_column> columns) {
  csv_options result;
  result.columns = std::move(columns);
  return result;
}

std::vector<std::string> texts(const column& read) {
  std::vector<std::string> result;
  for (auto code : values<std::int64_t>(read))
    result.push_back(code < 0 ? "(missing)" : read.spec.categories->at(static_cast<std::size_t>(code)));
  return result;
}

} // namespace

// A member without a default of its own would be an error in both: it has no value, or whoever leaves it out is warned.
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wmissing-field-initializers"

TEST_CASE("a column's members that are left out have their defaults") {
  const csv_column untouched;
  const std::vector<csv_column> columns{{.name = "a"}, {.from = {"x", "y"}}, {.name = "b", .type = csv_type::i64}};
  CHECK(untouched.name.empty());
  CHECK(untouched.type == csv_type::f32);
  CHECK(untouched.from.empty());
  CHECK(untouched.categories.empty());
  CHECK(columns[0].type == csv_type::f32);
  CHECK(columns[0].from.empty());
  CHECK(columns[1].name.empty());
  CHECK(columns[1].type == csv_type::f32);
  CHECK(columns[2].categories.empty());
  const auto read = parsed("a,b\n1.5,2\n", {.columns = {columns[0], columns[2]}});
  REQUIRE(read.size() == 2);
  CHECK(values<float>(read[0]) == std::vector<float>{1.5f});
  CHECK(values<std::int64_t>(read[1]) == std::vector<std::int64_t>{2});
}

#pragma GCC diagnostic pop

TEST_CASE("files written by Python are read back") {
  constexpr auto names = std::array{"plain",
                                    "with, comma",
                                    "with \"quotes\"",
                                    "two\nlines",
                                    "",
                                    "\xc3\xbcn\xc3\xaf"
                                    "code",
                                    " spaces "};
  for (const auto* file : {"python.csv", "python-unix.csv", "python-semicolons.csv"}) {
    CAPTURE(file);
    auto options = with({{"number", csv_type::f64, {}, {}},
                         {"text", csv_type::categorical, {}, {}},
                         {"half", csv_type::f32, {}, {}},
                         {"count", csv_type::i64, {}, {}}});
    options.delimiter = std::string{file} == "python-semicolons.csv" ? ';' : ',';
    options.missing_texts = {};
    auto columns = read_csv(testing::sample_files() / file, options);
    REQUIRE_MESSAGE(columns.has_value(), columns.error().message);
    REQUIRE(columns->size() == 4);
    auto text = texts(columns->at(1));
    REQUIRE(text.size() == 40);
    for (std::int64_t i = 0, power = 1; i < 40; ++i, power *= i < 18 ? 10 : 1) {
      auto at = static_cast<std::size_t>(i);
      CHECK(values<double>(columns->at(0))[at] == 1.0 / static_cast<double>(i + 1));
      CHECK(text[at] == names[at % names.size()]);
      CHECK(values<float>(columns->at(2))[at] == static_cast<float>(i) / 2 - 3);
      CHECK(values<std::int64_t>(columns->at(3))[at] == (i < 18 ? (i - 20) * power : -i));
    }
  }
}

TEST_CASE("doubles written by NumPy are read back bit for bit") {
  auto path = testing::sample_files() / "numpy.csv";
  if (!fs::exists(path)) {
    MESSAGE("numpy is not installed where the samples were written");
    return;
  }
  auto columns = read_csv(path, with({{"a", csv_type::f64, {}, {}}, {"b", csv_type::f64, {}, {}}}));
  REQUIRE_MESSAGE(columns.has_value(), columns.error().message);
  for (std::size_t i = 0; i < 40; ++i) {
    CHECK(values<double>(columns->at(0))[i] == 1.0 / static_cast<double>(i + 1));
    CHECK(values<double>(columns->at(1))[i] == std::sqrt(1.0 / static_cast<double>(i + 1)));
  }
}

TEST_CASE("without options each column becomes f32 under its own name") {
  auto columns = parsed("x,y\n1,-2.5e3\n+4, 0.1 \n");
  REQUIRE(columns.size() == 2);
  CHECK(columns[0].spec == column_spec{"x", dtype::f32, {}, {}});
  CHECK(values<float>(columns[0]) == std::vector<float>{1, 4});
  CHECK(values<float>(columns[1]) == std::vector<float>{-2500, 0.1f});
}

TEST_CASE("all variants of the table format are accepted") {
  struct sample_case {
    std::string text;
    std::vector<float> a;
    std::vector<float> b;
  };
  for (const auto& [text, a, b] : {
           sample_case{"a,b\n1,2\n3,4", {1, 3}, {2, 4}},
           sample_case{"a,b\r\n1,2\r\n3,4\r\n", {1, 3}, {2, 4}},
           sample_case{"a,b\r\n1,2\r\n3,4\r", {1, 3}, {2, 4}},
           sample_case{"\xef\xbb\xbf"
                       "a,b\n1,2\n",
                       {1},
                       {2}},
           sample_case{"\"a\",\"b\"\n\"1\",\"2\"\n", {1}, {2}},
           sample_case{"b,a\n2,1\n", {1}, {2}},
           sample_case{"\n\na,b\n\n1,2\n\n", {1}, {2}},
           sample_case{"a,b\n", {}, {}},
           sample_case{"a,b", {}, {}},
       }) {
    CAPTURE(text);
    auto columns = parsed(text, with({{"a", csv_type::f32, {}, {}}, {"b", csv_type::f32, {}, {}}}));
    CHECK(values<float>(columns[0]) == a);
    CHECK(values<float>(columns[1]) == b);
  }
}

TEST_CASE("without a header columns are numbered, and leading lines can be skipped") {
  auto options = with({{"sizes", csv_type::f32, {"2", "0"}, {}}, {"kind", csv_type::categorical, {"1"}, {}}});
  options.header = false;
  options.skip_lines = 1;
  options.delimiter = '\t';
  auto columns = parsed("2 rows \"and\" three, columns\n1\tred\t2\n3\tblue\t4\n", options);
  CHECK(columns[0].spec == column_spec{"sizes", dtype::f32, {2}, {}});
  CHECK(values<float>(columns[0]) == std::vector<float>{2, 1, 4, 3});
  CHECK(texts(columns[1]) == std::vector<std::string>{"red", "blue"});
}

TEST_CASE("quoted fields hold delimiters, quotes and line breaks, and line numbers stay correct") {
  auto text = std::string{"t,n\n\"a,b\",1\n\"c\"\"d\"\"\",2\n\"e\r\nf\n\",3\n\"\",4\n"};
  auto options = with({{"t", csv_type::categorical, {}, {}}, {"n", csv_type::f32, {}, {}}});
  options.missing_texts = {};
  CHECK(texts(parsed(text, options)[0]) == std::vector<std::string>{"a,b", "c\"d\"", "e\r\nf\n", ""});
  auto bad = parse_csv(text + "x,y\n", "file", options);
  REQUIRE_FALSE(bad.has_value());
  CHECK(bad.error().message == "file:8: column 'n': 'y' is not f32: expected a finite number");
}

TEST_CASE("categories are numbered in byte order, whatever the order of rows") {
  const auto column = csv_column{"c", csv_type::categorical, {}, {}};
  auto one = parsed("c\nb\na\nB\nb\n", with({column}));
  auto other = parsed("c\nB\nb\nb\na\n", with({column}));
  CHECK(*one[0].spec.categories == std::vector<std::string>{"B", "a", "b"});
  CHECK(values<std::int64_t>(one[0]) == std::vector<std::int64_t>{2, 1, 0, 2});
  CHECK(one[0].spec == other[0].spec);
}

TEST_CASE("given categories have the codes of their positions, and others are errors") {
  const auto column = csv_column{"c", csv_type::categorical, {}, {"low", "high"}};
  auto good = parsed("c\nhigh\nlow\n", with({column}));
  CHECK(values<std::int64_t>(good[0]) == std::vector<std::int64_t>{1, 0});
  auto bad = parse_csv("c\nhigh\nmiddle\n", "file", with({column}));
  REQUIRE_FALSE(bad.has_value());
  CHECK(bad.error().message ==
        "file:3: column 'c': 'middle' is not a known category: expected one of the 2 given categories");
}

TEST_CASE("missing values are refused or marked, as configured") {
  auto options =
      with({{"x", csv_type::f32, {}, {}}, {"y", csv_type::f64, {}, {}}, {"c", csv_type::categorical, {}, {}}});
  options.missing_texts = {"", "NA"};
  const auto* text = "x,y,c\n1,NA,a\n ,2,NA\n";
  auto refused = parse_csv(text, "file", options);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == errc::damaged);
  CHECK(refused.error().message == "file:2: column 'y': 'NA' means a missing value: complete the file, or read with "
                                   "missing_values::marked");
  options.missing = missing_values::marked;
  auto columns = parsed(text, options);
  CHECK(values<float>(columns[0])[0] == 1);
  CHECK(std::isnan(values<float>(columns[0])[1]));
  CHECK(std::isnan(values<double>(columns[1])[0]));
  CHECK(texts(columns[2]) == std::vector<std::string>{"a", "(missing)"});
  options.columns = {{"x", csv_type::i64, {}, {}}};
  auto whole = parse_csv(text, "file", options);
  REQUIRE_FALSE(whole.has_value());
  CHECK(whole.error().message.find(
            "file:3: column 'x': ' ' means a missing value: an i64 column cannot represent it") == 0);
}

TEST_CASE("an invalid table is refused with line, column and what was expected") {
  auto of_type = [](csv_type type) { return with({{"a", type, {}, {}}}); };
  auto twice = with({{"a", csv_type::categorical, {}, {"x", "x"}}});
  auto quotes = csv_options{};
  quotes.delimiter = '"';
  struct sample_case {
    std::string text;
    csv_options options;
    errc code;
    std::string says;
  };
  for (const auto& [text, options, code, says] : {
           sample_case{"", {}, errc::damaged, "file: it has no rows, not even the one with column names"},
           sample_case{"\n\n", {}, errc::damaged, "file: it has no rows"},
           sample_case{"a,b\n1,2\n3\n", {}, errc::damaged, "file:3: 1 fields, expected 2"},
           sample_case{"a,b\n1,2,3\n", {}, errc::damaged, "file:2: 3 fields, expected 2"},
           sample_case{"a,b\n1,2,\n", {}, errc::damaged, "file:2: 3 fields, expected 2"},
           sample_case{"a,a\n1,2\n", {}, errc::invalid_argument, "file: two columns are named 'a'"},
           sample_case{"b,c\n1,2\n", of_type(csv_type::f32), errc::invalid_argument,
                       "file: no column 'a': the file has 'b', 'c'"},
           sample_case{"a\nabc\n", of_type(csv_type::f32), errc::damaged, "file:2: column 'a': 'abc' is not f32"},
           sample_case{"a\n1x\n", of_type(csv_type::f64), errc::damaged, "'1x' is not f64"},
           sample_case{"a\n1 2\n", of_type(csv_type::f64), errc::damaged, "'1 2' is not f64"},
           sample_case{"a\n1e99\n", of_type(csv_type::f32), errc::damaged,
                       "'1e99' is not f32: expected a finite number"},
           sample_case{"a\nnan\n", of_type(csv_type::f32), errc::damaged, "'nan' is not f32"},
           sample_case{"a\nnan\n", of_type(csv_type::f32), errc::damaged,
                       R"(csv_options::missing_texts ({"", "nan"}))"},
           sample_case{"a\n N/A \n", of_type(csv_type::f64), errc::damaged,
                       R"(csv_options::missing_texts ({"", "N/A"}))"},
           sample_case{"a\ninf\n", of_type(csv_type::f64), errc::damaged, "'inf' is not f64"},
           sample_case{"a\n0x10\n", of_type(csv_type::f64), errc::damaged, "'0x10' is not f64"},
           sample_case{"a\n+-1\n", of_type(csv_type::f64), errc::damaged, "'+-1' is not f64"},
           sample_case{"a\n1.5\n", of_type(csv_type::i64), errc::damaged, "'1.5' is not i64"},
           sample_case{"a\n9223372036854775808\n", of_type(csv_type::i64), errc::damaged, "is not i64"},
           sample_case{"a\n\"1\n2\n", {}, errc::damaged, "file:2: field 0: its opening quote is never closed"},
           sample_case{"a,b\n1,x\"y\n", {}, errc::damaged, "file:2: field 1: a quote inside an unquoted field"},
           sample_case{"a,b\n\"1\"2,3\n", {}, errc::damaged, "file:2: field 0: text after the closing quote"},
           sample_case{"a\n\x01" + std::string(100, 'z') + "\n",
                       {},
                       errc::damaged,
                       "'?" + std::string(39, 'z') + "...' is not"},
           sample_case{"a\n1\n", twice, errc::invalid_argument, "category 'x' is given twice"},
           sample_case{"a\n1\n", quotes, errc::invalid_argument, "cannot be the delimiter"},
       }) {
    auto read = parse_csv(text, "file", options);
    REQUIRE_FALSE_MESSAGE(read.has_value(), says);
    CHECK_MESSAGE(read.error().code == code, says);
    CHECK_MESSAGE(read.error().message.find(says) != std::string::npos, read.error().message);
  }
}

TEST_CASE("a file is read from its path and from a pipe") {
  testing::scratch_directory scratch;
  auto path = scratch.path() / "table.csv";
  std::ofstream{path} << "a\n1\n2\n";
  auto columns = read_csv(path);
  REQUIRE(columns.has_value());
  CHECK(values<float>(columns->front()) == std::vector<float>{1, 2});
  std::ofstream{path} << "a\n1\nx\n";
  CHECK(read_csv(path).error().message.find(path.string() + ":3: column 'a'") == 0);
  CHECK(read_csv("/nowhere.csv").error().code == errc::not_found);
  // Not a regular file: it cannot be mapped.
  CHECK(read_csv("/dev/null").error().message == "/dev/null: it has no rows, not even the one with column names");
}
