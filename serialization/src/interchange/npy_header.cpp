#include <troupe/serialization/interchange/npy.hpp>

#include "vocabulary/checked_size.hpp"
#include "vocabulary/quote_for_log.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <utility>

namespace troupe::serialization {

namespace {

constexpr std::string_view magic{"\x93NUMPY", 6};

constexpr std::array<std::pair<dtype, std::string_view>, 12> codes{{
    {dtype::f64, "f8"},
    {dtype::f32, "f4"},
    {dtype::f16, "f2"},
    {dtype::i64, "i8"},
    {dtype::i32, "i4"},
    {dtype::i16, "i2"},
    {dtype::i8, "i1"},
    {dtype::u64, "u8"},
    {dtype::u32, "u4"},
    {dtype::u16, "u2"},
    {dtype::u8, "u1"},
    {dtype::boolean, "b1"},
}};

/// Parses the header's dictionary, a Python literal with three entries; evaluates nothing.
class npy_header_reader {
 public:
  npy_header_reader(std::string_view text) : text_(text) {}

  expected<npy_layout> read() {
    read_dictionary();
    if (flaw_.code != errc::none)
      return fail(std::move(flaw_));
    return result_;
  }

 private:
  void read_dictionary() {
    auto seen = std::array<bool, 3>{};
    static constexpr std::array<std::string_view, 3> names{"descr", "fortran_order", "shape"};
    want('{');
    while (good() && !take('}')) {
      auto key = read_string();
      auto found = std::ranges::find(names, key);
      if (good() && found == names.end())
        return refuse(fmt::format("its header has an entry {}, which the format does not define", quote_for_log(key)));
      want(':');
      if (!good())
        return;
      auto which = static_cast<std::size_t>(found - names.begin());
      if (std::exchange(seen[which], true))
        return refuse(fmt::format("its header has two entries {}", quote_for_log(key)));
      which == 0 ? read_descr() : which == 1 ? read_order() : read_shape();
      if (!take(',')) {
        want('}');
        break;
      }
    }
    skip_space();
    if (good() && at_ != text_.size())
      return refuse_here("something follows the header's dictionary");
    for (std::size_t i = 0; i < names.size(); ++i)
      if (good() && !seen[i])
        return refuse(fmt::format("its header has no {}", names[i]));
  }

  void read_descr() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[')
      return refuse("its elements are records, which Troupe does not support: save one field, as in array[\"field\"]",
                    errc::invalid_argument);
    auto code = read_string();
    if (!good())
      return;
    auto type = code.size() == 3 ? std::ranges::find(codes, std::string_view{code}.substr(1),
                                                     &std::pair<dtype, std::string_view>::second)
                                 : codes.end();
    if (type == codes.end())
      return refuse_dtype(code);
    auto single = size_of(type->first) == 1;
    if (!(code[0] == '<' || code[0] == '>' || (code[0] == '|' && single) || code[0] == '='))
      return refuse_dtype(code);
    result_.type = type->first;
    result_.bytes = code[0] == '>' && !single ? byte_order::big : byte_order::little;
  }

  void refuse_dtype(const std::string& code) {
    if (code == "|O" || code == "O")
      return refuse("its elements are Python objects, which would have to be executed: save an array of numbers",
                    errc::invalid_argument);
    refuse(fmt::format("its elements are of dtype {}, which Troupe does not support: convert them first with "
                       "array.astype to one of float16, float32, float64, int8, int16, int32, int64, uint8, bool",
                       quote_for_log(code)),
           errc::invalid_argument);
  }

  void read_order() {
    skip_space();
    if (take_word("True"))
      result_.elements = element_order::fortran;
    else if (!take_word("False"))
      refuse_here("fortran_order is neither True nor False");
  }

  void read_shape() {
    want('(');
    while (good() && !take(')')) {
      if (result_.shape.size() == max_imported_dimensions)
        return refuse(fmt::format("it has more than {} dimensions", max_imported_dimensions));
      result_.shape.push_back(read_number());
      if (!take(',')) {
        // Without a comma, (3) is a number, not a tuple.
        if (result_.shape.size() == 1)
          return refuse_here("its shape is not a tuple");
        want(')');
        break;
      }
    }
  }

  std::uint64_t read_number() {
    skip_space();
    auto value = std::uint64_t{0};
    auto [end, code] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (code == std::errc::result_out_of_range)
      refuse_here("a dimension of its shape does not fit into 64 bits");
    else if (code != std::errc{})
      refuse_here("a dimension of its shape is not a number");
    at_ = static_cast<std::size_t>(end - text_.data());
    // Python 2 wrote long numbers with an L.
    if (good() && at_ < text_.size() && text_[at_] == 'L')
      ++at_;
    return value;
  }

  std::string read_string() {
    skip_space();
    auto mark = at_ < text_.size() ? text_[at_] : '\0';
    if (mark != '\'' && mark != '"') {
      refuse_here("a quoted string is missing");
      return {};
    }
    auto end = text_.find(mark, at_ + 1);
    auto result = std::string{text_.substr(at_ + 1, end == std::string_view::npos ? end : end - at_ - 1)};
    if (end == std::string_view::npos || result.find('\\') != std::string::npos) {
      refuse_here("a quoted string is not as NumPy writes it");
      return {};
    }
    at_ = end + 1;
    return result;
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }

  bool take(char c) {
    skip_space();
    if (!good() || at_ >= text_.size() || text_[at_] != c)
      return false;
    ++at_;
    return true;
  }

  bool take_word(std::string_view word) {
    if (!text_.substr(at_).starts_with(word))
      return false;
    at_ += word.size();
    return true;
  }

  void want(char c) {
    if (good() && !take(c))
      refuse_here(fmt::format("'{}' is missing", c));
  }

  [[nodiscard]] bool good() const { return flaw_.code == errc::none; }

  /// Keeps the first flaw.
  void refuse(std::string text, errc code = errc::damaged) {
    if (good())
      flaw_ = {code, std::move(text)};
  }

  void refuse_here(std::string_view text) { refuse(fmt::format("{} at byte {} of its header", text, at_)); }

  std::string_view text_;
  std::size_t at_ = 0;
  npy_layout result_;
  error flaw_;
};

expected<void> check_size(const npy_layout& layout, std::uint64_t file_bytes) {
  auto size = checked_size(layout.type, layout.shape);
  if (!size)
    return fail(errc::damaged, "its size does not fit into 64 bits");
  if (auto there = file_bytes - layout.offset_bytes; there != *size)
    return fail(errc::damaged, fmt::format("its header says {} bytes of elements, and there are {}: it is truncated or "
                                           "holds something else as well",
                                           *size, there));
  return {};
}

} // namespace

expected<npy_layout> parse_npy_header(std::span<const std::byte> beginning, std::uint64_t file_bytes) {
  auto text = std::string_view{reinterpret_cast<const char*>(beginning.data()), beginning.size()};
  if (!text.starts_with(magic))
    return fail(errc::damaged, "it does not begin like an NPY file");
  if (text.size() < 10)
    return fail(errc::damaged, "it is truncated in its header");
  auto byte = [&](std::size_t i) { return static_cast<std::uint64_t>(static_cast<unsigned char>(text[i])); };
  if (byte(6) < 1 || byte(6) > 3 || byte(7) != 0)
    return fail(errc::unsupported_version,
                fmt::format("it has version {}.{} of the format; 1.0, 2.0 and 3.0 are supported", byte(6), byte(7)));
  auto begin = std::size_t{byte(6) == 1 ? 10u : 12u};
  if (text.size() < begin)
    return fail(errc::damaged, "it is truncated in its header");
  auto length = byte(8) | byte(9) << 8;
  if (byte(6) > 1)
    length |= byte(10) << 16 | byte(11) << 24;
  if (length > max_npy_header_bytes)
    return fail(errc::damaged,
                fmt::format("its header would have {} bytes; at most {} are supported", length, max_npy_header_bytes));
  if (length > text.size() - begin || begin + length > file_bytes)
    return fail(errc::damaged, "it is truncated in its header");
  auto result = npy_header_reader{text.substr(begin, length)}.read();
  if (!result)
    return result;
  result->offset_bytes = begin + length;
  TROUPE_TRY(check_size(*result, file_bytes));
  return result;
}

expected<std::string> make_npy_head(const tensor_spec& spec) {
  auto code = std::ranges::find(codes, spec.type, &std::pair<dtype, std::string_view>::first);
  if (code == codes.end())
    return fail(
        errc::invalid_argument,
        fmt::format("tensor {} has elements of dtype {}, which NumPy does not support: write a safetensors file",
                    quote_for_log(spec.name), to_string(spec.type)));
  if (spec.shape.size() > max_imported_dimensions)
    return fail(errc::invalid_argument,
                fmt::format("tensor {} has more than {} dimensions, and NumPy reads no more: write a safetensors file",
                            quote_for_log(spec.name), max_imported_dimensions));
  // (3,) and (3, 4), as Python writes tuples.
  auto shape = fmt::format("{}{}", fmt::join(spec.shape, ", "), spec.shape.size() == 1 ? "," : "");
  auto text = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                          size_of(spec.type) == 1 ? '|' : '<', code->second, shape);

  // Padding and a line feed align the elements to 64 bytes.
  text.resize((10 + text.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  text += '\n';
  auto result = std::string{magic} + '\1' + '\0';
  result += static_cast<char>(text.size() & 0xff);
  result += static_cast<char>(text.size() >> 8);
  return result + text;
}

} // namespace troupe::serialization
