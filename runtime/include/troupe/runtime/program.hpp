#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::runtime {

using collectives::unique_fd;

/// Identifies a program's build: hosts with equal build ids run the same code.
struct program_identity {
  /// Where it was opened; for messages. It may differ between hosts.
  std::string path;

  /// "xxh3:" and the XXH3 of the code and data that it loads: debug information, comments and the linker's build id do
  /// not change it. For what is no program of this machine, "sha256:" and the first 40 digits of the file's SHA-256.
  std::string build_id;

  bool operator==(const program_identity&) const = default;
};

/// Reads the identity of an open file without changing its offset. `path` is for messages.
[[nodiscard]] expected<program_identity> identify_program(int fd, std::string path);

/// The identity of the running program, even if its file has been replaced since it started.
[[nodiscard]] expected<program_identity> own_program();

/// A program held open for a whole run. Executing `fd()` runs the file that was opened, even if the path has been
/// rebuilt since. (Linkers and package managers replace files. A file overwritten in place is not protected.)
class program_file {
 public:
  /// Fails with `errc::not_found` for an absent file and `errc::invalid_argument` for one that cannot be executed.
  [[nodiscard]] static expected<program_file> open(std::string path);

  /// The running program itself.
  [[nodiscard]] static expected<program_file> own();

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] const program_identity& identity() const noexcept { return identity_; }

 private:
  program_file(unique_fd fd, program_identity identity) : fd_(std::move(fd)), identity_(std::move(identity)) {}

  unique_fd fd_;
  program_identity identity_;
};

/// An executable or shared library mapped into this process.
struct loaded_object {
  /// The dynamic linker's name for it; for the program itself, the path of its file.
  std::string name;

  /// In hexadecimal; empty for an object linked without one.
  std::string build_id;

  bool operator==(const loaded_object&) const = default;
};

/// The objects loaded now, in load order, starting with the program. Callable from any thread.
[[nodiscard]] std::vector<loaded_object> loaded_objects();

/// Fails with `errc::program_mismatch` for an ELF file of another processor than this program's, and names both. What
/// is no ELF file passes. `path` is for messages.
[[nodiscard]] expected<void> check_processor(int fd, std::string_view path);

/// The shared libraries that the dynamic linker would not find if the program started on this host with these
/// variables ("NAME=VALUE"). Runs the linker alone, for ten seconds at most. Empty for a program that is linked
/// statically, and for one that the linker cannot examine.
[[nodiscard]] std::vector<std::string> missing_libraries(int fd, const std::vector<std::string>& environment);

/// The library that the dynamic linker did not find, if a program's last lines of output report one.
[[nodiscard]] std::optional<std::string> missing_library(std::span<const std::string> last_lines);

} // namespace troupe::runtime
