#pragma once

#include <troupe/framework.hpp>
#include <troupe/train_context.hpp>

#include <concepts>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

/// A training function and its name, by which a worker, another process of the program, finds it:
///
///     auto train = troupe::function{"train", [](troupe::train_context& ctx) { ... }};
///     auto app = troupe::app{argc, argv, {train}};
///     auto trainer = troupe::trainer{app, train, {.scaling = {.num_workers = 4}}};
struct function {
  /// A closure must not capture: a worker is another process, whose variables have not been set as the driver's were.
  template <class Body>
  requires std::invocable<Body&, train_context&> &&
      (!std::same_as<Body, std::function<void(train_context&)>>)explicit function(
          std::string name, Body body, std::vector<std::shared_ptr<framework>> frameworks = {})
      : function(std::move(name), std::function<void(train_context&)>{std::move(body)}, std::move(frameworks)) {
    static_assert(!std::is_class_v<Body> || std::is_empty_v<Body>,
                  "a training function must not capture variables: workers are other processes, which have them as "
                  "they are where the process starts. Pass settings in trainer_config::config or options, and read "
                  "them from ctx.config(). A closure whose variables are the same in every process of the program "
                  "may be passed as a std::function");
  }

  explicit function(std::string name, std::function<void(train_context&)> body,
                    std::vector<std::shared_ptr<framework>> frameworks = {})
      : name(std::move(name)), body(std::move(body)), frameworks(std::move(frameworks)) {}

  std::string name;
  /// Called in every worker process, on a thread of its own.
  std::function<void(train_context&)> body;
  /// The frameworks that it uses.
  std::vector<std::shared_ptr<framework>> frameworks;
};

/// Call this first in your own `main`. In a worker process it trains and never returns; nor does it where `troupe
/// replay` has started the program. In any other process it returns at once.
void run_if_worker(const std::vector<function>& functions);

/// Another program whose processes are the workers. Its `main` starts with `app` or `run_if_worker`. `path` is the same
/// on all hosts; a relative path is relative to the directory of the driver's program. A run can resume only with the
/// same worker program; the driver may have changed.
struct worker_program {
  std::filesystem::path path;
};

/// A program that trains. Make it first in `main`: a worker process ends inside the constructor, so that whatever comes
/// after it runs in the driver only.
class app {
 public:
  /// Throws `exception` for two functions of one name, and for a body or a framework that is null.
  app(int argc, char** argv, std::vector<function> functions);

  /// A driver whose workers run another program, so that it need not load their libraries. Only the workers know the
  /// functions. Throws `exception` if the path of the driver's program cannot be determined.
  app(int argc, char** argv, const worker_program& workers);

  [[nodiscard]] const std::vector<function>& functions() const noexcept { return functions_; }
  /// The function of a name that comes from a command line or a file. Throws `exception` for a name that no function
  /// has. With a `worker_program` every name gives a function, without a body: only the workers know theirs.
  [[nodiscard]] function find_function(const std::string& name) const;
  /// The workers' program; empty for this one.
  [[nodiscard]] const std::filesystem::path& worker_path() const noexcept { return worker_path_; }
  [[nodiscard]] int argc() const noexcept { return argc_; }
  [[nodiscard]] char** argv() const noexcept { return argv_; }

 private:
  int argc_;
  char** argv_;
  std::vector<function> functions_;
  std::filesystem::path worker_path_;
};

} // namespace troupe
