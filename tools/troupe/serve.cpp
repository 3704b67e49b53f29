#include "serve.hpp"

#include "checkpoint/commands.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <unistd.h>

namespace troupe::tool {

int execute_serve(char** argv) {
  auto code = std::error_code{};
  const auto path = std::filesystem::read_symlink("/proc/self/exe", code).parent_path() / "troupe-serve";
  auto name = path.string();
  argv[0] = name.data();
  ::execv(path.c_str(), argv);
  std::fprintf(stderr, "troupe: cannot start %s: %s\n", path.c_str(), std::strerror(errno));
  return exit_trouble;
}

} // namespace troupe::tool
