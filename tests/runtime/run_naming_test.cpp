#include "driver/run_naming.hpp"
#include "process/debugger.hpp"

#include <doctest/doctest.h>

namespace troupe::runtime {

TEST_CASE("the command that repeats a run in one process has its arguments, but for the workers, the name and how to "
          "resume") {
  CHECK(
      in_one_process(
          {"./train", "--workers", "4", "--text=a b", "it's", "--resume=restart", "--lr", "0.5", "--name", "x"}, "run")
          .ends_with(": ./train '--text=a b' 'it'\\''s' --lr 0.5 --workers 0 --name run"));
  CHECK(own_arguments().size() >= 1);
}

TEST_CASE("a worker's name says which step it has committed, unless the number may be cut off") {
  CHECK(committed_step_in(worker_name({3}, {119}, "run")) == step_id{119});
  CHECK(committed_step_in(worker_name({3}, {119}, "run").substr(0, 15)) == step_id{119});
  CHECK(committed_step_in("r1023 s10000000") == std::nullopt);
  CHECK(committed_step_in("r1023 s1000000 ") == step_id{1000000});
  CHECK(committed_step_in("charlm") == std::nullopt);
  CHECK(committed_step_in("") == std::nullopt);
}

} // namespace troupe::runtime
