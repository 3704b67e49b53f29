#include "csv_rows.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace troupe::data {

namespace {

constexpr char quote = '"';
constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

} // namespace

csv_rows::csv_rows(std::string_view text, std::string file, char delimiter)
    : at_(text.data()), end_(text.data() + text.size()), file_(std::move(file)), delimiter_(delimiter) {
  if (text.starts_with(byte_order_mark))
    at_ += byte_order_mark.size();
}

void csv_rows::skip_lines(std::uint64_t count) {
  for (; count > 0 && at_ != end_; --count) {
    at_ = std::find(at_, end_, '\n');
    if (at_ != end_)
      ++at_;
    ++line_;
  }
}

bool csv_rows::take_line_break() noexcept {
  if (at_ != end_ && *at_ == '\n')
    at_ += 1;
  else if (end_ - at_ >= 2 && at_[0] == '\r' && at_[1] == '\n')
    at_ += 2;
  else
    return false;
  ++line_;
  return true;
}

expected<bool> csv_rows::next() {
  fields_.clear();
  unescaped_.clear();
  line_of_row_ = line_;
  if (at_ == end_)
    return false;
  for (;;) {
    TROUPE_TRY(auto field, at_ != end_ && *at_ == quote ? quoted_field() : plain_field());
    fields_.push_back(field);
    if (at_ == end_ || take_line_break())
      return true;
    ++at_; // the delimiter
  }
}

expected<std::string_view> csv_rows::plain_field() {
  const auto* begin = at_;
  for (; at_ != end_; ++at_) {
    auto c = *at_;
    if (c == delimiter_ || c == '\n')
      break;
    if (c == quote)
      return fail(errc::damaged,
                  fmt::format("{}field {}: a quote inside an unquoted field: quote the field, and double "
                              "the quotes inside it",
                              place(), fields_.size()));
    if (c == '\r' && at_ + 1 != end_ && at_[1] == '\n')
      break;
  }
  auto result = std::string_view{begin, static_cast<std::size_t>(at_ - begin)};
  // The file may be truncated in the middle of its last line break.
  if (at_ == end_ && result.ends_with('\r'))
    result.remove_suffix(1);
  return result;
}

expected<std::string_view> csv_rows::quoted_field() {
  const auto* begin = ++at_;
  std::string* copy = nullptr;
  for (;;) {
    auto* stop = std::find(at_, end_, quote);
    line_ += static_cast<std::uint64_t>(std::count(at_, stop, '\n'));
    if (stop == end_)
      return fail(errc::damaged, fmt::format("{}field {}: its opening quote is never closed", place(), fields_.size()));
    at_ = stop + 1;
    auto doubled = at_ != end_ && *at_ == quote;
    if (doubled && copy == nullptr)
      copy = &unescaped_.emplace_back();
    if (copy != nullptr)
      copy->append(begin, stop + (doubled ? 1 : 0));
    if (!doubled) {
      auto last_break =
          at_ == end_ || *at_ == delimiter_ || *at_ == '\n' || (*at_ == '\r' && at_ + 1 != end_ && at_[1] == '\n');
      if (!last_break)
        return fail(errc::damaged,
                    fmt::format("{}field {}: text after the closing quote: expected the delimiter or the line's end",
                                place(), fields_.size()));
      return copy != nullptr ? std::string_view{*copy}
                             : std::string_view{begin, static_cast<std::size_t>(stop - begin)};
    }
    begin = ++at_;
  }
}

std::string show_field(std::string_view field) {
  constexpr std::size_t longest = 40;
  std::string result = "'";
  for (auto c : field.substr(0, longest))
    result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return result + (field.size() > longest ? "...'" : "'");
}

} // namespace troupe::data
