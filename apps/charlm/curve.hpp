#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace charlm {

struct curve_point {
  std::uint64_t step = 0;
  double loss = 0.0;
};

/// The characters a terminal can show.
enum class charset : std::uint8_t {
  /// Braille patterns and box drawing, in UTF-8.
  unicode,
  ascii,
};

/// The character set of a locale, from its variables by precedence: `LC_ALL`, `LC_CTYPE`, `LANG`. An empty one counts
/// as unset.
[[nodiscard]] charset charset_of_locale(std::string_view lc_all, std::string_view lc_ctype,
                                        std::string_view lang) noexcept;

/// `charset_of_locale` of this process's environment.
[[nodiscard]] charset charset_of_environment();

/// Draws losses over steps as `height` lines of at most `width` columns, including axes and labels; each line ends with
/// a newline. Points must be ordered by step. Points in the same column are averaged; those with a non-finite loss are
/// skipped. The size is raised to at least 24 x 5. Without points, the result is one line that says so.
[[nodiscard]] std::string draw_curve(std::span<const curve_point> points, std::size_t width, std::size_t height,
                                     charset characters);

} // namespace charlm
