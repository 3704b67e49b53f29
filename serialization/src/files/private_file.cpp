#include <troupe/serialization/files/private_file.hpp>

#include <fmt/format.h>
#include <sys/stat.h>

namespace troupe::serialization {

expected<void> check_private(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0)
    return fail(errc::not_authenticated, system_error(file.string()).message);
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return fail(errc::not_authenticated,
                fmt::format("{} may be used by other users: chmod 600 {}", file.string(), file.string()));
  return {};
}

} // namespace troupe::serialization
