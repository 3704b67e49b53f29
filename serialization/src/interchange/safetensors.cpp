#include <troupe/serialization/files/file_system.hpp>
#include <troupe/serialization/interchange/safetensors.hpp>

#include <troupe/serialization/files/digest.hpp>

#include "files/file_place.hpp"
#include "files/new_file.hpp"
#include "files/sized_file.hpp"
#include "vocabulary/booleans.hpp"
#include "vocabulary/quote_for_log.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

expected<std::uint64_t> read_header_length(const file& source, std::uint64_t file_bytes) {
  auto refuse = [&](std::string_view why) {
    return fail(errc::damaged, fmt::format("{} is not a safetensors file: {}", source.path().string(), why));
  };
  if (file_bytes < 8)
    return refuse(fmt::format("it has {} bytes, fewer than the 8 of the header's length", file_bytes));
  auto bytes = std::array<std::byte, 8>{};
  TROUPE_TRY(source.read_at(0, bytes));
  auto result = std::uint64_t{0};
  for (std::size_t i = bytes.size(); i-- > 0;)
    result = result << 8 | static_cast<std::uint64_t>(bytes[i]);
  if (result > max_safetensors_header_bytes)
    return refuse(fmt::format("its header would have {} bytes, more than the format's limit of {}", result,
                              max_safetensors_header_bytes));
  if (result > file_bytes - 8)
    return refuse(
        fmt::format("its header would have {} bytes, and the file has {}: it is truncated", result, file_bytes));
  return result;
}

} // namespace

safetensors_file::safetensors_file(fs::path path, std::shared_ptr<const file> source, safetensors_index index)
    : path_(std::move(path)), source_(std::move(source)), index_(std::move(index)) {}

expected<safetensors_file> safetensors_file::open(const fs::path& path) {
  TROUPE_TRY(auto opened, open_sized(path));
  auto& [source, size] = opened;
  TROUPE_TRY(auto length, read_header_length(*source, size));
  auto header = std::string(length, '\0');
  TROUPE_TRY(source->read_at(8, std::as_writable_bytes(std::span{header})));
  auto index = parse_safetensors_header(header, size - 8 - length);
  if (!index)
    return fail(of_file(path, std::move(index.error())));
  return safetensors_file{path, std::shared_ptr<const file>{std::move(source)}, std::move(*index)};
}

std::optional<std::size_t> safetensors_file::find(std::string_view name) const {
  auto found = std::ranges::find_if(tensors(), [&](const safetensors_entry& x) { return x.spec.name == name; });
  return found == tensors().end() ? std::nullopt : std::optional{static_cast<std::size_t>(found - tensors().begin())};
}

expected<void> safetensors_file::read(std::size_t index, std::uint64_t offset_bytes,
                                      std::span<std::byte> target) const {
  if (index >= tensors().size())
    return fail(errc::invalid_argument,
                fmt::format("{} holds {} tensors, none at index {}", path_.string(), tensors().size(), index));
  const auto& entry = tensors()[index];
  auto size = entry.spec.size_bytes();
  if (offset_bytes > size || target.size() > size - offset_bytes)
    return fail(errc::invalid_argument,
                fmt::format("tensor {} of {} has {} bytes; cannot read {} from byte {} on",
                            quote_for_log(entry.spec.name), path_.string(), size, target.size(), offset_bytes));
  TROUPE_TRY(source_->read_at(entry.offset_bytes + offset_bytes, target));
  if (auto bad = find_invalid_boolean(entry.spec.type, target))
    return fail(errc::damaged, fmt::format("{}: tensor {} is bool, and its element {} is neither 0 nor 1",
                                           path_.string(), quote_for_log(entry.spec.name), offset_bytes + *bad));
  return {};
}

expected<void> write_safetensors(const fs::path& path, std::span<const tensor_spec> tensors,
                                 const std::map<std::string, std::string>& metadata, const tensor_source& source,
                                 existing_file existing) {
  auto head = make_safetensors_head(tensors, metadata);
  if (!head)
    return fail(of_file(path, std::move(head.error())));
  auto size = std::uint64_t{head->text.size()};
  for (const auto& spec : tensors)
    size += spec.size_bytes();
  TROUPE_TRY(auto target, new_file::create(path, size, existing));
  TROUPE_TRY(target.append(bytes_of(head->text)));
  for (auto i : head->order)
    if (auto written = append_tensor(target, tensors[i], [&](const byte_sink& sink) { return source(i, sink); });
        !written)
      return written;
  return target.commit();
}

expected<void> write_safetensors(const fs::path& path, std::span<const tensor_view> tensors,
                                 const std::map<std::string, std::string>& metadata, existing_file existing) {
  auto specs = specs_of(tensors);
  auto source = [&](std::size_t index, const byte_sink& sink) -> expected<void> {
    sink({tensors[index].data, specs[index].size_bytes()});
    return {};
  };
  return write_safetensors(path, specs, metadata, source, existing);
}

} // namespace troupe::serialization
