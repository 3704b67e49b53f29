#include <troupe/serving/model_path.hpp>

#include <troupe/serialization/checkpoint/directory.hpp>

#include <fmt/format.h>
#include <system_error>

namespace troupe::serving {

namespace fs = std::filesystem;

expected<fs::path> followed_directory(const fs::path& path, absent_run absent) {
  auto code = std::error_code{};
  if (!fs::exists(path, code)) {
    if (absent == absent_run::wait)
      return path / "checkpoints";
    return fail(
        errc::not_found,
        fmt::format("{} does not exist: name a checkpoint, or a run's directory such as runs/latest", path.string()));
  }
  auto real = fs::canonical(path, code);
  if (code)
    return fail(errc::io_error, fmt::format("{}: {}", path.string(), code.message()));
  if (serialization::parse_checkpoint_name(real.filename().string()))
    return fs::path{};
  if (real.filename() == "checkpoints")
    return real;
  if (fs::is_directory(real / "checkpoints", code) || absent == absent_run::wait)
    return real / "checkpoints";
  // A checkpoint whose directory has another name; opening it says what is wrong with any other.
  return fs::path{};
}

expected<std::optional<fs::path>> newest_checkpoint(const fs::path& path, absent_run absent) {
  TROUPE_TRY(const auto directory, followed_directory(path, absent));
  if (directory.empty())
    return std::optional{path};
  TROUPE_TRY(const auto all, serialization::list_checkpoints(directory));
  return all.empty() ? std::nullopt : std::optional{all.back().path};
}

} // namespace troupe::serving
