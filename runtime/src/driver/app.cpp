#include <troupe/app.hpp>

#include "driver/replay.hpp"
#include "worker/life/process.hpp"

#include <troupe/runtime/program.hpp>

#include <algorithm>

namespace troupe {

void run_if_worker(const std::vector<function>& functions) {
  if (runtime::is_worker_process())
    runtime::run_worker_process(functions);
  runtime::run_if_replay(functions);
}

app::app(int argc, char** argv, std::vector<function> functions)
    : argc_(argc), argv_(argv), functions_(std::move(functions)) {
  for (auto i = functions_.begin(); i != functions_.end(); ++i)
    if (std::ranges::find(i + 1, functions_.end(), i->name, &function::name) != functions_.end())
      throw exception{errc::invalid_argument, "two training functions are named '" + i->name + "'"};
  for (const auto& each : functions_) {
    if (!each.body)
      throw exception{errc::invalid_argument, "the training function '" + each.name + "' has no body"};
    if (std::ranges::find(each.frameworks, nullptr) != each.frameworks.end())
      throw exception{errc::invalid_argument, "a framework of the training function '" + each.name + "' is null"};
  }
  run_if_worker(functions_);
}

app::app(int argc, char** argv, const worker_program& workers) : argc_(argc), argv_(argv) {
  if (workers.path.empty())
    throw exception{errc::invalid_argument, "worker_program.path is empty: name the program that the workers run"};
  auto own = std::filesystem::path{value_or_throw(runtime::own_program()).path};
  worker_path_ = own.parent_path() / workers.path;
}

namespace {

std::string names_of(const std::vector<function>& functions) {
  auto result = std::string{};
  for (const auto& each : functions)
    result += (result.empty() ? "'" : ", '") + each.name + "'";
  return result.empty() ? "none" : result;
}

} // namespace

function app::find_function(const std::string& name) const {
  if (!worker_path_.empty())
    return function{name, nullptr};
  auto found = std::ranges::find(functions_, name, &function::name);
  if (found == functions_.end())
    throw exception{errc::invalid_argument,
                    "the app has no training function '" + name + "'; it has " + names_of(functions_)};
  return *found;
}

} // namespace troupe
