#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/files/existing_file.hpp>
#include <troupe/serialization/interchange/safetensors.hpp>
#include <troupe/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

/// Files in NumPy's NPY format (numpy.lib.format): one array each.
namespace troupe::serialization {

/// The longest header that is read; NumPy's own have a hundred or two hundred bytes.
inline constexpr std::uint64_t max_npy_header_bytes = 65'535;

enum class byte_order { little, big };

/// Which dimension varies fastest: the last one, as in C, or the first one, as in Fortran.
enum class element_order { c, fortran };

/// The content of an NPY file's header.
struct npy_layout {
  dtype type = dtype::f32;
  std::vector<std::uint64_t> shape;
  byte_order bytes = byte_order::little;
  element_order elements = element_order::c;
  /// Where the elements begin in the file.
  std::uint64_t offset_bytes = 0;

  bool operator==(const npy_layout&) const = default;
};

/// Parses the header of an untrusted file of `file_bytes` bytes (versions 1.0, 2.0 and 3.0). `beginning` holds the
/// whole header, or the whole file if that is shorter. Fails with `errc::damaged` if the header violates the format or
/// does not match the file's size, with `errc::unsupported_version`, and with `errc::invalid_argument`, naming it, for
/// a dtype that Troupe does not support, such as objects and records. Pure.
[[nodiscard]] expected<npy_layout> parse_npy_header(std::span<const std::byte> beginning, std::uint64_t file_bytes);

/// An array in C order and the byte order of this machine.
struct npy_array {
  /// Without a name.
  tensor_spec spec;
  std::vector<std::byte> bytes;
};

/// Reads a whole file; swaps bytes and transposes where necessary. Fails as `parse_npy_header` does, naming the file,
/// with `errc::damaged` for a bool that is neither 0 nor 1, `errc::not_found` or `errc::io_error`.
[[nodiscard]] expected<npy_array> read_npy(const std::filesystem::path& path);

/// The beginning of an NPY file (version 1.0) for a tensor in C order, up to its elements. Fails with
/// `errc::invalid_argument` for bf16, which NumPy does not support, and for more than 64 dimensions. Pure.
[[nodiscard]] expected<std::string> make_npy_head(const tensor_spec& spec);

/// Writes an NPY file atomically, and returns once it is on the device. Fails as `make_npy_head` and `source` do, with
/// `errc::already_exists`, `errc::io_error`, or `errc::invalid_argument` if `source` passes more or fewer bytes than
/// the tensor has.
[[nodiscard]] expected<void> write_npy(const std::filesystem::path& path, const tensor_spec& spec,
                                       const std::function<expected<void>(const byte_sink&)>& source,
                                       existing_file existing);

/// The same for a tensor in memory.
[[nodiscard]] expected<void> write_npy(const std::filesystem::path& path, const tensor_view& tensor,
                                       existing_file existing);

} // namespace troupe::serialization
