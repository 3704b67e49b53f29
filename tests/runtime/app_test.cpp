#include "node/local_launcher.hpp"

#include <troupe/app.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <sys/wait.h>
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
  auto program = app{2, arguments, {{"train", nothing}, {"evaluate", nothing}}};
  CHECK(program.has("train"));
  CHECK(program.has("evaluate"));
  CHECK_FALSE(program.has("Train"));
  CHECK_FALSE(program.has(""));
  REQUIRE(program.functions().size() == 2);
  CHECK(program.functions()[1].name == "evaluate");
  CHECK(program.argc() == 2);
  CHECK(program.argv() == arguments);
}

TEST_CASE("two functions of one name are refused") {
  char* arguments[] = {nullptr};
  auto reason = error{};
  try {
    static_cast<void>(app{0, arguments, {{"a", nothing}, {"b", nothing}, {"a", nothing}}});
  } catch (const exception& x) {
    reason = x.reason();
  }
  CHECK(reason.code == errc::invalid_argument);
  CHECK(reason.message.find("'a'") != std::string::npos);
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
      static_cast<void>(app{0, arguments, {{"train", nothing}}});
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
