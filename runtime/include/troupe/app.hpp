#pragma once

#include <troupe/framework.hpp>
#include <troupe/train_context.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

/// What a user writes: called in every worker process, on a thread of its own.
using training_function = std::function<void(train_context&)>;

/// A worker is another process of the same program: functions travel by name.
struct named_function {
  std::string name;
  training_function function;
  /// The frameworks that it uses.
  std::vector<std::shared_ptr<framework>> frameworks = {};
};

/// To be called first in a `main` of one's own: a worker process trains in here and never returns. Returns at once
/// otherwise.
void run_if_worker(const std::vector<named_function>& functions);

/// Another program, whose processes are a driver's workers: its `main` begins with `app` or `run_if_worker`, and the
/// functions. `path` is the same on all hosts; a relative one lies beside the driver's program. A run that goes on
/// wants the same program of its workers, and no more of the driver.
struct worker_program {
  std::filesystem::path path;
};

/// A program that trains. Make it first in `main`: a worker process ends inside the constructor, so that whatever comes
/// after it runs in the driver only.
class app {
 public:
  /// Throws `exception` for two functions of one name, and for a framework that is null.
  app(int argc, char** argv, std::vector<named_function> functions);

  /// A driver whose workers are processes of another program, so that it need not load the libraries that training
  /// functions use. Which functions there are is found out by the workers. Throws `exception` where its own path cannot
  /// be told.
  app(int argc, char** argv, worker_program workers);

  [[nodiscard]] const std::vector<named_function>& functions() const noexcept { return functions_; }
  [[nodiscard]] bool has(const std::string& function) const noexcept;
  /// Of the workers; empty: this program.
  [[nodiscard]] const std::filesystem::path& worker_path() const noexcept { return worker_path_; }
  [[nodiscard]] int argc() const noexcept { return argc_; }
  [[nodiscard]] char** argv() const noexcept { return argv_; }

 private:
  int argc_;
  char** argv_;
  std::vector<named_function> functions_;
  std::filesystem::path worker_path_;
};

} // namespace troupe
