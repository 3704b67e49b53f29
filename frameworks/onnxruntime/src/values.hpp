#pragma once

#include "library.hpp"

#include <troupe/dtype.hpp>

#include <optional>

/// Numbers in ONNX Runtime's types.
namespace troupe::onnxruntime {

/// The corresponding type; empty for texts, complex numbers, and floats of 16 bits or fewer.
[[nodiscard]] std::optional<dtype> dtype_from(element_type type) noexcept;

} // namespace troupe::onnxruntime
