#include "play.hpp"

#include <troupe/actors/worker.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

struct played_host : training_host {
  void begin(const begin_training& message) override { calls.push_back("begin " + message.function); }
  void command(const control_command& message) override {
    calls.push_back("command " + std::to_string(message.sequence));
  }
  void abort(const abort_training& message) override { calls.push_back("abort " + message.reason.message); }
  void release() override { calls.emplace_back("release"); }

  std::vector<std::string> calls;
};

} // namespace

TEST_CASE_FIXTURE(stage_house, "a worker hands on what it is told, in order, and answers at once") {
  auto host = std::make_shared<played_host>();
  auto worker = spawn_worker(system(), host);
  begin_training begin;
  begin.function = "train";
  CHECK(ask<void>(worker, begin));
  CHECK(ask<void>(worker, control_command{{}, 5, command_kind::stop}));
  CHECK(ask<void>(worker, abort_training{{}, {1}, {errc::aborted, "why"}}));
  CHECK(ask<void>(worker, release_worker{}));
  caf::anon_send_exit(worker, caf::exit_reason::user_shutdown);
  CHECK(has_ended(worker));
  CHECK(host->calls == std::vector<std::string>{"begin train", "command 5", "abort why", "release"});
}
