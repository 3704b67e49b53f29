#include "monitoring/prometheus_text.hpp"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace troupe::runtime {

namespace {

/// A label's value may hold any character, these three escaped; control characters and what is no ASCII go as they are.
void put_escaped(std::string& to, std::string_view text) {
  for (auto each : text)
    if (each == '\n')
      to += "\\n";
    else if (each == '\\' || each == '"')
      (to += '\\') += each;
    else
      to += each;
}

std::string number(double value) {
  if (std::isnan(value))
    return "NaN";
  if (std::isinf(value))
    return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

} // namespace

void prometheus_text::begin(std::string_view name, std::string_view help, std::string_view kind) {
  family_ = name;
  fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, kind);
}

void prometheus_text::line(std::string_view suffix, double value, labels with) {
  text_ += family_;
  text_ += suffix;
  auto separator = '{';
  for (const auto& [name, text] : with) {
    text_ += std::exchange(separator, ',');
    text_ += name;
    text_ += "=\"";
    put_escaped(text_, text);
    text_ += '"';
  }
  if (with.size() > 0)
    text_ += '}';
  text_ += ' ';
  text_ += number(value);
  text_ += '\n';
}

void prometheus_text::sample(double value, labels with) {
  line({}, value, with);
}

void prometheus_text::counter(std::string_view name, std::string_view help, double value) {
  counter(name, help);
  sample(value);
}

void prometheus_text::gauge(std::string_view name, std::string_view help, double value) {
  gauge(name, help);
  sample(value);
}

void prometheus_text::histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                                std::span<const std::uint64_t> counts, double sum) {
  begin(name, help, "histogram");
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    count += counts[i];
    line("_bucket", static_cast<double>(count), {{"le", i < bounds.size() ? number(bounds[i]) : "+Inf"}});
  }
  line("_sum", sum, {});
  line("_count", static_cast<double>(count), {});
}

} // namespace troupe::runtime
