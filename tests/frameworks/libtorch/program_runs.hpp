#pragma once

#include <processes.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <string>

namespace troupe::testing {

/// Runs of a program in a temporary directory.
struct program_runs {
  scratch_directory scratch;

  struct outcome {
    exit_status status;
    std::string out;
    std::string err;
    nlohmann::json result;
  };

  [[nodiscard]] outcome end(const std::string& name, child_process& process) {
    auto status = process.wait();
    auto text = read_file(scratch.path() / "runs" / name / "result.json");
    return {status, process.out(), process.err(), nlohmann::json::parse(text, nullptr, false)};
  }

  [[nodiscard]] pid_t worker_of_rank(const std::string& rank) const {
    for (auto pid : processes_with("TROUPE_KEYS", (scratch.path() / "keys").string())) {
      auto environment = environment_of(pid);
      if (environment.contains("TROUPE_WORKER") && environment["RANK"] == rank)
        return pid;
    }
    return 0;
  }

  /// Waits until rank 1 of the run `name` trains, that is, until its first step is reported, and kills it.
  void kill_when_training(const std::string& name, child_process& process) const {
    auto victim = pid_t{0};
    REQUIRE(becomes_true([&] {
      victim = worker_of_rank("1");
      return !process.running() ||
             (victim != 0 && !read_file(scratch.path() / "runs" / name / "metrics.jsonl").empty());
    }));
    REQUIRE(victim != 0);
    send_signal(victim, SIGKILL);
  }
};

} // namespace troupe::testing
