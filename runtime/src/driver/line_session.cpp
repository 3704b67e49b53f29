#include "driver/line_session.hpp"

#include <algorithm>
#include <utility>

namespace troupe::runtime {

void line_session::receive(std::string_view bytes) {
  in_ += bytes;
  if (std::min(in_.find('\n'), in_.size()) <= limits_.line_bytes)
    return;
  in_.clear();
  end_with(R"({"error":{"code":"invalid_argument","message":"the line is too long"}})");
}

std::optional<std::string> line_session::next_line(time now) {
  const auto end = in_.find('\n');
  if (awaits_answer_ || is_over_ || end == std::string::npos || now < next_at_)
    return std::nullopt;
  auto result = in_.substr(0, end);
  in_.erase(0, end + 1);
  next_at_ = now + limits_.pace;
  has_asked_ = awaits_answer_ = true;
  return result;
}

std::optional<line_session::time> line_session::next_line_at() const {
  const auto is_there = !awaits_answer_ && !is_over_ && in_.find('\n') != std::string::npos;
  return is_there ? std::optional{next_at_} : std::nullopt;
}

void line_session::answer(std::string_view line) {
  awaits_answer_ = false;
  put(line);
}

void line_session::publish(std::string_view line) {
  if (is_subscribed_)
    put(line);
}

void line_session::end_with(std::string_view line) {
  put(line);
  is_over_ = true;
}

void line_session::on_sent(std::size_t bytes) {
  sent_ += bytes;
  if (sent_ < out_.size())
    return;
  out_.clear();
  sent_ = 0;
}

void line_session::put(std::string_view line) {
  if (is_over_)
    return;
  if (out_.size() - sent_ + line.size() >= limits_.output_bytes) {
    is_over_ = is_clogged_ = true;
    return;
  }
  out_.erase(0, std::exchange(sent_, 0));
  out_ += line;
  out_ += '\n';
}

} // namespace troupe::runtime
