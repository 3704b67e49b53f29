#include <troupe/actors/decisions/control_requests.hpp>

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::actors;
using nlohmann::json;

TEST_CASE("each request is a line that is read back") {
  for (const auto& request :
       std::vector<control_request>{status_question{}, watch_request{}, stop_request{true}, stop_request{false},
                                    pause_request{}, resume_request{}, resize_request{7}, checkpoint_request{}}) {
    const auto line = to_line(request);
    CAPTURE(line);
    CHECK(line.find('\n') == std::string::npos);
    const auto read = parse_control_request(line);
    REQUIRE(read);
    CHECK(*read == request);
  }
}

TEST_CASE("a stop without more words finishes the step") {
  CHECK(*parse_control_request(R"({"request":"stop"})") == control_request{stop_request{false}});
}

TEST_CASE("what is no request is refused with what would be") {
  for (const std::string line :
       {"", "null", "[]", "stop", "{", R"({"request":7})", R"({"request":"dance"})", R"({"requests":"stop"})",
        R"({"request":"stop","immediately":"yes"})", R"({"request":"resize"})", R"({"request":"resize","workers":-1})",
        R"({"request":"resize","workers":2.5})", R"({"request":"resize","workers":4294967296})", "\xff\xfe"}) {
    CAPTURE(line);
    const auto read = parse_control_request(line);
    REQUIRE_FALSE(read);
    CHECK(read.error().code == errc::invalid_argument);
  }
  CHECK(parse_control_request(R"({"request":"dance"})").error().message.find("checkpoint") != std::string::npos);
}

TEST_CASE("a run that ends takes no wish but a stop, and questions") {
  for (auto activity : {run_activity::stopping, run_activity::ending}) {
    run_condition now;
    now.activity = activity;
    for (const auto& request :
         std::vector<control_request>{pause_request{}, resume_request{}, resize_request{2}, checkpoint_request{}})
      CHECK(refusal_of(request, now));
    for (const auto& request : std::vector<control_request>{status_question{}, watch_request{}, stop_request{}})
      CHECK_FALSE(refusal_of(request, now));
  }
}

TEST_CASE("a checkpoint is refused before there is a state, and taken in a paused run") {
  run_condition now;
  now.activity = run_activity::starting;
  CHECK(refusal_of(checkpoint_request{}, now));
  CHECK_FALSE(refusal_of(pause_request{}, now));
  now.activity = run_activity::paused;
  CHECK_FALSE(refusal_of(checkpoint_request{}, now));
}

TEST_CASE("answers are objects of one line") {
  const auto answer = json::parse(answer_line(pause_request{}, {{"state", "pausing"}}));
  CHECK(answer == json{{"answer", "pause"}, {"status", {{"state", "pausing"}}}});
  const auto refusal = json::parse(error_line({errc::invalid_argument, "two\nlines \xff"}));
  CHECK(refusal["error"]["code"] == "invalid_argument");
  CHECK(refusal["error"]["message"].get<std::string>().starts_with("two\nlines"));
  CHECK(error_line({errc::internal, "two\nlines"}).find('\n') == std::string::npos);
}
