#pragma once

#include <built.hpp>
#include <processes.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <utility>

namespace troupe::testing {

/// Runs of torch_run in a temporary directory.
struct torch_runs {
  scratch_directory scratch;
  std::string program = built("tests/bin/torch_run");
  /// Added to the environment of all runs.
  std::map<std::string, std::string> variables = {};

  struct outcome {
    exit_status status;
    nlohmann::json result;
    std::string err;
  };

  /// `wanted` is torch_run's configuration without storage and name.
  [[nodiscard]] outcome run(const std::string& name, nlohmann::json wanted,
                            std::map<std::string, std::string> environment = {}) {
    wanted["storage"] = scratch.path().string();
    wanted["name"] = name;
    environment.emplace("TROUPE_KEYS", (scratch.path() / "keys").string());
    environment.insert(variables.begin(), variables.end());
    auto process = child_process{{{program, wanted.dump()}, std::move(environment)},
                                 scratch.path() / ("output-" + std::to_string(++started_))};
    auto status = process.wait();
    auto text = read_file(scratch.path() / name / "result.json");
    return {status, nlohmann::json::parse(text, nullptr, false), process.err()};
  }

  /// The state's digest and the last metrics of a run that must complete.
  [[nodiscard]] std::pair<std::string, std::string> trained(const std::string& name, nlohmann::json wanted) {
    auto kills = wanted.contains("options") && wanted["options"].contains("kill_at");
    auto [status, result, err] = run(name, std::move(wanted));
    INFO(name << ": " << err);
    REQUIRE(status == exit_status{0, {}});
    CHECK(result["failures"].size() == (kills ? 1 : 0));
    last = result;
    last_err = err;
    // JSON keeps all bits of a double.
    return {result["state_sha256"].get<std::string>(),
            result["metrics"]["loss"].dump() + " " + result["metrics"]["drawn"].dump()};
  }

  nlohmann::json last;
  std::string last_err;

 private:
  int started_ = 0;
};

} // namespace troupe::testing
