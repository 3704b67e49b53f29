#include <troupe/serialization/files/file_system.hpp>
#include <troupe/serialization/interchange/safetensors.hpp>

#include <troupe/serialization/files/digest.hpp>

#include "files/file_place.hpp"
#include "files/new_file.hpp"
#include "vocabulary/booleans.hpp"
#include "vocabulary/quote_for_log.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

expected<std::uint64_t> read_header_length(const file& source, std::uint64_t file_bytes) {
  auto refuse = [&](const std::string& why) {
    return fail(errc::damaged, source.path().string() + " is no safetensors file: " + why);
  };
  if (file_bytes < 8)
    return refuse("it has " + std::to_string(file_bytes) + " bytes, and eight say how long the header is");
  auto bytes = std::array<std::byte, 8>{};
  if (auto read = source.read_at(0, bytes); !read)
    return fail(std::move(read.error()));
  auto result = std::uint64_t{0};
  for (std::size_t i = bytes.size(); i-- > 0;)
    result = result << 8 | static_cast<std::uint64_t>(bytes[i]);
  if (result > max_safetensors_header_bytes)
    return refuse("its header would have " + std::to_string(result) + " bytes, more than the format's " +
                  std::to_string(max_safetensors_header_bytes));
  if (result > file_bytes - 8)
    return refuse("its header would have " + std::to_string(result) + " bytes, and the file has " +
                  std::to_string(file_bytes) + ": it is cut short");
  return result;
}

expected<void> write_tensor(new_file& target, const tensor_spec& spec, std::size_t index, const tensor_source& source) {
  auto size = spec.size_bytes();
  auto taken = std::uint64_t{0};
  auto written = expected<void>{};
  auto read = source(index, [&](std::span<const std::byte> bytes) {
    taken += bytes.size();
    if (written && taken <= size)
      written = target.append(bytes);
  });
  if (!read)
    return read;
  if (written && taken != size)
    return fail(errc::invalid_argument, "tensor " + quote_for_log(spec.name) + " has " + std::to_string(size) +
                                            " bytes, and its source gave " + std::to_string(taken));
  return written;
}

} // namespace

safetensors_file::safetensors_file(fs::path path, std::shared_ptr<const file> source, safetensors_index index)
    : path_(std::move(path)), source_(std::move(source)), index_(std::move(index)) {}

expected<safetensors_file> safetensors_file::open(const fs::path& path) {
  auto source = local_files().open(path);
  if (!source)
    return fail(std::move(source.error()));
  auto size = (*source)->size_bytes();
  if (!size)
    return fail(std::move(size.error()));
  auto length = read_header_length(**source, *size);
  if (!length)
    return fail(std::move(length.error()));
  auto header = std::string(*length, '\0');
  if (auto read = (*source)->read_at(8, std::as_writable_bytes(std::span{header})); !read)
    return fail(std::move(read.error()));
  auto index = parse_safetensors_header(header, *size - 8 - *length);
  if (!index)
    return fail(of_file(path, std::move(index.error())));
  return safetensors_file{path, std::shared_ptr<const file>{std::move(*source)}, std::move(*index)};
}

std::optional<std::size_t> safetensors_file::find(std::string_view name) const {
  auto found = std::ranges::find_if(tensors(), [&](const safetensors_entry& x) { return x.spec.name == name; });
  return found == tensors().end() ? std::nullopt : std::optional{static_cast<std::size_t>(found - tensors().begin())};
}

expected<void> safetensors_file::read(std::size_t index, std::uint64_t offset_bytes,
                                      std::span<std::byte> target) const {
  if (index >= tensors().size())
    return fail(errc::invalid_argument, path_.string() + " holds " + std::to_string(tensors().size()) +
                                            " tensors, none at index " + std::to_string(index));
  const auto& entry = tensors()[index];
  auto size = entry.spec.size_bytes();
  if (offset_bytes > size || target.size() > size - offset_bytes)
    return fail(errc::invalid_argument, "tensor " + quote_for_log(entry.spec.name) + " of " + path_.string() + " has " +
                                            std::to_string(size) + " bytes, and " + std::to_string(target.size()) +
                                            " are wanted from byte " + std::to_string(offset_bytes) + " on");
  if (auto read = source_->read_at(entry.offset_bytes + offset_bytes, target); !read)
    return read;
  if (auto bad = find_no_boolean(entry.spec.type, target))
    return fail(errc::damaged, path_.string() + ": tensor " + quote_for_log(entry.spec.name) +
                                   " is bool, and its element " + std::to_string(offset_bytes + *bad) +
                                   " is neither 0 nor 1");
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
  auto target = new_file::create(path, size, existing);
  if (!target)
    return fail(std::move(target.error()));
  if (auto written = target->append(bytes_of(head->text)); !written)
    return written;
  for (auto i : head->order)
    if (auto written = write_tensor(*target, tensors[i], i, source); !written)
      return written;
  return target->commit();
}

expected<void> write_safetensors(const fs::path& path, std::span<const tensor_view> tensors,
                                 const std::map<std::string, std::string>& metadata, existing_file existing) {
  auto specs = std::vector<tensor_spec>{};
  for (const auto& tensor : tensors)
    specs.push_back(tensor.spec);
  auto source = [&](std::size_t index, const byte_sink& sink) -> expected<void> {
    sink({tensors[index].data, specs[index].size_bytes()});
    return {};
  };
  return write_safetensors(path, specs, metadata, source, existing);
}

} // namespace troupe::serialization
