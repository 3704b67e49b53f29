#include "values.hpp"

namespace troupe::onnxruntime {

std::optional<dtype> dtype_from(element_type type) noexcept {
  switch (type) {
  case element_type::f32:
    return dtype::f32;
  case element_type::f64:
    return dtype::f64;
  case element_type::i8:
    return dtype::i8;
  case element_type::i16:
    return dtype::i16;
  case element_type::i32:
    return dtype::i32;
  case element_type::i64:
    return dtype::i64;
  case element_type::u8:
    return dtype::u8;
  case element_type::u16:
    return dtype::u16;
  case element_type::u32:
    return dtype::u32;
  case element_type::u64:
    return dtype::u64;
  case element_type::boolean:
    return dtype::boolean;
  case element_type::undefined:
  case element_type::text:
  case element_type::f16:
  case element_type::bf16:
    return std::nullopt;
  }
  return std::nullopt;
}

} // namespace troupe::onnxruntime
