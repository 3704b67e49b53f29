#include "nodes/list.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::tool;

namespace {

runtime::asked_node node(const std::string& address, const std::string& host) {
  runtime::asked_node result{address};
  result.report->host = host;
  result.report->version = "1.2";
  result.report->offered = {8, 0};
  return result;
}

} // namespace

TEST_CASE("the state of a node in a word") {
  auto one = node("a:1", "a");
  CHECK(runtime::state_of(one) == "available");
  one.report->phase = node_phase::drained;
  CHECK(runtime::state_of(one) == "drained");
  one.report->runs = {{"0123", "digits", 2}};
  CHECK(runtime::state_of(one) == "draining");
  one.report->phase = node_phase::leaving;
  CHECK(runtime::state_of(one) == "leaving");
  one.report->protocol = protocol_version - 1;
  CHECK(runtime::state_of(one) == "other version");
  for (const auto& [code, state] :
       {std::pair{errc::unsupported_version, "other version"}, std::pair{errc::program_mismatch, "other version"},
        std::pair{errc::not_authenticated, "refuses"}, std::pair{errc::connection_refused, "silent"}}) {
    one.report = fail(code, "why");
    CHECK(runtime::state_of(one) == state);
  }
}

TEST_CASE("the list of nodes for people and for scripts") {
  auto first = node("10.0.0.7:4000", "host-a");
  first.report->offered = {16, 4};
  first.report->free = {16, 1};
  first.report->runs = {{"0123", "digits", 2}, {"4567", "gpt", 1}};
  first.report->labels = {{"kind", "serving"}, {"zone", "a"}};
  first.report->certificate_expires = 1'800'000'000;
  auto second = node("b:4000", "b");
  auto third = runtime::asked_node{"c:4000", fail(errc::unreachable, "nobody listens at c:4000")};
  CHECK(table_of({first, second, third}) ==
        "ADDRESS        HOST    STATE      CPUS  GPUS         WORKERS            LABELS                VERSION  "
        "CERTIFICATE\n"
        "10.0.0.7:4000  host-a  available  16    1 of 4 free  digits: 2, gpt: 1  kind=serving, zone=a  1.2      until "
        "2027-01-15\n"
        "b:4000         b       available  8     -            -                  -                     1.2      -\n"
        "c:4000         -       silent     -     -            -                  -                     -        -\n");
  const auto json = nlohmann::json::parse(json_of({first, second, third}));
  REQUIRE(json.size() == 3);
  CHECK(json[0]["workers"] == 3);
  CHECK(json[0]["runs"][1] == nlohmann::json{{"run", "4567"}, {"name", "gpt"}, {"workers", 1}});
  CHECK(json[0]["free_gpus"] == 1);
  CHECK(json[0]["labels"]["kind"] == "serving");
  CHECK(json[0]["certificate_expires"] == "2027-01-15");
  CHECK(json[1]["certificate_expires"].is_null());
  CHECK(json[2] == nlohmann::json{{"address", "c:4000"}, {"state", "silent"}, {"problem", "nobody listens at c:4000"}});
}

TEST_CASE("a node is named by its address, or by its host if it is alone there") {
  const auto all =
      std::vector{node("10.0.0.7:4000", "host-a"), node("10.0.0.8:4000", "host-b"), node("10.0.0.8:4001", "host-b")};
  CHECK(find_node(all, "10.0.0.8:4001") == "10.0.0.8:4001");
  CHECK(find_node(all, "host-a") == "10.0.0.7:4000");
  CHECK(find_node(all, "10.0.0.7") == "10.0.0.7:4000");
  CHECK(find_node(all, "host-c").error().code == errc::not_found);
  const auto several = find_node(all, "host-b");
  REQUIRE_FALSE(several);
  CHECK(several.error().message.find("10.0.0.8:4000, 10.0.0.8:4001") != std::string::npos);
}
