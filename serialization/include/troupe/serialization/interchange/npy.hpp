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

/// No longer header is read; those that NumPy writes have a hundred bytes or two.
inline constexpr std::uint64_t max_npy_header_bytes = 65'535;

enum class byte_order { little, big };

/// Which dimension is the fastest: the last one, as in C, or the first one, as in Fortran.
enum class element_order { c, fortran };

/// What the header of an NPY file says.
struct npy_layout {
  dtype type = dtype::f32;
  std::vector<std::uint64_t> shape;
  byte_order bytes = byte_order::little;
  element_order elements = element_order::c;
  /// Where the elements begin in the file.
  std::uint64_t offset_bytes = 0;

  bool operator==(const npy_layout&) const = default;
};

/// Reads the header at the beginning of a file of `file_bytes` bytes (versions 1.0, 2.0 and 3.0) and trusts nothing in
/// it; `beginning` holds the whole header, or the whole file if that is shorter. Fails with `errc::damaged` if it is
/// not as the format says or the file has another size than it tells, with `errc::unsupported_version`, and with
/// `errc::invalid_argument`, naming it, for a dtype that is not one of Troupe's, objects and records among them. Pure.
[[nodiscard]] expected<npy_layout> parse_npy_header(std::span<const std::byte> beginning, std::uint64_t file_bytes);

/// An array, in the order of C and the byte order of this machine.
struct npy_array {
  /// Without a name.
  tensor_spec spec;
  std::vector<std::byte> bytes;
};

/// Reads a whole file; swaps and transposes where it must. Fails as `parse_npy_header` does, naming the file, with
/// `errc::damaged` for a bool that is neither 0 nor 1, `errc::not_found` or `errc::io_error`.
[[nodiscard]] expected<npy_array> read_npy(const std::filesystem::path& path);

/// The beginning of the file (version 1.0) of a tensor in the order of C, up to its elements. Fails with
/// `errc::invalid_argument` for bf16, which NumPy does not have, and for more than 64 dimensions. Pure.
[[nodiscard]] expected<std::string> make_npy_head(const tensor_spec& spec);

/// Writes an NPY file, whole or not at all, and returns once it is on the device. Fails as `make_npy_head` and `source`
/// do, with `errc::already_exists`, `errc::io_error`, or `errc::invalid_argument` if `source` hands over more or fewer
/// bytes than the tensor has.
[[nodiscard]] expected<void> write_npy(const std::filesystem::path& path, const tensor_spec& spec,
                                       const std::function<expected<void>(const byte_sink&)>& source,
                                       existing_file existing);

/// The same for a tensor in memory.
[[nodiscard]] expected<void> write_npy(const std::filesystem::path& path, const tensor_view& tensor,
                                       existing_file existing);

} // namespace troupe::serialization
