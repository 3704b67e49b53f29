#include <charlm/curve.hpp>

#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <sstream>
#include <vector>

namespace {

using charlm::charset;
using charlm::charset_of_locale;
using charlm::curve_point;
using charlm::draw_curve;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);)
    result.push_back(line);
  return result;
}

/// The width on the terminal; every character here is one column wide.
std::size_t columns(const std::string& line) {
  std::size_t result = 0;
  for (char c : line)
    result += (static_cast<unsigned char>(c) & 0xc0U) != 0x80U ? 1 : 0;
  return result;
}

} // namespace

TEST_CASE("a falling line runs from the upper left to the lower right") {
  const std::vector<curve_point> points{{0, 3.0}, {17, 1.0}};
  CHECK(draw_curve(points, 24, 7, charset::ascii) == "3.00 +***\n"
                                                     "     |   ****\n"
                                                     "2.00 +       ****\n"
                                                     "     |           ****\n"
                                                     "1.00 +               ***\n"
                                                     "     +------------------\n"
                                                     "      0      step     17\n");
}

TEST_CASE("braille characters have two by four dots") {
  const std::vector<curve_point> points{{0, 3.0}, {17, 1.0}};
  CHECK(draw_curve(points, 24, 7, charset::unicode) == "3.00 ┤⠑⠢⢄⡀\n"
                                                       "     │   ⠈⠑⠢⣀\n"
                                                       "2.00 ┤       ⠉⠒⠤⣀\n"
                                                       "     │           ⠉⠢⢄⡀\n"
                                                       "1.00 ┤              ⠈⠑⠢⢄\n"
                                                       "     └──────────────────\n"
                                                       "      0      step     17\n");
}

TEST_CASE("a steep fall is drawn without gaps") {
  const std::vector<curve_point> points{{0, 9.0}, {1, 1.0}, {17, 1.0}};
  CHECK(draw_curve(points, 24, 6, charset::ascii) == "9.00 +*\n"
                                                     "     | *\n"
                                                     "     | *\n"
                                                     "1.00 + *****************\n"
                                                     "     +------------------\n"
                                                     "      0      step     17\n");
}

TEST_CASE("points that share a column are averaged") {
  std::vector<curve_point> points;
  for (std::uint64_t step = 0; step < 18'000; ++step)
    points.push_back({step, step % 2 == 0 ? 1.0 : 3.0});
  const auto lines = lines_of(draw_curve(points, 24, 7, charset::ascii));
  CHECK(lines[2] == "2.00 +" + std::string(18, '*'));
}

TEST_CASE("a curve has the requested number of lines, and none is wider than requested") {
  std::vector<curve_point> points;
  for (std::uint64_t step = 1; step <= 3000; ++step)
    points.push_back({step, 1.3 + 4.2 * std::exp(-static_cast<double>(step) / 300.0)});
  for (auto characters : {charset::unicode, charset::ascii})
    for (std::size_t width : {24, 40, 79, 200})
      for (std::size_t height : {5, 6, 15, 40}) {
        const auto lines = lines_of(draw_curve(points, width, height, characters));
        CHECK(lines.size() == height);
        for (const auto& line : lines)
          CHECK(columns(line) <= width);
        CHECK(columns(lines[height - 2]) == width);
      }
}

TEST_CASE("a size that is too small is raised") {
  const std::vector<curve_point> points{{1, 2.0}, {2, 1.0}};
  CHECK(draw_curve(points, 0, 0, charset::ascii) == draw_curve(points, 24, 5, charset::ascii));
}

TEST_CASE("one point and equal losses are drawn in the middle") {
  const std::vector<curve_point> one{{5, 2.5}};
  const auto lines = lines_of(draw_curve(one, 24, 7, charset::ascii));
  CHECK(lines[2].find("2.50 +") == 0);
  CHECK(lines[2].find('*') != std::string::npos);
  const std::vector<curve_point> flat{{0, 0.0}, {17, 0.0}};
  CHECK(lines_of(draw_curve(flat, 24, 7, charset::ascii))[2] == "0.00 +" + std::string(18, '*'));
}

TEST_CASE("losses that are not finite are skipped") {
  const std::vector<curve_point> good{{0, 3.0}, {17, 1.0}};
  const std::vector<curve_point> mixed{
      {0, 3.0}, {5, std::nan("")}, {9, std::numeric_limits<double>::infinity()}, {17, 1.0}};
  CHECK(draw_curve(mixed, 40, 10, charset::unicode) == draw_curve(good, 40, 10, charset::unicode));
  CHECK(draw_curve({}, 40, 10, charset::ascii) == "no losses to draw\n");
  CHECK(draw_curve(std::vector<curve_point>{{1, std::nan("")}}, 40, 10, charset::ascii) == "no losses to draw\n");
}

TEST_CASE("without a UTF-8 locale the drawing is plain ASCII") {
  CHECK(charset_of_locale("", "", "C.UTF-8") == charset::unicode);
  CHECK(charset_of_locale("", "de_DE.utf8", "C") == charset::unicode);
  CHECK(charset_of_locale("C", "", "en_US.UTF-8") == charset::ascii);
  CHECK(charset_of_locale("", "", "") == charset::ascii);
  CHECK(charset_of_locale("", "POSIX", "en_US.UTF-8") == charset::ascii);
}
