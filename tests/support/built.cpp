#include "built.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace troupe::testing {

namespace {

namespace fs = std::filesystem;

constexpr auto cache_name = "CMakeCache.txt";

/// The directory that a variable of the environment names; empty if it names none.
fs::path directory_in(const char* variable) {
  const auto* value = std::getenv(variable);
  return value == nullptr || *value == '\0' ? fs::path{} : fs::absolute(value);
}

fs::path build_directory() {
  if (auto given = directory_in("TROUPE_TEST_BUILD"); !given.empty())
    return given;
  const auto program = fs::read_symlink("/proc/self/exe");
  for (auto directory = program.parent_path(); directory != directory.root_path(); directory = directory.parent_path())
    if (fs::exists(directory / cache_name))
      return directory;
  throw std::runtime_error{program.string() + " is in no build directory: set TROUPE_TEST_BUILD to one"};
}

fs::path source_directory() {
  if (auto given = directory_in("TROUPE_TEST_SOURCES"); !given.empty())
    return given;
  constexpr auto key = std::string_view{"CMAKE_HOME_DIRECTORY:INTERNAL="};
  const auto cache = build_directory() / cache_name;
  auto in = std::ifstream{cache};
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key))
      return line.substr(key.size());
  throw std::runtime_error{cache.string() + " names no checkout: set TROUPE_TEST_SOURCES to it"};
}

/// `base / path`, which must exist.
std::string existing(const fs::path& base, std::string_view path, const std::string& hint) {
  const auto result = path.empty() ? base : base / path;
  if (!fs::exists(result))
    throw std::runtime_error{result.string() + " does not exist: " + hint};
  return result.string();
}

} // namespace

std::string built(std::string_view path) {
  if (const auto programs = directory_in("TROUPE_TEST_PROGRAMS"); !programs.empty())
    if (const auto result = programs / fs::path{path}.filename(); fs::exists(result))
      return result.string();
  return existing(build_directory(), path, "build it, or set TROUPE_TEST_BUILD or TROUPE_TEST_PROGRAMS");
}

std::string sources(std::string_view path) {
  return existing(source_directory(), path, "set TROUPE_TEST_SOURCES to the checkout");
}

} // namespace troupe::testing
