#include <troupe/app.hpp>

#include "worker_process.hpp"

#include <algorithm>

namespace troupe {

void run_if_worker(const std::vector<named_function>& functions) {
  if (runtime::is_worker_process())
    runtime::run_worker_process(functions);
}

app::app(int argc, char** argv, std::vector<named_function> functions)
    : argc_(argc), argv_(argv), functions_(std::move(functions)) {
  for (auto i = functions_.begin(); i != functions_.end(); ++i)
    if (std::ranges::find(i + 1, functions_.end(), i->name, &named_function::name) != functions_.end())
      throw failure{errc::invalid_argument, "two training functions are named '" + i->name + "'"};
  for (const auto& each : functions_)
    if (std::ranges::find(each.backends, nullptr) != each.backends.end())
      throw failure{errc::invalid_argument, "a backend of the training function '" + each.name + "' is null"};
  run_if_worker(functions_);
}

bool app::has(const std::string& function) const noexcept {
  return std::ranges::find(functions_, function, &named_function::name) != functions_.end();
}

} // namespace troupe
