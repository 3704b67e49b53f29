#include "node/local_launcher.hpp"

#include <troupe/app.hpp>
#include <troupe/trainer.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <tuple>
#include <type_traits>
#include <unistd.h>

namespace troupe {

namespace {

void nothing(train_context&) {
  // Never called: functions are called in worker processes.
}

TEST_CASE("an app knows its functions by name, and its arguments") {
  char name[] = "program";
  char option[] = "--option";
  char* arguments[] = {name, option, nullptr};
  auto program = app{2, arguments, {function{"train", nothing}, function{"evaluate", nothing}}};
  CHECK(program.find_function("train").name == "train");
  CHECK(program.find_function("evaluate").name == "evaluate");
  for (const auto* other : {"Train", ""})
    CHECK_THROWS_WITH_AS(
        std::ignore = program.find_function(other),
        ("the app has no training function '" + std::string{other} + "'; it has 'train', 'evaluate'").c_str(),
        exception);
  REQUIRE(program.functions().size() == 2);
  CHECK(program.functions()[1].name == "evaluate");
  CHECK(program.argc() == 2);
  CHECK(program.argv() == arguments);
}

TEST_CASE("two functions of one name are refused") {
  char* arguments[] = {nullptr};
  auto reason = error{};
  try {
    static_cast<void>(app{0, arguments, {function{"a", nothing}, function{"b", nothing}, function{"a", nothing}}});
  } catch (const exception& x) {
    reason = x.reason();
  }
  CHECK(reason.code == errc::invalid_argument);
  CHECK(reason.message.find("'a'") != std::string::npos);
}

TEST_CASE("a function without a body is refused with its name") {
  char* arguments[] = {nullptr};
  CHECK_THROWS_WITH_AS((app{0, arguments, {function{"train", nullptr}}}), "the training function 'train' has no body",
                       exception);
}

TEST_CASE("a trainer takes a function of its app, and no name") {
  static_assert(std::is_constructible_v<trainer, app&, function&, trainer_config>);
  static_assert(!std::is_constructible_v<trainer, app&, const char*, trainer_config>);
  static_assert(!std::is_constructible_v<trainer, app&, std::string, trainer_config>);
  char* arguments[] = {nullptr};
  auto program = app{0, arguments, {function{"train", nothing}}};
  CHECK_THROWS_WITH_AS((trainer{program, function{"other", nothing}, {}}),
                       "the app has no training function 'other'; it has 'train'", exception);
}

TEST_CASE("the workers' program may have any function, and its absence fails the run") {
  char* arguments[] = {nullptr};
  auto program = app{0, arguments, worker_program{"absent-program"}};
  auto runs = trainer{program, program.find_function("train"), {}};
  auto result = runs.fit();
  CHECK(result.status == run_status::failed);
  CHECK(result.reason.message.find("absent-program") != std::string::npos);
  CHECK_THROWS_WITH_AS(runs.fit_or_throw(), result.reason.message.c_str(), exception);
}

TEST_CASE("a program comes out of its app unless a node has started it as a worker") {
  char* arguments[] = {nullptr};
  for (auto as_worker : {false, true}) {
    auto child = ::fork();
    if (child == 0) {
      // Nobody has left a worker anything to read: it ends by itself, with a message that is of no interest here.
      ::close_range(STDERR_FILENO, ~0u, 0);
      if (as_worker)
        ::setenv(runtime::worker_variable, "1", 1);
      else
        ::unsetenv(runtime::worker_variable);
      static_cast<void>(app{0, arguments, {function{"train", nothing}}});
      ::_exit(42);
    }
    REQUIRE(child > 0);
    auto status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    auto code = WEXITSTATUS(status);
    // Which comes first is open: it has nothing to read, and nobody at the other end of its lifeline.
    auto ended_inside = code == 1 || code == runtime::lifeline_exit_code;
    CHECK((as_worker ? ended_inside : code == 42));
  }
}

} // namespace

} // namespace troupe
