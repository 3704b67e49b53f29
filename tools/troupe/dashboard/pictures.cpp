#include "dashboard/pictures.hpp"

#include "checkpoint/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <limits>
#include <optional>
#include <string_view>

namespace troupe::tool {

using ordered = nlohmann::ordered_json;
using runtime::named_curve;

namespace {

struct bounds {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  void take(double x) {
    if (!std::isfinite(x))
      return;
    least = std::min(least, x);
    most = std::max(most, x);
  }

  [[nodiscard]] bool is_empty() const { return least > most; }
  /// From 0 to 1; a half where all is one.
  [[nodiscard]] double part(double x) const { return most > least ? (x - least) / (most - least) : 0.5; }
};

struct frame {
  bounds steps;
  bounds values;
};

frame frame_of(const named_curve& curve) {
  frame result;
  for (const auto& each : curve.points) {
    result.steps.take(each.step);
    result.values.take(each.value);
  }
  return result;
}

/// Characters of two by four dots.
class dots {
 public:
  dots(std::size_t width, std::size_t height) : width_(width), height_(height), cells_(width * height, 0) {}

  void set(std::size_t x, std::size_t y) {
    static constexpr std::array<std::array<std::uint8_t, 2>, 4> bits{
        {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
    if (x < 2 * width_ && y < 4 * height_)
      cells_[y / 4 * width_ + x / 2] |= bits[y % 4][x % 2];
  }

  [[nodiscard]] std::string row(std::size_t y) const {
    auto result = std::string{};
    for (std::size_t x = 0; x < width_; ++x) {
      // U+2800 and what follows, as UTF-8.
      const auto cell = cells_[y * width_ + x];
      result += '\xe2';
      result += static_cast<char>(0xa0 + (cell >> 6));
      result += static_cast<char>(0x80 + (cell & 0x3f));
    }
    return result;
  }

 private:
  std::size_t width_;
  std::size_t height_;
  std::vector<std::uint8_t> cells_;
};

/// Seconds since 1970 of "2026-11-26T00:30:12.649Z".
std::optional<double> seconds_of(const ordered& event) {
  const auto time = event.find("time");
  if (time == event.end() || !time->is_string())
    return std::nullopt;
  auto parts = std::tm{};
  const auto text = time->get<std::string>();
  const auto* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr)
    return std::nullopt;
  const auto fraction = *rest == '.' ? std::strtod(rest, nullptr) : 0.0;
  return static_cast<double>(::timegm(&parts)) + fraction;
}

std::string text_in(const ordered& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string{};
}

double number_in(const ordered& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() ? found->get<double>() : 0.0;
}

/// What is drawn of an event.
struct mark {
  double from = 0;
  double to = 0;
  std::string kind;
  std::string text;
};

/// Failures that are consequences of others are left out.
std::vector<mark> marks_of(const ordered& events) {
  std::vector<mark> result;
  std::optional<double> began;
  auto last = 0.0;
  const auto end_process = [&](double at) {
    if (began)
      result.push_back({*began, at, "run", {}});
    began.reset();
  };
  for (const auto& event : events) {
    const auto at = seconds_of(event);
    if (!at)
      continue;
    const auto kind = text_in(event, "event");
    if (kind == "started") {
      end_process(last);
      began = at;
    } else if (kind == "ended") {
      end_process(*at);
    } else if (kind == "pause") {
      result.push_back({*at - number_in(event, "seconds"), *at, kind, {}});
    } else if (kind == "checkpoint" || kind == "generation" ||
               (kind == "failure" && !(event.contains("consequence") && event["consequence"] == true))) {
      result.push_back({*at, *at, kind, text_in(event, "cause")});
    }
    last = *at;
  }
  end_process(last);
  return result;
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 5> lanes{{{"run", "runs"},
                                                                              {"pause", "pauses"},
                                                                              {"failure", "failures"},
                                                                              {"generation", "generations"},
                                                                              {"checkpoint", "checkpoints"}}};

bounds time_of(const std::vector<mark>& marks) {
  bounds result;
  for (const auto& each : marks) {
    result.take(each.from);
    result.take(each.to);
  }
  return result;
}

std::string escaped(std::string_view text) {
  auto result = std::string{};
  for (auto c : printable(text))
    if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '&')
      result += "&amp;";
    else if (c == '"')
      result += "&quot;";
    else
      result += c;
  return result;
}

constexpr double svg_width = 800;
constexpr double curve_height = 260;
constexpr double left_margin = 84;
constexpr double right_margin = 16;

double svg_x(double part) {
  return left_margin + part * (svg_width - left_margin - right_margin);
}

std::string svg_of(const named_curve& curve, double top) {
  const auto area = frame_of(curve);
  auto result =
      fmt::format("<text class='title' x='{}' y='{:.0f}'>{}</text>\n", left_margin, top + 18, escaped(curve.name));
  if (area.values.is_empty())
    return result + fmt::format("<text x='{}' y='{:.0f}'>no finite value</text>\n", left_margin, top + 60);
  constexpr auto head = 30.0;
  constexpr auto foot = 30.0;
  const auto y = [&](double part) { return top + head + (1 - part) * (curve_height - head - foot); };
  for (const auto part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const auto value = area.values.least + part * (area.values.most - area.values.least);
    const auto step = area.steps.least + part * (area.steps.most - area.steps.least);
    result += fmt::format("<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}'/><text class='end' x='{}' y='{:.1f}'>{}</text>"
                          "<text class='middle' x='{:.1f}' y='{:.1f}'>{}</text>\n",
                          left_margin, svg_width - right_margin, y(part), y(part), left_margin - 6, y(part) + 4,
                          short_number_text(value), svg_x(part), top + curve_height - 10,
                          short_number_text(std::round(step)));
  }
  auto points = std::string{};
  const auto end_line = [&] {
    if (!points.empty())
      result += fmt::format("<polyline points='{}'/>\n", points);
    points.clear();
  };
  for (const auto& each : curve.points) {
    if (!std::isfinite(each.value)) {
      end_line();
      continue;
    }
    points += fmt::format("{:.1f},{:.1f} ", svg_x(area.steps.part(each.step)), y(area.values.part(each.value)));
  }
  end_line();
  return result;
}

std::string svg_of(const std::vector<mark>& marks, double top) {
  constexpr auto lane_height = 24.0;
  const auto time = time_of(marks);
  auto result = std::string{};
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const auto y = top + lane_height * static_cast<double>(lane);
    result += fmt::format("<text x='0' y='{:.0f}'>{}</text><line x1='{}' x2='{}' y1='{:.0f}' y2='{:.0f}'/>\n", y + 16,
                          lanes[lane].second, left_margin, svg_width - right_margin, y + lane_height, y + lane_height);
    for (const auto& each : marks) {
      if (each.kind != lanes[lane].first)
        continue;
      const auto from = svg_x(time.part(each.from));
      result +=
          fmt::format("<rect class='{}' x='{:.1f}' y='{:.0f}' width='{:.1f}' height='14'><title>{}</title></rect>\n",
                      each.kind, from, y + 6, std::max(3.0, svg_x(time.part(each.to)) - from), escaped(each.text));
    }
  }
  return result;
}

} // namespace

std::vector<std::string> draw_curve(const named_curve& curve, std::size_t width, std::size_t height) {
  constexpr std::size_t label_width = 11;
  const auto area = frame_of(curve);
  std::vector<std::string> result{printable(curve.name)};
  if (area.values.is_empty()) {
    result.emplace_back("  no finite value");
    return result;
  }
  dots canvas{width, height};
  const auto columns = static_cast<double>(2 * width - 1);
  const auto rows = static_cast<double>(4 * height - 1);
  std::optional<std::pair<double, double>> before;
  for (const auto& each : curve.points) {
    if (!std::isfinite(each.value)) {
      before.reset();
      continue;
    }
    const auto now = std::pair{area.steps.part(each.step) * columns, (1 - area.values.part(each.value)) * rows};
    const auto from = before.value_or(now);
    const auto distance = std::max({std::fabs(now.first - from.first), std::fabs(now.second - from.second), 1.0});
    const auto count = static_cast<std::size_t>(std::ceil(distance));
    for (std::size_t i = 0; i <= count; ++i) {
      const auto part = static_cast<double>(i) / static_cast<double>(count);
      canvas.set(static_cast<std::size_t>(std::lround(from.first + (now.first - from.first) * part)),
                 static_cast<std::size_t>(std::lround(from.second + (now.second - from.second) * part)));
    }
    before = now;
  }
  for (std::size_t y = 0; y < height; ++y) {
    const auto label = y == 0            ? short_number_text(area.values.most)
                       : y == height - 1 ? short_number_text(area.values.least)
                                         : std::string{};
    result.push_back(fmt::format("{:>{}} │{}", label, label_width, canvas.row(y)));
  }
  const auto first = short_number_text(std::round(area.steps.least));
  const auto last = short_number_text(std::round(area.steps.most));
  const auto gap = width > first.size() + last.size() ? width - first.size() - last.size() : 1;
  result.push_back(fmt::format("{:>{}} └{}{}{}", "step", label_width, first, std::string(gap, ' '), last));
  return result;
}

std::vector<std::string> draw_timeline(const ordered& events, std::size_t width) {
  const auto marks = marks_of(events);
  const auto time = time_of(marks);
  if (time.is_empty() || width == 0)
    return {};
  std::vector<std::string> result;
  for (const auto& [kind, label] : lanes) {
    auto cells = std::vector<std::string_view>(width, " ");
    auto count = std::size_t{0};
    for (const auto& each : marks) {
      if (each.kind != kind)
        continue;
      ++count;
      const auto column = [&](double at) {
        return static_cast<std::size_t>(std::lround(time.part(at) * static_cast<double>(width - 1)));
      };
      for (auto i = column(each.from); i <= column(each.to); ++i)
        cells[i] = kind == "run"          ? "─"
                   : kind == "pause"      ? "█"
                   : kind == "failure"    ? "x"
                   : kind == "generation" ? "|"
                                          : "o";
    }
    if (count == 0)
      continue;
    auto row = std::string{};
    for (auto each : cells)
      row += each;
    result.push_back(fmt::format("{:>11} │{}", label, row));
  }
  const auto seconds = time.most - time.least;
  result.push_back(fmt::format("{:>11} └{:<{}}", "", fmt::format("{:.1f} s", seconds), width));
  for (const auto& each : marks)
    if (each.kind == "failure" && result.size() < 40)
      result.push_back(fmt::format("  x after {:.1f} s: {}", each.from - time.least, printable(each.text)));
  return result;
}

std::string to_svg(const std::string& title, const std::vector<named_curve>& curves, const ordered& events) {
  const auto marks = marks_of(events);
  constexpr auto head = 40.0;
  auto body = fmt::format("<text class='title' x='8' y='26'>{}</text>\n", escaped(title));
  auto top = head;
  for (const auto& each : curves) {
    body += svg_of(each, top);
    top += curve_height;
  }
  if (!marks.empty()) {
    body += svg_of(marks, top);
    top += 140;
  }
  return fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0:.0f} {1:.0f}' width='{0:.0f}' "
      "height='{1:.0f}' font-family='sans-serif' font-size='12'>\n"
      "<style>line{{stroke:#d0d7de}}text{{fill:#57606a}}.title{{fill:#1b1f24;font-weight:bold;font-size:15px}}"
      ".end{{text-anchor:end}}.middle{{text-anchor:middle}}polyline{{fill:none;stroke:#0969da;"
      "stroke-width:1.8}}.run{{fill:#54aeff}}.pause{{fill:#9a6700}}.failure{{fill:#cf222e}}"
      ".generation{{fill:#8250df}}.checkpoint{{fill:#1a7f37}}</style>\n"
      "<rect width='100%' height='100%' fill='#ffffff'/>\n{2}</svg>\n",
      svg_width, top + 10, body);
}

} // namespace troupe::tool
