#include <troupe/app.hpp>

#include "worker/process.hpp"

#include <troupe/runtime/program.hpp>

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
      throw exception{errc::invalid_argument, "two training functions are named '" + i->name + "'"};
  for (const auto& each : functions_)
    if (std::ranges::find(each.frameworks, nullptr) != each.frameworks.end())
      throw exception{errc::invalid_argument, "a framework of the training function '" + each.name + "' is null"};
  run_if_worker(functions_);
}

app::app(int argc, char** argv, worker_program workers) : argc_(argc), argv_(argv) {
  if (workers.path.empty())
    throw exception{errc::invalid_argument, "worker_program.path is empty: name the program that the workers run"};
  auto own = std::filesystem::path{value_or_throw(runtime::own_program()).path};
  worker_path_ = own.parent_path() / workers.path;
}

bool app::has(const std::string& function) const noexcept {
  return !worker_path_.empty() || std::ranges::find(functions_, function, &named_function::name) != functions_.end();
}

} // namespace troupe
