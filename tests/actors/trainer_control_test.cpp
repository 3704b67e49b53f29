#include "trainer_fixture.hpp"
#include <nlohmann/json.hpp>

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::actors::testing;

TEST_CASE_FIXTURE(trainer_fixture, "a run takes another size on request, up and down") {
  open(worker_script::until_stopped);
  auto result = fit_and([&](const trainer_actor& trainer) {
    for (auto workers : {0u, 9u}) {
      auto refused = ask<void>(trainer, resize_request{workers});
      REQUIRE_FALSE(refused);
      CHECK(refused.error().code == errc::invalid_argument);
    }
    CHECK(ask<void>(trainer, resize_request{4}));
    CHECK(is_formed(4));
    CHECK(ask<void>(trainer, resize_request{1}));
    CHECK(is_formed(1));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.failures.empty());
  CHECK(result.workers.size() == 4);
  CHECK(result.generations.back().workers == 1);
  CHECK_FALSE(result.state_sha256.empty());
}

TEST_CASE_FIXTURE(trainer_fixture, "a run that is paused goes on when it is resumed") {
  open(worker_script::until_stopped);
  auto result = fit_and([&](const trainer_actor& trainer) {
    CHECK(ask<void>(trainer, pause_request{}));
    CHECK(is_said("the run is paused after step 5"));
    CHECK(ask<void>(trainer, pause_request{}));
    CHECK(ask<void>(trainer, resume_request{}));
    CHECK(is_formed(2));
    CHECK(ask<void>(trainer, resume_request{}));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.failures.empty());
  CHECK(result.generations.size() == 1);
  std::vector<std::string> requests;
  auto in = std::ifstream{root() / "events.jsonl"};
  for (std::string line; std::getline(in, line);)
    if (const auto event = nlohmann::json::parse(line); event["event"] == "request")
      requests.push_back(event["what"]);
  CHECK(requests == std::vector<std::string>{"pause", "pause", "resume", "resume"});
}

TEST_CASE_FIXTURE(trainer_fixture, "before a run has begun it cannot be paused, and whoever asks is told") {
  open(worker_script::trains);
  auto trainer = spawn();
  auto refused = ask<void>(trainer, pause_request{});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message == "cannot pause: the run has not begun");
  CHECK(is_said("cannot pause: the run has not begun"));
  CHECK_FALSE(ask<void>(trainer, checkpoint_request{}));
  caf::anon_send_exit(trainer, caf::exit_reason::user_shutdown);
  CHECK(has_ended(trainer));
}

TEST_CASE_FIXTURE(trainer_fixture, "what is asked for is answered when the journal says it") {
  open(worker_script::until_stopped);
  std::ignore = fit_and([&](const trainer_actor& trainer) {
    const auto kept = [&] {
      const auto journal = control_journal{system(), root()}.read();
      REQUIRE(journal.has_value());
      REQUIRE(journal->has_value());
      return (**journal).state;
    };
    CHECK(ask<void>(trainer, pause_request{}));
    CHECK(kept().asked == run_course::request::pause);
    CHECK(ask<void>(trainer, resume_request{}));
    CHECK(kept().asked == run_course::request::none);
    CHECK(ask<void>(trainer, resize_request{3}));
    CHECK(kept().workers == 3);
    CHECK(ask<void>(trainer, stop_request{}));
  });
}

TEST_CASE_FIXTURE(trainer_fixture, "a run that is paused can be stopped") {
  open(worker_script::until_stopped);
  auto result = fit_and([&](const trainer_actor& trainer) {
    CHECK(ask<void>(trainer, pause_request{}));
    CHECK(is_said("the run is paused after step 5"));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK_FALSE(result.state_sha256.empty());
}
