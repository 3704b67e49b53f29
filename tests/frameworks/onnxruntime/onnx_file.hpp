#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Writes small ONNX models: the parts of onnx.proto that they need, in protobuf's encoding.
namespace troupe::testing::onnx {

/// The fields of a message.
class message {
 public:
  message& add(int field, std::int64_t number) {
    put(static_cast<std::uint64_t>(field) << 3);
    put(static_cast<std::uint64_t>(number));
    return *this;
  }
  message& add(int field, std::string_view bytes) {
    put(static_cast<std::uint64_t>(field) << 3 | 2);
    put(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  message& add(int field, const message& inner) { return add(field, std::string_view{inner.bytes_}); }

  [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }

 private:
  void put(std::uint64_t number) {
    for (; number >= 0x80; number >>= 7)
      bytes_ += static_cast<char>((number & 0x7f) | 0x80);
    bytes_ += static_cast<char>(number);
  }

  std::string bytes_;
};

/// `TensorProto.DataType`.
inline constexpr int f32 = 1;
inline constexpr int i64 = 7;
inline constexpr int f64 = 11;

/// A dimension of this length; free where it is -1.
using shape = std::vector<std::int64_t>;

/// Collects a model's graph.
class model {
 public:
  model& input(std::string_view name, int type, const shape& dimensions) {
    graph_.add(11, value(name, type, dimensions));
    return *this;
  }
  model& output(std::string_view name, int type, const shape& dimensions) {
    graph_.add(12, value(name, type, dimensions));
    return *this;
  }
  model& constant(std::string_view name, const shape& dimensions, const std::vector<float>& numbers) {
    message tensor;
    for (auto each : dimensions)
      tensor.add(1, each);
    tensor.add(2, std::int64_t{f32}).add(8, name);
    tensor.add(9, std::string_view{reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)});
    graph_.add(5, tensor);
    return *this;
  }
  model& node(std::string_view operation, const std::vector<std::string>& inputs, std::string_view result) {
    message made;
    for (const auto& each : inputs)
      made.add(1, each);
    graph_.add(1, made.add(2, result).add(4, operation));
    return *this;
  }

  /// The file.
  [[nodiscard]] std::string bytes() const {
    auto graph = graph_;
    graph.add(2, std::string_view{"test"});
    message operators;
    operators.add(2, std::int64_t{13});
    return message{}.add(1, std::int64_t{8}).add(7, graph).add(8, operators).bytes();
  }

 private:
  static message value(std::string_view name, int type, const shape& dimensions) {
    message sizes;
    for (auto each : dimensions)
      sizes.add(1, each < 0 ? message{}.add(2, std::string_view{"n"}) : message{}.add(1, each));
    message tensor;
    tensor.add(1, std::int64_t{type}).add(2, sizes);
    return message{}.add(1, name).add(2, message{}.add(1, tensor));
  }

  message graph_;
};

/// scores = x * weights + bias, probability = softmax(scores): three numbers a row, and two of each output.
inline std::string linear_model() {
  return model{}
      .input("x", f32, {-1, 3})
      .constant("weights", {3, 2}, {1, -1, 2, 0.5F, 0, 3})
      .constant("bias", {2}, {0.25F, -0.5F})
      .node("MatMul", {"x", "weights"}, "product")
      .node("Add", {"product", "bias"}, "scores")
      .node("Softmax", {"scores"}, "probability")
      .output("scores", f32, {-1, 2})
      .output("probability", f32, {-1, 2})
      .bytes();
}

/// sum = a + b, of whole numbers.
inline std::string sum_model() {
  return model{}
      .input("a", i64, {-1})
      .input("b", i64, {-1})
      .node("Add", {"a", "b"}, "sum")
      .output("sum", i64, {-1})
      .bytes();
}

/// total: the weighted pixels of one image of 2 by 2 in one channel.
inline std::string image_model(std::int64_t rows) {
  return model{}
      .input("image", f32, {rows, 1, 2, 2})
      .constant("weights", {4, 1}, {1, 10, 100, 1000})
      .node("Flatten", {"image"}, "flat")
      .node("MatMul", {"flat", "weights"}, "total")
      .output("total", f32, {rows, 1})
      .bytes();
}

} // namespace troupe::testing::onnx
