#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace troupe::runtime {

/// A count as a sample.
[[nodiscard]] inline double double_of(std::uint64_t count) {
  return static_cast<double>(count);
}

/// Writes Prometheus' text format, version 0.0.4: families of samples, each with one kind and one line of help. Pure.
class prometheus_text {
 public:
  static constexpr auto content_type = "text/plain; version=0.0.4; charset=utf-8";

  using labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  /// A number that only grows, but for restarts. By convention the name ends in `_total`.
  void counter(std::string_view name, std::string_view help) { begin(name, help, "counter"); }
  void gauge(std::string_view name, std::string_view help) { begin(name, help, "gauge"); }
  /// A sample of the family that was begun last.
  void sample(double value, labels with = {});

  /// A family with one sample.
  void counter(std::string_view name, std::string_view help, double value);
  void gauge(std::string_view name, std::string_view help, double value);
  /// `counts` has one bin more than `bounds`, which are in the unit of the name.
  void histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                 std::span<const std::uint64_t> counts, double sum);

  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  void begin(std::string_view name, std::string_view help, std::string_view kind);
  void line(std::string_view suffix, double value, labels with);

  std::string text_;
  std::string family_;
};

} // namespace troupe::runtime
