#include <troupe/actors/decisions/mirror_owner.hpp>

#include <doctest/doctest.h>

using namespace troupe::actors;

namespace {

mirror_owner owner(std::uint64_t claim, const std::string& token) {
  return {"a run", claim, token, "host-a", 7, "2026-11-29T11:40:25.000Z"};
}

} // namespace

TEST_CASE("the record of a mirror's owner says again what it was made of, and anything else is none") {
  const auto sample = owner(~std::uint64_t{0}, "abc");
  const auto text = to_json(sample);
  CHECK(parse_mirror_owner(text) == sample);
  CHECK(describe(sample) == "the driver with process id 7 on host-a, since 2026-11-29T11:40:25.000Z");
  for (std::size_t size = 0; size < text.size(); ++size)
    CHECK_FALSE(parse_mirror_owner(text.substr(0, size)));
  for (const auto* other :
       {"[]", "7", "null", R"({"claim": 7})", R"({"run":"a","claim":"7","token":"b","host":"c","pid":7,"time":"d"})"})
    CHECK_FALSE(parse_mirror_owner(other));
}

TEST_CASE("a driver that begins claims more than all before it") {
  CHECK(next_claim({}, 0) == 1);
  CHECK(next_claim(owner(3, "a"), 0) == 4);
  // With resume = restart, what was there is elsewhere by now.
  CHECK(next_claim({}, 3) == 4);
  CHECK(next_claim(owner(2, "a"), 3) == 4);
}

TEST_CASE("of drivers with one mirror the one that claimed it last has it, of equal ones whose record is there") {
  const auto own = owner(3, "a");
  CHECK(standing_of(own, own) == mirror_standing::owns);
  CHECK(standing_of(own, {}) == mirror_standing::takes);
  CHECK(standing_of(own, owner(2, "b")) == mirror_standing::takes);
  CHECK(standing_of(own, owner(3, "b")) == mirror_standing::superseded);
  CHECK(standing_of(own, owner(4, "b")) == mirror_standing::superseded);
}
