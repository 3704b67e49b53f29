#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <cstddef>
#include <vector>

namespace troupe::onnxruntime {

/// The tensor whose bytes are the ONNX file.
inline constexpr const char* model_tensor_name = "onnx/model";

/// The ONNX file in a checkpoint. Fails with `errc::not_found` for any other checkpoint, and as reading does.
[[nodiscard]] expected<std::vector<std::byte>> read_stored_model(const serialization::checkpoint& source);

} // namespace troupe::onnxruntime
