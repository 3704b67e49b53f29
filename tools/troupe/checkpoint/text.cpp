#include "text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <unistd.h>
#include <utility>

namespace troupe::tool {

namespace {

/// Smaller operations end before the line could be read.
constexpr std::uint64_t worth_showing_bytes = 256 << 20;
constexpr std::uint64_t shown_every_bytes = 32 << 20;

/// Counts characters instead of bytes, so that columns are aligned.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

} // namespace

int exit_code_of(errc code) noexcept {
  return code == errc::damaged || code == errc::mismatch ? exit_found : exit_trouble;
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1000)
    return fmt::format("{} B", bytes);
  static constexpr std::array<const char*, 6> units{"kB", "MB", "GB", "TB", "PB", "EB"};
  auto value = static_cast<double>(bytes) / 1000;
  auto unit = std::size_t{0};
  for (; value >= 999.95 && unit + 1 < units.size(); ++unit)
    value /= 1000;
  return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string time_text(std::chrono::sys_time<std::chrono::milliseconds> time) {
  auto seconds = static_cast<std::time_t>(std::chrono::floor<std::chrono::seconds>(time).time_since_epoch().count());
  auto parts = std::tm{};
  auto text = std::array<char, 64>{};
  if (seconds == 0 || !::gmtime_r(&seconds, &parts) ||
      std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts) == 0)
    return "-";
  return text.data();
}

std::string number_text(double value) {
  auto text = std::array<char, 64>{};
  auto [end, code] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

std::string short_number_text(double value) {
  return fmt::format("{:.6g}", value);
}

std::string spec_text(const tensor_spec& spec) {
  return fmt::format("{} [{}]", to_string(spec.type), fmt::join(spec.shape, ", "));
}

std::string printable(std::string_view text) {
  auto result = std::string{text};
  for (auto& c : result)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      c = '?';
  return result;
}

json metrics_json(const std::map<std::string, double>& metrics) {
  auto result = json::object();
  for (const auto& [name, value] : metrics)
    if (std::isfinite(value))
      result[name] = value;
    else
      result[name] = number_text(value);
  return result;
}

json parsed(const std::string& text) {
  if (text.empty())
    return nullptr;
  auto result = json::parse(text, nullptr, false);
  return result.is_discarded() ? json(text) : result;
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
  auto widths = std::vector<std::size_t>{};
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths.resize(std::max(widths.size(), i + 1));
      widths[i] = std::max(widths[i], width(row[i]));
    }
  for (const auto& row : rows) {
    auto line = std::string{};
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto gap = std::string(widths[i] - width(row[i]), ' ');
      auto last = i + 1 == row.size();
      line += i == 0 ? row[i] + (last ? "" : gap) : "  " + (last ? row[i] : gap + row[i]);
    }
    std::printf("%s\n", line.c_str());
  }
}

void print_json(const json& document) {
  std::printf("%s\n", document.dump(2, ' ', false, json::error_handler_t::replace).c_str());
}

int complain(const error& reason) {
  std::fprintf(stderr, "troupe checkpoint: %s\n", printable(reason.message).c_str());
  return exit_code_of(reason.code);
}

progress_line::progress_line(std::string what, std::uint64_t total_bytes)
    : what_(std::move(what)),
      total_bytes_(total_bytes),
      visible_(total_bytes >= worth_showing_bytes && ::isatty(STDERR_FILENO) != 0) {}

progress_line::~progress_line() {
  if (visible_)
    std::fputs("\r\x1b[K", stderr);
}

void progress_line::add(std::uint64_t bytes) {
  done_bytes_ += bytes;
  if (!visible_ || done_bytes_ - shown_bytes_ < shown_every_bytes)
    return;
  shown_bytes_ = done_bytes_;
  std::fprintf(stderr, "\r\x1b[K%s: %s of %s", what_.c_str(), bytes_text(done_bytes_).c_str(),
               bytes_text(total_bytes_).c_str());
  std::fflush(stderr);
}

std::uint64_t tensor_bytes(const serialization::manifest& content) {
  auto result = std::uint64_t{0};
  for (const auto& tensor : content.tensors)
    result += tensor.spec.size_bytes();
  return result;
}

} // namespace troupe::tool
