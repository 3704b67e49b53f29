#include "run/control_commands.hpp"

#include <utility>

namespace troupe::tool {

expected<runtime::run_access> open_run(const run_choice& which) {
  TROUPE_TRY(auto here, runtime::find_run(which.run, which.storage));
  return runtime::run_access{std::move(here)};
}

} // namespace troupe::tool
