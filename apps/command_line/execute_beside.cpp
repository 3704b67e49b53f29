#include "execute_beside.hpp"

#include <string>
#include <system_error>
#include <unistd.h>

namespace troupe::apps {

std::filesystem::path program_beside(std::string_view name) {
  auto code = std::error_code{};
  return std::filesystem::read_symlink("/proc/self/exe", code).parent_path() / name;
}

error execute(const std::filesystem::path& program, char** argv) {
  auto name = program.string();
  auto* const own_name = argv[0];
  argv[0] = name.data();
  ::execv(program.c_str(), argv);
  auto reason = system_error("cannot start " + name);
  argv[0] = own_name;
  return reason;
}

} // namespace troupe::apps
