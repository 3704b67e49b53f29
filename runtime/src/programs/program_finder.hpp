#pragma once

#include "programs/program_cache.hpp"

#include <troupe/error.hpp>
#include <troupe/runtime/program.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace troupe::runtime {

/// The programs of this directory, by their file names, wherever the driver has its own.
struct program_directory {
  std::filesystem::path path;
};

/// Any program, at the driver's path. For a node that only its own user on its own host can command, who can start
/// programs anyway.
struct drivers_path {};

/// Only those that drivers have sent.
struct sent_programs {};

/// For a node inside the driver: this program. If it is the driver's own, the running one is used, even if its file has
/// been replaced.
struct one_program {
  std::string path;
};

/// Which programs a node starts, apart from those in its cache.
using program_source = std::variant<program_directory, drivers_path, sent_programs, one_program>;

/// Finds the programs that a node is asked to start: what its source has, else what drivers have sent. Other programs
/// are not started. All fail with `errc::program_mismatch` for a program for another processor, and for one whose
/// shared libraries this host lacks where it is started with these variables besides the node's. Thread-safe.
class program_finder {
 public:
  /// `cache` is null for a node that takes no programs.
  explicit program_finder(program_source source, std::shared_ptr<program_cache> cache = nullptr)
      : source_(std::move(source)), cache_(std::move(cache)) {}

  /// Null if the node takes no programs.
  [[nodiscard]] const std::shared_ptr<program_cache>& cache() const noexcept { return cache_; }

  /// The program that a driver names so, in this build. Fails with `errc::program_mismatch` for another build, and with
  /// what `program_file::open` fails with.
  [[nodiscard]] expected<program_file> find(const std::string& named, const std::string& build_id,
                                            const std::map<std::string, std::string>& variables = {}) const;

  /// The source's program of this name, in whatever build.
  [[nodiscard]] expected<program_file> find_any_build(const std::string& named,
                                                      const std::map<std::string, std::string>& variables = {}) const;

  /// Checks a program that was found elsewhere. Passes an error on.
  [[nodiscard]] static expected<program_file> check(expected<program_file> program,
                                                    const std::map<std::string, std::string>& variables);

 private:
  program_source source_;
  std::shared_ptr<program_cache> cache_;
};

} // namespace troupe::runtime
