#pragma once

#include "scratch.hpp"

#include <troupe/dtype.hpp>

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// Readers of interchange files that follow the formats' specifications and share no code with those under test. They
/// trust their input.
namespace troupe::testing {

struct plain_tensor {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::string bytes;
};

inline std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t result = 0;
  for (auto i = bytes.size(); i-- > 0;)
    result = result * 256 + static_cast<unsigned char>(bytes[i]);
  return result;
}

/// The format's name of the dtype.
inline std::string safetensors_dtype_name(dtype type) {
  switch (type) {
  case dtype::f32:
    return "F32";
  case dtype::f64:
    return "F64";
  case dtype::f16:
    return "F16";
  case dtype::bf16:
    return "BF16";
  case dtype::i32:
    return "I32";
  case dtype::i64:
    return "I64";
  case dtype::u8:
    return "U8";
  case dtype::i8:
    return "I8";
  case dtype::i16:
    return "I16";
  case dtype::u16:
    return "U16";
  case dtype::u32:
    return "U32";
  case dtype::u64:
    return "U64";
  case dtype::boolean:
    return "BOOL";
  }
  return "";
}

/// Parses JSON as it occurs in safetensors headers.
class plain_json {
 public:
  explicit plain_json(std::string_view text) : text_(text) {}

  bool take(char c) {
    while (at_ < text_.size() && std::strchr(" \n\t\r", text_[at_]))
      ++at_;
    if (at_ >= text_.size() || text_[at_] != c)
      return false;
    ++at_;
    return true;
  }
  void want(char c) {
    if (!take(c))
      throw std::runtime_error{std::string{"no "} + c + " at " + std::to_string(at_)};
  }
  std::string string() {
    want('"');
    std::string result;
    for (; text_.at(at_) != '"'; ++at_) {
      if (text_[at_] != '\\') {
        result += text_[at_];
        continue;
      }
      switch (text_.at(++at_)) {
      case 'n':
        result += '\n';
        break;
      case 'u':
        // Control characters only.
        result += static_cast<char>(std::stoi(std::string{text_.substr(at_ + 1, 4)}, nullptr, 16));
        at_ += 4;
        break;
      default:
        result += text_[at_];
      }
    }
    ++at_;
    return result;
  }
  std::vector<std::uint64_t> numbers() {
    std::vector<std::uint64_t> result;
    want('[');
    while (!take(']')) {
      result.push_back(0);
      for (; text_.at(at_) >= '0' && text_[at_] <= '9'; ++at_)
        result.back() = result.back() * 10 + static_cast<std::uint64_t>(text_[at_] - '0');
      take(',');
    }
    return result;
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

inline std::map<std::string, plain_tensor> read_safetensors_plainly(std::string_view file) {
  auto length = little_endian(file.substr(0, 8));
  auto data = file.substr(8 + length);
  auto json = plain_json{file.substr(8, length)};
  std::map<std::string, plain_tensor> result;
  json.want('{');
  while (!json.take('}')) {
    auto name = json.string();
    json.want(':');
    json.want('{');
    auto tensor = plain_tensor{};
    while (!json.take('}')) {
      auto field = json.string();
      json.want(':');
      if (name == "__metadata__") {
        json.string();
      } else if (field == "dtype") {
        tensor.dtype = json.string();
      } else if (field == "shape") {
        tensor.shape = json.numbers();
      } else if (field == "data_offsets") {
        auto offsets = json.numbers();
        tensor.bytes = data.substr(offsets.at(0), offsets.at(1) - offsets.at(0));
      }
      json.take(',');
    }
    if (name != "__metadata__")
      result[name] = tensor;
    json.take(',');
  }
  return result;
}

/// Version 1.0 in C order.
inline plain_tensor read_npy_plainly(std::string_view file) {
  auto length = little_endian(file.substr(8, 2));
  auto header = file.substr(10, length);
  if (file.substr(0, 8) != std::string_view{"\x93NUMPY\x01\x00", 8} || (10 + length) % 64 != 0 || header.back() != '\n')
    throw std::runtime_error{"no NPY file of version 1.0"};
  auto after = [&](std::string_view key) { return header.substr(header.find(key) + key.size()); };
  if (!after("'fortran_order': ").starts_with("False"))
    throw std::runtime_error{"not in the order of C"};
  auto result = plain_tensor{};
  auto code = after("'descr': '");
  result.dtype = code.substr(0, code.find('\''));
  auto shape = std::string{after("'shape': (")};
  for (shape.resize(shape.find(')')); !shape.empty();) {
    auto end = std::size_t{0};
    result.shape.push_back(std::stoull(shape, &end));
    shape.erase(0, std::min(shape.find_first_of("0123456789", end), shape.size()));
  }
  result.bytes = file.substr(10 + length);
  return result;
}

} // namespace troupe::testing

namespace troupe::serialization {

/// A `sample_state` whose bools are valid.
class booleans_that_are : public sample_state {
 public:
  explicit booleans_that_are(std::vector<tensor_spec> specs, std::uint64_t seed = 1)
      : sample_state(std::move(specs), seed) {
    for (const auto& view : views())
      if (view.spec.type == dtype::boolean)
        for (std::uint64_t i = 0; i < view.spec.size_bytes(); ++i)
          view.data[i] &= std::byte{1};
  }
};

} // namespace troupe::serialization
