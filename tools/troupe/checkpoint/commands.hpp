#pragma once

#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

/// The subcommands of `troupe checkpoint`. Each function prints text or one JSON document to standard output and errors
/// to standard error, and returns the program's exit code.
namespace troupe::tool {

inline constexpr int exit_good = 0;
/// Damage or a difference was found.
inline constexpr int exit_found = 1;
/// The command failed: a wrong argument, nothing found, refused, no space.
inline constexpr int exit_trouble = 2;

/// The exit code for an error.
[[nodiscard]] int exit_code_of(errc code) noexcept;

enum class output_format { text, json };

struct list_arguments {
  std::filesystem::path path;
  output_format output = output_format::text;
};

/// Lists checkpoints after checking manifests and file sizes. `exit_found` if one is damaged.
[[nodiscard]] int list(const list_arguments& given);

struct show_arguments {
  std::filesystem::path path;
  std::optional<std::uint64_t> step;
  bool sha256 = false;
  output_format output = output_format::text;
};

/// Shows one checkpoint's manifest and, on request, its state's SHA-256.
[[nodiscard]] int show(const show_arguments& given);

struct verify_arguments {
  std::filesystem::path path;
  std::optional<std::uint64_t> step;
  output_format output = output_format::text;
};

/// Reads one checkpoint or all of them completely and reports damage. `exit_found` if there is any.
[[nodiscard]] int verify(const verify_arguments& given);

struct diff_arguments {
  std::filesystem::path left;
  std::filesystem::path right;
  /// Whether differences outside the state count.
  bool all = false;
  output_format output = output_format::text;
};

/// Compares two checkpoints. `exit_found` if their states differ.
[[nodiscard]] int diff(const diff_arguments& given);

struct export_arguments {
  std::filesystem::path from;
  std::filesystem::path to;
  std::optional<std::uint64_t> step;
  std::string tensor;
  bool force = false;
  output_format output = output_format::text;
};

/// Writes all tensors of a checkpoint to a .safetensors file, or one to a .npy file.
[[nodiscard]] int export_file(const export_arguments& given);

struct import_arguments {
  std::filesystem::path from;
  std::filesystem::path to;
  std::uint64_t step = 0;
  std::string tensor;
  bool changed = false;
  output_format output = output_format::text;
};

/// Makes a checkpoint from a file.
[[nodiscard]] int import_file(const import_arguments& given);

struct remove_arguments {
  std::filesystem::path path;
  std::optional<std::uint64_t> step;
  std::optional<std::uint64_t> keep;
  bool force = false;
  output_format output = output_format::text;
};

/// Removes one checkpoint, or the oldest ones.
[[nodiscard]] int remove(const remove_arguments& given);

} // namespace troupe::tool
