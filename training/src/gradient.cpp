#include <troupe/training/gradient.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace troupe::training {

namespace {

/// Sums that the compiler may keep in vectors: the order of additions does not depend on their width.
constexpr std::size_t lanes = 16;

} // namespace

double global_norm(std::span<const float> gradient) noexcept {
  std::array<double, lanes> sums{};
  std::size_t i = 0;
  for (; i + lanes <= gradient.size(); i += lanes)
    for (std::size_t lane = 0; lane < lanes; ++lane)
      sums[lane] += static_cast<double>(gradient[i + lane]) * static_cast<double>(gradient[i + lane]);
  for (std::size_t lane = 0; i < gradient.size(); ++i, ++lane)
    sums[lane] += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

bool is_finite(std::span<const float> gradient) noexcept {
  constexpr std::uint32_t exponent = 0x7f800000u;
  std::uint32_t found = 0;
  for (const auto each : gradient)
    found |= (std::bit_cast<std::uint32_t>(each) & exponent) == exponent ? 1u : 0u;
  return found == 0;
}

double clip_factor(double norm, double highest) noexcept {
  return std::min(1.0, highest / (norm + 1e-6));
}

} // namespace troupe::training
