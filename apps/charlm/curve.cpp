#include <charlm/curve.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace charlm {

namespace {

/// A grid of dots; row 0 is the top.
class dot_grid {
 public:
  dot_grid(std::size_t columns, std::size_t rows) : columns_{columns}, rows_{rows}, dots_(columns * rows) {}

  [[nodiscard]] std::size_t columns() const { return columns_; }
  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] bool at(std::size_t column, std::size_t row) const { return dots_[row * columns_ + column]; }

  void set_between(std::size_t column, std::size_t row, std::size_t other_row) {
    for (auto r = std::min(row, other_row); r <= std::max(row, other_row); ++r)
      dots_[r * columns_ + column] = true;
  }

 private:
  std::size_t columns_;
  std::size_t rows_;
  std::vector<bool> dots_;
};

/// The least and the greatest value on an axis.
struct range {
  double low;
  double high;

  /// The position of `x` in the range, from 0 to 1; 0.5 in an empty range.
  [[nodiscard]] double fraction(double x) const { return high > low ? (x - low) / (high - low) : 0.5; }
};

struct plot_ranges {
  range steps;
  range losses;
};

plot_ranges ranges_of(std::span<const curve_point> points) {
  plot_ranges result{{static_cast<double>(points.front().step), static_cast<double>(points.back().step)},
                     {points.front().loss, points.front().loss}};
  for (const auto& point : points) {
    result.losses.low = std::min(result.losses.low, point.loss);
    result.losses.high = std::max(result.losses.high, point.loss);
  }
  return result;
}

std::size_t scaled(double fraction, std::size_t count) {
  return static_cast<std::size_t>(std::lround(fraction * static_cast<double>(count - 1)));
}

/// The mean loss of the points in each column; NaN in a column without points.
std::vector<double> column_means(std::span<const curve_point> points, range steps, std::size_t columns) {
  std::vector<double> sums(columns);
  std::vector<std::size_t> counts(columns);
  for (const auto& point : points) {
    const auto column = scaled(steps.fraction(static_cast<double>(point.step)), columns);
    sums[column] += point.loss;
    ++counts[column];
  }
  for (std::size_t i = 0; i < columns; ++i)
    sums[i] = counts[i] > 0 ? sums[i] / static_cast<double>(counts[i]) : std::nan("");
  return sums;
}

/// Interpolates linearly between the columns that have a mean.
void fill_gaps(std::vector<double>& means) {
  auto known = [](double x) { return !std::isnan(x); };
  auto left = std::find_if(means.begin(), means.end(), known);
  while (left != means.end()) {
    const auto right = std::find_if(left + 1, means.end(), known);
    if (right == means.end())
      return;
    for (auto x = left + 1; x < right; ++x)
      *x = *left + (*right - *left) * static_cast<double>(x - left) / static_cast<double>(right - left);
    left = right;
  }
}

void plot(dot_grid& grid, std::span<const double> means, range losses) {
  auto previous = grid.rows();
  for (std::size_t column = 0; column < grid.columns(); ++column) {
    if (std::isnan(means[column]))
      continue;
    const auto row = scaled(1.0 - losses.fraction(means[column]), grid.rows());
    // The stroke stops beside the previous column's dot, so that a steep line stays thin.
    const auto from = previous == grid.rows() || previous == row ? row : previous < row ? previous + 1 : previous - 1;
    grid.set_between(column, row, from);
    previous = row;
  }
}

/// A cell of 2 x 4 dots as the braille pattern U+2800 + dots, in UTF-8.
std::string braille(const dot_grid& grid, std::size_t cell_column, std::size_t cell_row) {
  constexpr std::array<std::array<unsigned, 2>, 4> bit{{{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
  unsigned dots = 0;
  for (std::size_t y = 0; y < 4; ++y)
    for (std::size_t x = 0; x < 2; ++x)
      if (grid.at(cell_column * 2 + x, cell_row * 4 + y))
        dots |= bit[y][x];
  if (dots == 0)
    return " ";
  return {'\xe2', static_cast<char>(0xa0U + dots / 64U), static_cast<char>(0x80U + dots % 64U)};
}

/// The parts of a plot in one character set.
struct drawing {
  std::size_t dots_per_column;
  std::size_t dots_per_row;
  std::string_view tick;
  std::string_view wall;
  std::string_view corner;
  std::string_view floor;
  std::string (*cell)(const dot_grid&, std::size_t column, std::size_t row);
};

drawing drawing_with(charset characters) {
  if (characters == charset::unicode)
    return {2, 4, "┤", "│", "└", "─", &braille};
  return {1, 1, "+", "|", "+", "-", [](const dot_grid& grid, std::size_t column, std::size_t row) {
            return std::string{grid.at(column, row) ? "*" : " "};
          }};
}

std::string loss_label(double x) {
  std::array<char, 32> text{};
  const auto* format = x != 0.0 && (std::fabs(x) >= 1e4 || std::fabs(x) < 1e-2) ? "%.2g" : "%.2f";
  std::snprintf(text.data(), text.size(), format, x);
  return text.data();
}

std::string padded_left(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

/// Labels of the top, the middle and the bottom row; empty for the other rows, and instead of a repeated label.
std::vector<std::string> loss_labels(range losses, std::size_t rows) {
  std::vector<std::string> result(rows);
  if (losses.low == losses.high) {
    result[rows / 2] = loss_label(losses.low);
    return result;
  }
  result.front() = loss_label(losses.high);
  result.back() = loss_label(losses.low);
  if (rows % 2 == 1)
    result[rows / 2] = loss_label((losses.low + losses.high) / 2.0);
  return result;
}

/// The steps' axis: the first step on the left, the last on the right, and the title between them if it fits.
std::string step_labels(range steps, std::size_t columns) {
  const auto first = std::to_string(static_cast<std::uint64_t>(steps.low));
  const auto last = steps.high > steps.low ? std::to_string(static_cast<std::uint64_t>(steps.high)) : std::string{};
  const std::string title = "step";
  if (first.size() + last.size() + title.size() + 2 > columns)
    return "step " + first + (last.empty() ? "" : " to " + last);
  auto line = first + std::string(columns - first.size() - last.size(), ' ') + last;
  const auto middle = std::max(first.size() + 1, (columns - title.size()) / 2);
  if (middle + title.size() < columns - last.size())
    line.replace(middle, title.size(), title);
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string assemble(const dot_grid& grid, const plot_ranges& ranges, const drawing& with) {
  const auto rows = grid.rows() / with.dots_per_row;
  const auto columns = grid.columns() / with.dots_per_column;
  const auto labels = loss_labels(ranges.losses, rows);
  const auto label_width =
      std::max_element(labels.begin(), labels.end(), [](auto& a, auto& b) { return a.size() < b.size(); })->size();
  std::string result;
  for (std::size_t row = 0; row < rows; ++row) {
    auto line = padded_left(labels[row], label_width) + " ";
    line += labels[row].empty() ? with.wall : with.tick;
    for (std::size_t column = 0; column < columns; ++column)
      line += with.cell(grid, column, row);
    result += without_trailing_blanks(line) + "\n";
  }
  result += std::string(label_width + 1, ' ').append(with.corner);
  for (std::size_t column = 0; column < columns; ++column)
    result += with.floor;
  return result + "\n" + std::string(label_width + 2, ' ') + step_labels(ranges.steps, columns) + "\n";
}

/// The columns that remain beside the losses' labels.
std::size_t plot_columns(range losses, std::size_t width) {
  const auto label = std::max({loss_label(losses.low).size(), loss_label(losses.high).size(),
                               loss_label((losses.low + losses.high) / 2.0).size()});
  return width - label - 2;
}

std::string_view variable(const char* name) {
  const auto* value = std::getenv(name);
  return value != nullptr ? std::string_view{value} : std::string_view{};
}

} // namespace

charset charset_of_locale(std::string_view lc_all, std::string_view lc_ctype, std::string_view lang) noexcept {
  const auto locale = !lc_all.empty() ? lc_all : !lc_ctype.empty() ? lc_ctype : lang;
  for (auto name : {"UTF-8", "utf-8", "UTF8", "utf8"})
    if (locale.find(name) != std::string_view::npos)
      return charset::unicode;
  return charset::ascii;
}

charset charset_of_environment() {
  return charset_of_locale(variable("LC_ALL"), variable("LC_CTYPE"), variable("LANG"));
}

std::string draw_curve(std::span<const curve_point> points, std::size_t width, std::size_t height, charset characters) {
  std::vector<curve_point> finite;
  std::copy_if(points.begin(), points.end(), std::back_inserter(finite),
               [](const curve_point& point) { return std::isfinite(point.loss); });
  if (finite.empty())
    return "no losses to draw\n";
  width = std::max<std::size_t>(width, 24);
  height = std::max<std::size_t>(height, 5);
  const auto ranges = ranges_of(finite);
  const auto with = drawing_with(characters);
  dot_grid grid{plot_columns(ranges.losses, width) * with.dots_per_column, (height - 2) * with.dots_per_row};
  auto means = column_means(finite, ranges.steps, grid.columns());
  fill_gaps(means);
  plot(grid, means, ranges.losses);
  return assemble(grid, ranges, with);
}

} // namespace charlm
