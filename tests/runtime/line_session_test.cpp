#include "driver/line_session.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace troupe::runtime;
using namespace std::chrono_literals;

namespace {

const auto now = std::chrono::steady_clock::time_point{} + 1h;

line_limits small() {
  line_limits result;
  result.line_bytes = 10;
  result.output_bytes = 20;
  result.silence = 30s;
  result.pace = 5ms;
  return result;
}

} // namespace

TEST_CASE("lines come whole, one after the other, each when the last is answered and not too soon") {
  line_session session{small(), now};
  session.receive("on");
  CHECK_FALSE(session.next_line(now));
  CHECK(session.wants_input());
  session.receive("e\ntwo\nthr");
  CHECK_FALSE(session.wants_input());
  CHECK(session.next_line(now) == "one");
  CHECK_FALSE(session.next_line(now + 1s));
  CHECK_FALSE(session.next_line_at());
  session.answer("1");
  CHECK(session.output() == "1\n");
  CHECK(session.next_line_at() == now + 5ms);
  CHECK_FALSE(session.next_line(now + 4ms));
  CHECK(session.next_line(now + 5ms) == "two");
  session.answer("2");
  CHECK(session.wants_input());
  CHECK_FALSE(session.next_line(now + 1s));
  session.receive("ee\n");
  CHECK(session.next_line(now + 1s) == "three");
}

TEST_CASE("a line without an end takes no more memory than one line, and the session ends with a word") {
  auto limits = small();
  limits.output_bytes = 1000;
  line_session session{limits, now};
  session.receive("0123456789");
  CHECK_FALSE(session.is_over());
  session.receive("0");
  CHECK(session.is_over());
  CHECK_FALSE(session.wants_input());
  CHECK_FALSE(session.next_line(now));
  CHECK_FALSE(session.is_clogged());
  CHECK(session.output().find("too long") != std::string_view::npos);
}

TEST_CASE("what is published goes to subscribers, and a reader that is too slow is given up") {
  line_session session{small(), now};
  session.publish("unseen");
  CHECK(session.output().empty());
  session.subscribe();
  session.publish("12345678");
  CHECK(session.output() == "12345678\n");
  session.on_sent(4);
  CHECK(session.output() == "5678\n");
  session.publish("abcdefgh");
  CHECK(session.output() == "5678\nabcdefgh\n");
  CHECK_FALSE(session.is_clogged());
  session.publish("abcdefgh");
  CHECK(session.is_clogged());
  CHECK(session.is_over());
}

TEST_CASE("who says nothing is overdue, and who has asked is not") {
  line_session silent{small(), now};
  CHECK_FALSE(silent.is_overdue(now + 30s));
  CHECK(silent.is_overdue(now + 31s));
  line_session asking{small(), now};
  asking.receive("one\n");
  CHECK(asking.next_line(now));
  CHECK_FALSE(asking.is_overdue(now + 1h));
  CHECK_FALSE(asking.is_idle());
  asking.answer("1");
  CHECK(asking.is_idle());
  asking.subscribe();
  CHECK_FALSE(asking.is_idle());
}
