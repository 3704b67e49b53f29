#include <troupe/actors/decisions/node_naming.hpp>

#include <doctest/doctest.h>

#include <tuple>

using namespace troupe;
using namespace troupe::actors;

namespace {

using names = std::vector<std::string>;

std::vector<named_node> nodes(const names& all) {
  std::vector<named_node> result;
  for (const auto& each : all)
    result.push_back({each});
  return result;
}

const auto failure = expected<std::vector<named_node>>{fail(errc::unreachable, "no server answers")};

} // namespace

TEST_CASE("a node that three answers in a row do not name is left") {
  node_naming naming;
  CHECK(naming.take(nodes({"a:1", "b:1"})).named == nodes({"a:1", "b:1"}));
  CHECK(naming.take(nodes({"a:1"})).left.empty());
  CHECK(naming.take(nodes({"a:1"})).left.empty());
  // It comes back in time.
  CHECK(naming.take(nodes({"a:1", "b:1"})).left.empty());
  CHECK(naming.take(nodes({"a:1"})).left.empty());
  CHECK(naming.take(nodes({"a:1"})).left.empty());
  CHECK(naming.take(nodes({"a:1"})).left == names{"b:1"});
  // It is not to be used until it is named again.
  CHECK(naming.take(nodes({"a:1"})).left == names{"b:1"});
  CHECK(naming.take(nodes({"a:1", "b:1"})).left.empty());
}

TEST_CASE("what cannot be learnt, and an answer without nodes, change nothing, and are told once") {
  node_naming naming;
  CHECK_FALSE(naming.knows_nodes());
  CHECK(naming.take(failure).notices.empty());
  CHECK(naming.problem() == "no server answers");
  CHECK(naming.take(nodes({"a:1"})).notices.empty());
  CHECK(naming.knows_nodes());
  for (auto i = 0; i < 4; ++i) {
    const auto change = naming.take(i < 2 ? failure : expected<std::vector<named_node>>{});
    CHECK(change.named.empty());
    CHECK(change.left.empty());
    CHECK(change.notices.size() == (i == 0 ? 1 : 0));
  }
  CHECK(naming.problem() == "no node is named");
  CHECK(naming.take(nodes({"a:1"})).notices == names{"it is known again which nodes there are"});
  CHECK(naming.problem().empty());
}

TEST_CASE("a node with workers that were taken over is not left before it has been named") {
  node_naming naming;
  naming.keep("a:1");
  naming.keep("c:1");
  CHECK(naming.take(nodes({"b:1", "c:1"})).left.empty());
  CHECK(naming.take(nodes({"b:1"})).left.empty());
  CHECK(naming.take(nodes({"b:1"})).left.empty());
  CHECK(naming.take(nodes({"b:1"})).left == names{"c:1"});
  naming = {};
  naming.keep("a:1");
  for (auto i = 0; i < 5; ++i)
    CHECK(naming.take(nodes({"b:1"})).left.empty());
  // Nobody lived there.
  naming.keep_none();
  std::ignore = naming.take(nodes({"b:1"}));
  std::ignore = naming.take(nodes({"b:1"}));
  CHECK(naming.take(nodes({"b:1"})).left == names{"a:1"});
}
