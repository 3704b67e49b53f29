#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <string>

namespace troupe::inference {

/// A shared library that is opened at run time, because Debian need not have a package of it: programs build, start and
/// do everything else without it.
struct optional_library {
  /// For messages: "LightGBM".
  std::string name;
  /// The file's name, which a version may follow: "lib_lightgbm.so".
  std::string file;
  /// The Python package that brings it: "lightgbm".
  std::string package;
  /// Its directory, from that of Python's packages: "lightgbm/lib".
  std::filesystem::path directory;
  /// The environment variable that names the file: "TROUPE_LIGHTGBM".
  std::string variable;
};

/// The file to open: `asked` if it is not empty, otherwise that of the environment variable, the system's, or that of
/// the Python package in `$VIRTUAL_ENV`, in the user's or the system's packages. Fails with `errc::unsatisfiable`,
/// saying how to install it.
[[nodiscard]] expected<std::filesystem::path> find_library(const optional_library& which,
                                                           const std::filesystem::path& asked = {});

/// Opens it for the life of the process, because its threads may still be running at the end. The handle is `dlopen`'s.
/// Fails with `errc::unsatisfiable`.
[[nodiscard]] expected<void*> open_library(const optional_library& which, const std::filesystem::path& path);

/// The functions of an opened library.
class library_symbols {
 public:
  /// `handle` is `open_library`'s.
  explicit library_symbols(void* handle) noexcept : handle_(handle) {}

  /// Sets `target` to the function of this name; to null if the library lacks it.
  template <class Function>
  void load(Function*& target, const char* name) {
    target = reinterpret_cast<Function*>(find(name));
  }

  /// Fails with `errc::unsatisfiable`, naming it, if a function was missing. `wanted`: the version that has them all.
  [[nodiscard]] expected<void> check(const std::filesystem::path& path, const std::string& wanted) const;

 private:
  void* find(const char* name);

  void* handle_;
  const char* missing_ = nullptr;
};

} // namespace troupe::inference
