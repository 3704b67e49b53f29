#pragma once

#include <span>

/// Functions of the gradient that `step.all_reduce` returns, which is the same on every worker; so are their results.
namespace troupe::training {

/// The Euclidean norm, added in double precision and in an order that depends on the length alone.
[[nodiscard]] double global_norm(std::span<const float> gradient) noexcept;

/// Whether no element is infinite or NaN.
[[nodiscard]] bool is_finite(std::span<const float> gradient) noexcept;

/// By how much to multiply a gradient so that its norm is at most `highest`: 1 if it is. Pascanu and others, "On the
/// difficulty of training recurrent neural networks", 2013; PyTorch's clip_grad_norm_.
///
///     auto mean = step.all_reduce();
///     auto rate = 0.1 * training::clip_factor(training::global_norm(mean), 1.0);
[[nodiscard]] double clip_factor(double norm, double highest) noexcept;

} // namespace troupe::training
