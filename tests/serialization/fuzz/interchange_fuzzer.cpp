// Runs the readers of interchange files on libFuzzer's inputs. Accepted input must satisfy the readers' guarantees: it
// lies inside the file, is consistent, and is read the same when written again.
#include <troupe/serialization/interchange/npy.hpp>
#include <troupe/serialization/interchange/safetensors.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

using namespace troupe;
using namespace troupe::serialization;

namespace {

void require(bool condition, const char* what) {
  if (condition)
    return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

void check_error(const error& reason) {
  require(reason.code != errc::none && !reason.message.empty(), "an error has a code and a message");
  require(reason.message.size() < 1000, "no message is longer than a few lines");
  require(std::ranges::none_of(reason.message, [](char c) { return c == '\x1b' || c == '\0'; }),
          "no control character of a file stands in a message");
}

void read_safetensors(std::string_view header, std::uint64_t data_bytes) {
  auto index = parse_safetensors_header(header, data_bytes);
  if (!index)
    return check_error(index.error());
  auto end = std::uint64_t{8} + header.size();
  auto specs = std::vector<tensor_spec>{};
  for (const auto& entry : index->tensors) {
    require(entry.offset_bytes == end, "tensors lie one after the other");
    require(entry.spec.shape.size() <= max_imported_dimensions, "dimensions are limited");
    end += entry.spec.size_bytes();
    specs.push_back(entry.spec);
  }
  require(end == 8 + header.size() + data_bytes, "tensors cover the file");
  auto head = make_safetensors_head(specs, index->metadata);
  require(head.has_value(), "what was read can be written");
  auto again = parse_safetensors_header(std::string_view{head->text}.substr(8), data_bytes);
  require(again && again->metadata == index->metadata, "what was written can be read");
  for (std::size_t i = 0; i < specs.size(); ++i)
    require(again->tensors[i].spec == specs[head->order[i]], "what was written is read as it was");
}

void read_npy_file(std::string_view file) {
  auto layout = parse_npy_header(std::as_bytes(std::span{file}), file.size());
  if (!layout)
    return check_error(layout.error());
  auto spec = tensor_spec{"", layout->type, layout->shape};
  require(layout->offset_bytes + spec.size_bytes() == file.size(), "the elements fill the file");
  auto head = make_npy_head(spec);
  require(head.has_value(), "what was read can be written");
  auto again = parse_npy_header(std::as_bytes(std::span{*head}), head->size() + spec.size_bytes());
  require(again && again->type == layout->type && again->shape == layout->shape, "what was written can be read");
}

} // namespace

/// The first byte selects an NPY file, or a safetensors header with a number of data bytes after it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  auto text = std::string_view{reinterpret_cast<const char*>(data) + 1, size - 1};
  if (data[0] == 'n')
    read_npy_file(text);
  else
    read_safetensors(text, data[0]);
  return 0;
}
