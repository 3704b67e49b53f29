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

/// What the locale's variables say, by their precedence: `LC_ALL`, then `LC_CTYPE`, then `LANG`; an empty one counts as
/// unset.
[[nodiscard]] charset charset_of_locale(std::string_view lc_all, std::string_view lc_ctype,
                                        std::string_view lang) noexcept;

/// `charset_of_locale` of this process's environment.
[[nodiscard]] charset charset_of_environment();

/// Draws losses over steps as `height` lines of at most `width` columns, axes and labels included, each ended by a
/// newline. Points are in the order of their steps; those that share a column are averaged, those with a loss that is
/// not finite are left out. Sizes are raised to at least 24 x 5. Without any point the answer is one line that says so.
[[nodiscard]] std::string draw_curve(std::span<const curve_point> points, std::size_t width, std::size_t height,
                                     charset characters);

} // namespace charlm
