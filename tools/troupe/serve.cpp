#include "serve.hpp"

#include "checkpoint/commands.hpp"

#include <cstdio>
#include <execute_beside.hpp>

namespace troupe::tool {

int execute_serve(char** argv) {
  const auto reason = apps::execute(apps::program_beside("troupe-serve"), argv);
  std::fprintf(stderr, "troupe: %s\n", reason.message.c_str());
  return exit_trouble;
}

} // namespace troupe::tool
