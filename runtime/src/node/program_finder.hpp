#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/program.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <variant>

namespace troupe::runtime {

/// The programs of this directory, by their file names, wherever the driver has its own.
struct program_directory {
  std::filesystem::path path;
};

/// A directory that bounds what drivers can run: only these programs, which others cannot change. Fails with
/// `errc::invalid_argument` for one that another user could write to, and for one with a caf-node, which could be
/// started with another directory.
[[nodiscard]] expected<program_directory> bounding_directory(std::filesystem::path path);

/// Any program, at the driver's path. For a node that only its own user on its own host can command, who can start
/// programs anyway.
struct drivers_path {};

/// For a node inside the driver: this program. If it is the driver's own, the running one is used, even if its file has
/// been replaced.
struct one_program {
  std::string path;
};

/// Which programs a node starts.
using program_source = std::variant<program_directory, drivers_path, one_program>;

/// Finds the programs that a node is asked to start; others are not started. Fails with `errc::program_mismatch` for a
/// program for another processor, and for one whose shared libraries this host lacks where it is started with these
/// variables besides the node's. Thread-safe.
class program_finder {
 public:
  explicit program_finder(program_source source) : source_(std::move(source)) {}

  /// The program that a driver names so, in this build. Fails with `errc::program_mismatch` for another build, and with
  /// what `program_file::open` fails with.
  [[nodiscard]] expected<program_file> find(const std::string& named, const std::string& build_id,
                                            const std::map<std::string, std::string>& variables = {}) const;

 private:
  program_source source_;
};

} // namespace troupe::runtime
