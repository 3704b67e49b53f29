#include <troupe/inference/optional_library.hpp>

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <fmt/format.h>
#include <functional>
#include <system_error>
#include <vector>

namespace troupe::inference {

namespace fs = std::filesystem;

namespace {

/// The file in this directory, under its own name or with a version behind it.
fs::path file_in(const fs::path& directory, const std::string& name) {
  std::error_code why;
  if (fs::is_regular_file(directory / name, why))
    return directory / name;
  for (const auto& each : fs::directory_iterator{directory, why})
    if (each.path().filename().string().starts_with(name + '.') && each.is_regular_file(why))
      return each.path();
  return {};
}

/// Adds DIRECTORY/python3.11/PACKAGES/lightgbm/lib for each Python version, the newest first.
void add_python(std::vector<fs::path>& places, const fs::path& directory, const char* packages,
                const fs::path& inside) {
  std::vector<fs::path> found;
  std::error_code why;
  for (const auto& each : fs::directory_iterator{directory, why})
    if (each.path().filename().string().starts_with("python3"))
      found.push_back(each.path() / packages / inside);
  std::ranges::sort(found, std::greater{});
  places.insert(places.end(), found.begin(), found.end());
}

std::vector<fs::path> usual_places(const fs::path& inside) {
  std::vector<fs::path> result{"/usr/local/lib", "/usr/lib", "/usr/lib/x86_64-linux-gnu"};
  if (const auto* environment = std::getenv("VIRTUAL_ENV"))
    add_python(result, fs::path{environment} / "lib", "site-packages", inside);
  if (const auto* home = std::getenv("HOME"))
    add_python(result, fs::path{home} / ".local" / "lib", "site-packages", inside);
  add_python(result, "/usr/local/lib", "dist-packages", inside);
  add_python(result, "/usr/local/lib", "site-packages", inside);
  add_python(result, "/usr/lib", "dist-packages", inside);
  return result;
}

} // namespace

expected<fs::path> find_library(const optional_library& which, const fs::path& asked) {
  const auto* named = std::getenv(which.variable.c_str());
  auto wanted = !asked.empty() ? asked : fs::path{named == nullptr ? "" : named};
  std::error_code why;
  if (!wanted.empty()) {
    if (fs::is_regular_file(wanted, why))
      return wanted;
    return fail(errc::unsatisfiable,
                fmt::format("{} is not a file: it should be {}'s library, {}{}", wanted.string(), which.name,
                            which.file, asked.empty() ? fmt::format(" (named by {})", which.variable) : ""));
  }
  auto places = usual_places(which.directory);
  for (const auto& each : places)
    if (auto found = file_in(each, which.file); !found.empty())
      return found;
  return fail(errc::unsatisfiable, fmt::format("{}'s library {} is in none of {} usual places: install it (pip install "
                                               "{}), or name the file in {}",
                                               which.name, which.file, places.size(), which.package, which.variable));
}

expected<void*> open_library(const optional_library& which, const fs::path& path) {
  if (auto* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL))
    return handle;
  return fail(errc::unsatisfiable, fmt::format("{}'s library cannot be opened: {}", which.name, ::dlerror()));
}

void* library_symbols::find(const char* name) {
  auto* result = ::dlsym(handle_, name);
  if (result == nullptr)
    missing_ = name;
  return result;
}

expected<void> library_symbols::check(const fs::path& path, const std::string& wanted) const {
  if (missing_ != nullptr)
    return fail(errc::unsatisfiable,
                fmt::format("{} has no function {}: {} is required", path.string(), missing_, wanted));
  return {};
}

} // namespace troupe::inference
