#include "decisions/access.hpp"
#include "decisions/batch_queue.hpp"
#include "decisions/rate_limiter.hpp"
#include "decisions/reload_choice.hpp"
#include "decisions/source_limit.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <string>
#include <variant>
#include <vector>

using namespace troupe;
using namespace troupe::serving;
using namespace std::chrono_literals;

namespace {

const auto start = time_point{} + 100s;

using tickets = std::vector<batch_queue::ticket>;

tickets take(batch_queue& queue, time_point now) {
  const auto what = queue.next(now);
  const auto* batch = std::get_if<batch_queue::batch>(&what);
  return batch == nullptr ? tickets{} : batch->tickets;
}

std::vector<serialization::checkpoint_entry> steps(const std::vector<std::uint64_t>& all) {
  std::vector<serialization::checkpoint_entry> result;
  for (auto each : all)
    result.push_back({step_id{each}, serialization::checkpoint_name(step_id{each})});
  return result;
}

std::set<std::filesystem::path> names(const std::vector<std::uint64_t>& all) {
  std::set<std::filesystem::path> result;
  for (const auto& each : steps(all))
    result.insert(each.path);
  return result;
}

} // namespace

TEST_CASE("without a delay a free replica takes what waits, in order, up to a full batch") {
  auto queue = batch_queue{{.max_rows = 4, .max_delay = 0us, .max_queued_rows = 100}};
  CHECK(std::holds_alternative<batch_queue::wait_for_request>(queue.next(start)));
  for (auto rows : {1, 2, 3, 1})
    CHECK(queue.offer(static_cast<std::uint64_t>(rows), start, start + 1s));
  CHECK(queue.queued_rows() == 7);
  CHECK(take(queue, start) == tickets{1, 2});
  CHECK(take(queue, start) == tickets{3, 4});
  CHECK(queue.queued_rows() == 0);
  CHECK(std::holds_alternative<batch_queue::wait_for_request>(queue.next(start)));
}

TEST_CASE("with a delay a batch waits to fill, for no longer than its first request has waited") {
  auto queue = batch_queue{{.max_rows = 3, .max_delay = 2ms, .max_queued_rows = 100}};
  CHECK(queue.offer(1, start, start + 1s));
  CHECK(queue.offer(1, start + 1ms, start + 1s));
  const auto what = queue.next(start + 1ms);
  REQUIRE(std::holds_alternative<batch_queue::wait_until>(what));
  CHECK(std::get<batch_queue::wait_until>(what).when == start + 2ms);
  SUBCASE("it fills") {
    CHECK(queue.offer(1, start + 1ms, start + 1s));
    CHECK(take(queue, start + 1ms) == tickets{1, 2, 3});
  }
  SUBCASE("the time is over") {
    CHECK(take(queue, start + 2ms) == tickets{1, 2});
  }
}

TEST_CASE("requests that are put back are the next, each by itself, beyond all limits") {
  auto queue = batch_queue{{.max_rows = 4, .max_delay = 1s, .max_queued_rows = 4}};
  CHECK(queue.offer(1, start, start + 1s));
  CHECK(queue.offer(2, start, start + 1s));
  CHECK(queue.offer(1, start, start + 1s));
  CHECK(take(queue, start) == tickets{1, 2, 3});
  CHECK(queue.offer(3, start, start + 10s));
  queue.put_back(2, 2, start + 1s);
  queue.put_back(1, 1, start + 1s);
  CHECK(queue.queued_rows() == 6);
  CHECK(!queue.offer(1, start, start + 1s));
  CHECK(take(queue, start) == tickets{1});
  SUBCASE("the next") {
    CHECK(take(queue, start) == tickets{2});
    CHECK(take(queue, start).empty());
    CHECK(take(queue, start + 1s) == tickets{4});
  }
  SUBCASE("it is late") {
    CHECK(take(queue, start + 1s) == tickets{4});
    CHECK(queue.queued_rows() == 0);
  }
  SUBCASE("it is withdrawn") {
    CHECK(queue.withdraw(2));
    CHECK(queue.queued_rows() == 3);
  }
}

TEST_CASE("a request larger than a batch is one by itself") {
  auto queue = batch_queue{{.max_rows = 2, .max_delay = 1s, .max_queued_rows = 100}};
  CHECK(queue.offer(7, start, start + 1s));
  CHECK(queue.offer(1, start, start + 1s));
  CHECK(take(queue, start) == tickets{1});
  CHECK(take(queue, start + 1s - 1ms).empty());
}

TEST_CASE("a full queue refuses, and has room again once requests are taken or withdrawn") {
  auto queue = batch_queue{{.max_rows = 2, .max_delay = 0us, .max_queued_rows = 4}};
  CHECK(queue.offer(3, start, start + 1s));
  CHECK_FALSE(queue.offer(2, start, start + 1s));
  CHECK(queue.offer(1, start, start + 1s));
  CHECK_FALSE(queue.offer(1, start, start + 1s));
  CHECK(queue.withdraw(1));
  CHECK_FALSE(queue.withdraw(1));
  CHECK(queue.offer(3, start, start + 1s));
  CHECK(take(queue, start) == tickets{2});
  CHECK(queue.queued_rows() == 3);
  // However large the number.
  CHECK_FALSE(queue.offer(~std::uint64_t{0}, start, start + 1s));
}

TEST_CASE("a request whose deadline has passed is not predicted") {
  auto queue = batch_queue{{.max_rows = 8, .max_delay = 0us, .max_queued_rows = 100}};
  CHECK(queue.offer(1, start, start + 10ms));
  CHECK(queue.offer(2, start, start + 20ms));
  CHECK(queue.offer(4, start, start + 10ms));
  CHECK(take(queue, start + 10ms) == tickets{2});
  CHECK(queue.queued_rows() == 0);
  CHECK_FALSE(queue.withdraw(1));
}

TEST_CASE("a source has its burst at once, and then its rate") {
  auto limiter = rate_limiter{10, 3};
  for (auto i = 0; i < 3; ++i)
    CHECK_FALSE(limiter.refuse("a", start));
  const auto wait = limiter.refuse("a", start);
  REQUIRE(wait);
  CHECK(wait->count() == doctest::Approx(0.1));
  CHECK_FALSE(limiter.refuse("b", start));
  CHECK_FALSE(limiter.refuse("a", start + 101ms));
  CHECK(limiter.refuse("a", start + 101ms));
  // A clock that stands still or goes back gives nothing.
  CHECK(limiter.refuse("a", start));
  auto passed = 0;
  for (auto now = start + 1s; now < start + 11s; now += 1ms)
    passed += limiter.refuse("a", now) ? 0 : 1;
  CHECK(passed >= 100);
  CHECK(passed <= 103);
}

TEST_CASE("the rate limiter forgets who has been silent the longest, and remembers no more than it may") {
  auto limiter = rate_limiter{1, 1, 100};
  CHECK_FALSE(limiter.refuse("steady", start));
  for (auto i = 0; i < 10'000; ++i) {
    CHECK_FALSE(limiter.refuse(std::to_string(i), start));
    CHECK(limiter.refuse("steady", start));
  }
  CHECK(limiter.sources() == 100);
  CHECK(limiter.refuse("9999", start));
  CHECK_FALSE(limiter.refuse("0", start));
}

TEST_CASE("a source is an address of IPv4, or 64 bits of IPv6") {
  CHECK(source_of("10.1.2.3") == "10.1.2.3");
  CHECK(source_of("2001:db8:1:2:3:4:5:6") == "2001:db8:1:2::/64");
  CHECK(source_of("2001:db8:1:2::ffff") == source_of("2001:db8:1:2:8000::1"));
  CHECK(source_of("2001:db8:1:3::1") != source_of("2001:db8:1:2::1"));
  CHECK(source_of("::ffff:10.1.2.3") == "10.1.2.3");
  CHECK(source_of("fe80::1%eth0") == source_of("fe80::2%eth0"));
  CHECK(source_of("unknown") == "unknown");
}

TEST_CASE("a source has no more connections than it may, and none that has ended is remembered") {
  auto limit = source_limit{2};
  CHECK(limit.enter("a"));
  CHECK(limit.enter("a"));
  CHECK_FALSE(limit.enter("a"));
  CHECK(limit.enter("b"));
  limit.leave("a");
  CHECK(limit.enter("a"));
  limit.leave("a");
  limit.leave("a");
  limit.leave("b");
  CHECK(limit.sources() == 0);
}

TEST_CASE("a reload takes the newest checkpoint that was not refused") {
  const auto all = steps({10, 20, 30});
  const auto choose = [&](std::optional<std::uint64_t> served, const std::vector<std::uint64_t>& refused,
                          reload_reach reach) -> std::uint64_t {
    const auto found =
        choose_checkpoint(all, served ? std::optional{step_id{*served}} : std::nullopt, names(refused), reach);
    return found ? found->step.value : 0;
  };
  CHECK(choose({}, {}, reload_reach::newer) == 30);
  CHECK(choose(10, {}, reload_reach::newer) == 30);
  CHECK(choose(10, {30}, reload_reach::newer) == 20);
  CHECK(choose(20, {30}, reload_reach::newer) == 0);
  CHECK(choose(30, {}, reload_reach::any) == 0);
  CHECK(choose({}, {10, 20, 30}, reload_reach::any) == 0);
  // The run has begun anew, or its newest checkpoint was removed.
  CHECK(choose(40, {}, reload_reach::newer) == 0);
  CHECK(choose(40, {}, reload_reach::any) == 30);
  CHECK_FALSE(choose_checkpoint({}, step_id{1}, {}, reload_reach::any));
}

TEST_CASE("a token must be whole, and of the scheme Bearer") {
  const std::string token = "0123456789abcdef";
  CHECK(is_authorized("Bearer " + token, token));
  CHECK(is_authorized("bearer " + token, token));
  const std::vector<std::string> all{"",
                                     token,
                                     "Bearer",
                                     "Bearer ",
                                     "Bearer " + token + "0",
                                     "Bearer 0123456789abcde",
                                     "Bearer  " + token,
                                     "Basic " + token,
                                     "Bearer" + token,
                                     "Bearer 0123456789abcdeF"};
  for (const auto& wrong : all)
    CHECK_FALSE_MESSAGE(is_authorized(wrong, token), wrong);
}

TEST_CASE("local names are those of loopback, with or without a port") {
  for (const auto* local :
       {"localhost", "localhost:8080", "LOCALHOST", "127.0.0.1:1", "127.9.9.9", "[::1]", "[::1]:80"})
    CHECK_MESSAGE(is_local_name(local), local);
  for (const auto* foreign : {"", "example.org", "example.org:8080", "localhost.example.org", "10.0.0.1", "[::2]:80",
                              "127.0.0.1.example.org", "[::1", "127.1"})
    CHECK_FALSE_MESSAGE(is_local_name(foreign), foreign);
}

TEST_CASE("pages of other sites are told by what browsers send, and tokens by their characters") {
  for (const auto* local : {"", "http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080"})
    CHECK_MESSAGE(is_local_page(local, ""), local);
  for (const auto* foreign :
       {"null", "http://example.org", "http://localhost.example.org", "localhost", "http://10.0.0.1"})
    CHECK_FALSE_MESSAGE(is_local_page(foreign, ""), foreign);
  CHECK_FALSE(is_local_page("", "cross-site"));
  CHECK(is_local_page("", "none"));
  for (const auto* good : {"abcXYZ019-._~+/", "YWJj==", "a="})
    CHECK_MESSAGE(is_token_text(good), good);
  for (const auto* bad : {"", "=", "a%20b", "a b", "a=b", "a\n", "\xc3\xa4"})
    CHECK_FALSE_MESSAGE(is_token_text(bad), bad);
}

TEST_CASE("a checkpoint that fails for a reason that may pass is tried again, later each time") {
  using outlook = refused_checkpoints::outlook;
  refused_checkpoints refused;
  CHECK(refused.add("a", outlook::may_pass, start));
  CHECK(refused.add("b", outlook::hopeless, start));
  CHECK(refused.at(start + 999ms).size() == 2);
  CHECK(refused.at(start + 1s) == std::set<std::filesystem::path>{"b"});
  // Reported once.
  CHECK_FALSE(refused.add("a", outlook::may_pass, start));
  CHECK(refused.at(start + 1999ms).contains("a"));
  CHECK_FALSE(refused.at(start + 2s).contains("a"));
  for (auto i = 0; i < 100; ++i)
    CHECK_FALSE(refused.add("a", outlook::may_pass, start));
  CHECK(refused.at(start + 299s).contains("a"));
  CHECK_FALSE(refused.at(start + 300s).contains("a"));
  CHECK(refused.at(start + 1000h).contains("b"));
  refused.retry();
  CHECK(refused.at(start).empty());
  CHECK(refused.size() == 2);
  refused.keep(std::vector<serialization::checkpoint_entry>{{step_id{1}, "b"}});
  CHECK(refused.size() == 1);
}
