#include <troupe/actors/decisions/broken_links.hpp>

#include <doctest/doctest.h>

using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

constexpr auto start = run_time{} + 1h;
constexpr auto refused = broken_links::dial_result::refused;
constexpr auto failed = broken_links::dial_result::failed;

using reasons = std::map<std::uint32_t, std::string>;

} // namespace

TEST_CASE("a broken link is told once the node could not be dialled again, and only once") {
  broken_links links;
  links.add(2, "reset", start);
  CHECK(links.take_unreachable(start).empty());
  links.on_dialled(2, refused, start + 1ms);
  CHECK(links.take_unreachable(start + 1ms) == reasons{{2, "reset"}});
  links.on_dialled(2, failed, start + 2ms);
  CHECK(links.take_unreachable(start + 10s).empty());
}

TEST_CASE("a broken link is told after a while, also if dialling takes long") {
  broken_links links;
  links.add(2, "reset", start);
  CHECK(links.take_unreachable(start + 299ms).empty());
  CHECK(links.take_unreachable(start + 300ms) == reasons{{2, "reset"}});
}

TEST_CASE("links that break together are told together") {
  broken_links links;
  links.add(0, "reset", start);
  links.add(1, "reset, too", start + 1ms);
  links.on_dialled(0, failed, start + 2ms);
  CHECK(links.take_unreachable(start + 2ms).empty());
  links.on_dialled(1, failed, start + 3ms);
  CHECK(links.take_unreachable(start + 3ms) == reasons{{0, "reset"}, {1, "reset, too"}});
}

TEST_CASE("a link that is mended is not told, and holds up nobody") {
  broken_links links;
  links.add(0, "reset", start);
  links.add(1, "reset, too", start);
  links.on_dialled(1, refused, start);
  links.remove(0);
  CHECK(links.take_unreachable(start) == reasons{{1, "reset, too"}});
  // Breaking again is something new.
  links.remove(1);
  links.add(1, "again", start + 1s);
  links.on_dialled(1, refused, start + 1s);
  CHECK(links.take_unreachable(start + 1s) == reasons{{1, "again"}});
}

TEST_CASE("a node is dead when nobody has listened at its port for five seconds") {
  broken_links links;
  links.add(0, "reset", start);
  links.add(1, "reset", start);
  links.on_dialled(0, refused, start);
  links.on_dialled(1, failed, start);
  CHECK(links.dead(start + 4999ms).empty());
  CHECK(links.dead(start + 5s) == std::vector<std::uint32_t>{0});
  // Lost packets say nothing about it.
  links.on_dialled(0, failed, start + 4s);
  CHECK(links.dead(start + 5s).empty());
  links.on_dialled(0, refused, start + 6s);
  CHECK(links.dead(start + 10s).empty());
  CHECK(links.dead(start + 11s) == std::vector<std::uint32_t>{0});
}

TEST_CASE("nothing is known of a link that is not broken") {
  broken_links links;
  links.on_dialled(3, refused, start);
  CHECK(links.take_unreachable(start + 1h).empty());
  CHECK(links.dead(start + 1h).empty());
}
