#include "sanitizer_reports.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace troupe::testing {

sanitizer_reports::sanitizer_reports() {
  auto pattern = (std::filesystem::temp_directory_path() / "troupe-reports-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    throw std::runtime_error{"cannot make a directory for sanitizer reports"};
  directory_ = std::move(pattern);
  const auto* before = std::getenv("TSAN_OPTIONS");
  auto options = std::string{before == nullptr ? "" : before} + " log_path=" + directory_ + "/report";
  ::setenv("TSAN_OPTIONS", options.c_str(), 1);
}

sanitizer_reports::~sanitizer_reports() {
  auto ignored = std::error_code{};
  std::filesystem::remove_all(directory_, ignored);
}

std::string sanitizer_reports::text() const {
  auto result = std::ostringstream{};
  for (const auto& entry : std::filesystem::directory_iterator{directory_})
    if (entry.file_size() > 0)
      result << std::ifstream{entry.path()}.rdbuf();
  return result.str();
}

} // namespace troupe::testing
