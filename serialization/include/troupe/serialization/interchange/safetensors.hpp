#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/files/existing_file.hpp>
#include <troupe/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Files in the safetensors format (https://github.com/huggingface/safetensors): the header's length as eight
/// little-endian bytes, the header in JSON, and the tensors' bytes without gaps.
namespace troupe::serialization {

class file;

/// The longest header that is read or written: the limit of the format's reference implementation.
inline constexpr std::uint64_t max_safetensors_header_bytes = 100'000'000;

/// The most dimensions of an imported tensor.
inline constexpr std::size_t max_imported_dimensions = 64;

/// A tensor of a safetensors file.
struct safetensors_entry {
  tensor_spec spec;
  /// Where its bytes begin in the file.
  std::uint64_t offset_bytes = 0;

  bool operator==(const safetensors_entry&) const = default;
};

/// The content of a safetensors file's header.
struct safetensors_index {
  /// In the order of their bytes.
  std::vector<safetensors_entry> tensors;
  /// `__metadata__`
  std::map<std::string, std::string> metadata;

  bool operator==(const safetensors_index&) const = default;
};

/// Parses an untrusted header that is followed by `data_bytes` bytes of tensors. Fails with `errc::damaged` if it
/// violates the format (invalid JSON, duplicate names, unknown or missing fields, offsets that overlap, leave a gap or
/// do not match shape and dtype), and with `errc::invalid_argument`, naming the tensor, for a dtype that Troupe does
/// not support. Pure.
[[nodiscard]] expected<safetensors_index> parse_safetensors_header(std::string_view header, std::uint64_t data_bytes);

/// A safetensors file, opened for reading. A value; several threads may read at once.
class safetensors_file {
 public:
  /// Reads and checks the header. Fails with `errc::not_found`, `errc::io_error`, and as `parse_safetensors_header`
  /// does, naming the file.
  [[nodiscard]] static expected<safetensors_file> open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const std::vector<safetensors_entry>& tensors() const noexcept { return index_.tensors; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return index_.metadata; }

  /// The index of a tensor by name.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;

  /// Copies the tensor's bytes from `offset_bytes` on to `target`. Fails with `errc::invalid_argument` if the range
  /// exceeds the tensor, `errc::damaged` for a bool that is neither 0 nor 1, or `errc::io_error`.
  [[nodiscard]] expected<void> read(std::size_t index, std::uint64_t offset_bytes, std::span<std::byte> target) const;

 private:
  safetensors_file(std::filesystem::path path, std::shared_ptr<const file> source, safetensors_index index);

  std::filesystem::path path_;
  std::shared_ptr<const file> source_;
  safetensors_index index_;
};

/// Receives consecutive pieces of bytes.
using byte_sink = std::function<void(std::span<const std::byte>)>;

/// Passes all bytes of the tensor with this index to a sink, in order, in any number of pieces.
using tensor_source = std::function<expected<void>(std::size_t index, const byte_sink& sink)>;

/// The beginning of a safetensors file, up to the tensors' bytes.
struct safetensors_head {
  /// The header's length and the header, padded with spaces to a multiple of 8 bytes.
  std::string text;
  /// The indices of the tensors in the order of their bytes: large elements first, so that all are aligned, then by
  /// name.
  std::vector<std::size_t> order;
};

/// Makes the beginning of a file; deterministic. Fails with `errc::invalid_argument` for names that the format cannot
/// hold (duplicates, `__metadata__`, invalid UTF-8) or too many tensors. Pure.
[[nodiscard]] expected<safetensors_head> make_safetensors_head(std::span<const tensor_spec> tensors,
                                                               const std::map<std::string, std::string>& metadata);

/// Writes a safetensors file atomically, and returns once it is on the device; needs no memory for tensors. Fails as
/// `make_safetensors_head` and `source` do, with `errc::already_exists`, `errc::io_error`, or `errc::invalid_argument`
/// if `source` passes more or fewer bytes than the tensor has.
[[nodiscard]] expected<void> write_safetensors(const std::filesystem::path& path, std::span<const tensor_spec> tensors,
                                               const std::map<std::string, std::string>& metadata,
                                               const tensor_source& source, existing_file existing);

/// The same for tensors in memory.
[[nodiscard]] expected<void> write_safetensors(const std::filesystem::path& path, std::span<const tensor_view> tensors,
                                               const std::map<std::string, std::string>& metadata,
                                               existing_file existing);

} // namespace troupe::serialization
