#include <troupe/actors/run_name.hpp>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <system_error>
#include <unistd.h>

namespace troupe::actors {

namespace fs = std::filesystem;

namespace {

/// With the time behind it, a name stays within what a run's may have.
constexpr std::size_t longest_program = 100;

error cannot(const std::string& what, const fs::path& path, const std::error_code& code) {
  return {errc::io_error, fmt::format("cannot {} {}: {}", what, path.string(), code.message())};
}

} // namespace

std::string fresh_run_name(const std::string& program, std::chrono::system_clock::time_point now) {
  auto name = program.substr(0, longest_program);
  const auto is_allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; };
  std::ranges::replace_if(
      name, [&](unsigned char c) { return !is_allowed(c); }, '_');
  if (name.empty() || name.front() == '.')
    name.insert(0, "run");
  return fmt::format("{}-{:%Y%m%d-%H%M%S}", name, fmt::localtime(std::chrono::system_clock::to_time_t(now)));
}

std::string reserve_run(const fs::path& storage_path, const std::string& program,
                        std::chrono::system_clock::time_point now) {
  const auto name = fresh_run_name(program, now);
  auto code = std::error_code{};
  fs::create_directories(storage_path, code);
  auto result = name;
  for (auto number = 2; !code && !fs::create_directory(storage_path / result, code); ++number)
    if (!code)
      result = fmt::format("{}-{}", name, number);
  return result;
}

expected<fs::path> move_run_aside(const fs::path& root) {
  auto code = std::error_code{};
  for (auto number = 1;; ++number) {
    auto target = fs::path{fmt::format("{}.{}", root.string(), number)};
    if (fs::symlink_status(target, code).type() != fs::file_type::not_found)
      continue;
    fs::rename(root, target, code);
    if (code)
      return fail(cannot("rename", fmt::format("{} to {}", root.string(), target.string()), code));
    return target;
  }
}

expected<void> point_latest_to(const fs::path& root) {
  const auto link = root.parent_path() / latest_run;
  auto code = std::error_code{};
  const auto type = fs::symlink_status(link, code).type();
  if (type != fs::file_type::symlink && type != fs::file_type::not_found)
    return {};
  // Replaced at once: there is no moment without a link.
  const auto next = root.parent_path() / fmt::format(".{}-{}", latest_run, ::getpid());
  fs::remove(next, code);
  fs::create_symlink(root.filename(), next, code);
  if (!code)
    fs::rename(next, link, code);
  if (code) {
    auto ignored = std::error_code{};
    fs::remove(next, ignored);
    return fail(cannot("make the link", link, code));
  }
  return {};
}

} // namespace troupe::actors
