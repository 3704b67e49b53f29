#include "nodes/list.hpp"

#include <troupe/runtime/members.hpp>

#include <troupe/messages/node.hpp>

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::tool;
using namespace std::chrono_literals;

namespace {

listed_member member(const std::string& address, const std::string& host) {
  listed_member result;
  result.what.address = address;
  result.what.host = host;
  result.what.protocol = protocol_version;
  result.what.version = "1.2";
  result.what.offered = {8, 0};
  return result;
}

} // namespace

TEST_CASE("the state of a member in a word") {
  auto one = member("a:1", "a");
  CHECK(runtime::state_of(one) == "available");
  one.what.phase = member_phase::drained;
  CHECK(runtime::state_of(one) == "drained");
  one.what.runs = {{"0123", "digits", 2}};
  CHECK(runtime::state_of(one) == "draining");
  one.what.phase = member_phase::leaving;
  CHECK(runtime::state_of(one) == "leaving");
  one.what.protocol = protocol_version + 1;
  CHECK(runtime::state_of(one) == "other version");
  one.is_silent = true;
  CHECK(runtime::state_of(one) == "silent");
}

TEST_CASE("the list of members for people and for scripts") {
  auto first = member("10.0.0.7:4000", "host-a");
  first.what.offered = {16, 4};
  first.what.free = {16, 1};
  first.what.runs = {{"0123", "digits", 2}, {"4567", "gpt", 1}};
  first.what.labels = {{"kind", "serving"}, {"zone", "a"}};
  first.what.certificate_expires = 1'800'000'000;
  auto second = member("b:4000", "b");
  second.is_silent = true;
  second.silent_for = 12'345ms;
  CHECK(table_of({first, second}) == "ADDRESS        HOST    STATE            CPUS  GPUS         WORKERS            "
                                     "LABELS                VERSION  CERTIFICATE\n"
                                     "10.0.0.7:4000  host-a  available        16    1 of 4 free  digits: 2, gpt: 1  "
                                     "kind=serving, zone=a  1.2      until 2027-01-15\n"
                                     "b:4000         b       silent for 12 s  8     -            -                  -  "
                                     "                   1.2      -\n");
  const auto json = nlohmann::json::parse(json_of({first, second}));
  REQUIRE(json.size() == 2);
  CHECK(json[0]["workers"] == 3);
  CHECK(json[0]["runs"][1] == nlohmann::json{{"run", "4567"}, {"name", "gpt"}, {"workers", 1}});
  CHECK(json[0]["free_gpus"] == 1);
  CHECK(json[0]["labels"]["kind"] == "serving");
  CHECK(json[0]["certificate_expires"] == "2027-01-15");
  CHECK(json[1]["certificate_expires"].is_null());
  CHECK(json[1]["silent_seconds"] == 12.345);
}

TEST_CASE("a member is named by its address, or by its host if it is alone there") {
  const auto all = std::vector{member("10.0.0.7:4000", "host-a"), member("10.0.0.8:4000", "host-b"),
                               member("10.0.0.8:4001", "host-b")};
  CHECK(find_member(all, "10.0.0.8:4001") == "10.0.0.8:4001");
  CHECK(find_member(all, "host-a") == "10.0.0.7:4000");
  CHECK(find_member(all, "10.0.0.7") == "10.0.0.7:4000");
  CHECK(find_member(all, "host-c").error().code == errc::not_found);
  const auto several = find_member(all, "host-b");
  REQUIRE_FALSE(several);
  CHECK(several.error().message.find("10.0.0.8:4000, 10.0.0.8:4001") != std::string::npos);
}
