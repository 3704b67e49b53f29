#pragma once

#include "scratch_runs.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

/// The arguments of `troupe submit` for a small charlm job; `more` takes precedence.
inline std::vector<std::string> submission(const scratch_runs& here, const std::string& name,
                                           const std::vector<std::string>& options, std::vector<std::string> more) {
  std::vector<std::string> words{"submit", "--name", name};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back("--");
  auto arguments = here.charlm({}, std::move(more));
  arguments.front() = "charlm";
  // Its runs are the node's, and named after the job.
  const auto storage = std::ranges::find(arguments, "--storage");
  arguments.erase(storage, storage + 2);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

} // namespace troupe::testing
