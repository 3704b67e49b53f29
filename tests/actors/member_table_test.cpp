#include <troupe/actors/decisions/member_table.hpp>

#include <troupe/messages/node.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

using source = member_table::source;
using outcome = member_table::outcome;
using time_point = member_table::time_point;

const auto start = time_point{} + 1h;

cluster_member member(const std::string& address, std::uint64_t beat, std::uint64_t started = 1000) {
  cluster_member result;
  result.address = address;
  result.host = "host";
  result.started = started;
  result.beat = beat;
  result.protocol = protocol_version;
  result.version = "1.0";
  return result;
}

std::string address_of(std::size_t node) {
  return "10.0.0." + std::to_string(node) + ":4000";
}

/// The addresses of those that are, or are not, silent.
std::set<std::string> listed(const member_table& table, time_point now, bool silent = false) {
  std::set<std::string> result;
  for (const auto& each : table.list(now))
    if (each.is_silent == silent)
      result.insert(each.what.address);
  return result;
}

} // namespace

TEST_CASE("a member that beats is listed with what it said last") {
  member_table table;
  CHECK(table.hear(member("a:1", 1), source::itself, start) == outcome::joined);
  auto next = member("a:1", 2);
  next.phase = member_phase::drained;
  CHECK(table.hear(next, source::itself, start + 1s) == outcome::heard);
  const auto list = table.list(start + 3s);
  REQUIRE(list.size() == 1);
  CHECK(list[0] == listed_member{next, false, 2s});
  CHECK(why_unusable(list[0]).find("`troupe resume a:1`") != std::string::npos);
}

TEST_CASE("late and repeated messages change nothing, by whatever way they come") {
  member_table table;
  auto latest = member("a:1", 9);
  latest.pid = 77;
  CHECK(table.hear(latest, source::itself, start) == outcome::joined);
  for (auto beat : {9u, 8u, 1u})
    for (auto from : {source::itself, source::another})
      CHECK(table.hear(member("a:1", beat), from, start + 9s) == outcome::stale);
  const auto list = table.list(start + 9s);
  REQUIRE(list.size() == 1);
  CHECK(list[0].what == latest);
  CHECK(list[0].silent_for == 9s);
}

TEST_CASE("a silent member is reported once, joins again, and is forgotten after minutes") {
  member_table table;
  static_cast<void>(table.hear(member("a:1", 1), source::itself, start));
  CHECK(table.take_silent(start + 10s).empty());
  CHECK(table.take_silent(start + 10'001ms) == std::vector<std::string>{"a:1"});
  CHECK(table.take_silent(start + 20s).empty());
  CHECK(listed(table, start + 20s, true) == std::set<std::string>{"a:1"});
  CHECK(table.to_pass_on(start + 20s).empty());
  CHECK(table.hear(member("a:1", 2), source::itself, start + 21s) == outcome::joined);
  CHECK(listed(table, start + 21s) == std::set<std::string>{"a:1"});
  CHECK(table.take_silent(start + 40s).size() == 1);
  CHECK(table.take_silent(start + 21s + 10min).empty());
  CHECK(table.size() == 1);
  CHECK(table.take_silent(start + 22s + 10min).empty());
  CHECK(table.size() == 0);
}

TEST_CASE("a member whose connection is lost is silent sooner, unless it dials again") {
  member_table table;
  static_cast<void>(table.hear(member("a:1", 1), source::itself, start));
  static_cast<void>(table.hear(member("b:1", 1), source::another, start));
  table.note_loss("a:1", start + 1s);
  // It has no connection here.
  table.note_loss("b:1", start + 1s);
  CHECK(listed(table, start + 3'500ms).size() == 2);
  CHECK(listed(table, start + 3'501ms, true) == std::set<std::string>{"a:1"});
  static_cast<void>(table.hear(member("a:1", 2), source::itself, start + 4s));
  CHECK(listed(table, start + 9s).size() == 2);
}

TEST_CASE("a node that was started again replaces its earlier self at once, and nothing brings that back") {
  member_table table;
  static_cast<void>(table.hear(member("a:1", 500, 1000), source::itself, start));
  CHECK(table.hear(member("a:1", 1, 2000), source::itself, start + 1s) == outcome::joined);
  CHECK(table.hear(member("a:1", 501, 1000), source::another, start + 2s) == outcome::stale);
  CHECK(table.hear(member("a:1", 501, 1000), source::itself, start + 2s) == outcome::stale);
  CHECK(table.list(start + 2s)[0].what.started == 2000);
  // Nor may others say so of one that speaks for itself.
  CHECK(table.hear(member("a:1", 1, 3000), source::another, start + 2s) == outcome::stale);
  // A clock that was set back: once the earlier one is silent.
  CHECK(table.hear(member("a:1", 1, 50), source::itself, start + 12s) == outcome::joined);
}

TEST_CASE("a member that says that it ends is listed as such until it has, and is not reported as silent") {
  member_table table;
  static_cast<void>(table.hear(member("a:1", 1), source::itself, start));
  auto last = member("a:1", 2);
  last.phase = member_phase::leaving;
  CHECK(table.hear(last, source::itself, start + 1s) == outcome::left);
  CHECK(table.list(start + 1s).size() == 1);
  table.note_loss("a:1", start + 1s);
  CHECK(table.list(start + 4s).empty());
  CHECK(table.take_silent(start + 30s).empty());
  CHECK(table.hear(member("a:1", 1, 2000), source::itself, start + 31s) == outcome::joined);
}

TEST_CASE("the number of members is bounded, and the longest silent one makes room") {
  member_table table{{.most = 3}};
  for (auto i = 0u; i < 3; ++i)
    CHECK(table.hear(member(address_of(i), 1), source::itself, start + i * 1s) == outcome::joined);
  CHECK(table.hear(member("x:1", 1), source::itself, start + 3s) == outcome::full);
  CHECK(table.hear(member(address_of(1), 2), source::itself, start + 9s) == outcome::heard);
  CHECK(table.hear(member("x:1", 1), source::itself, start + 11s) == outcome::joined);
  CHECK(table.size() == 3);
  const auto left = table.list(start + 11s);
  CHECK(std::ranges::none_of(left, [](const auto& x) { return x.what.address == address_of(0); }));
}

TEST_CASE("of two lists the later word counts") {
  auto early = listed_member{member("a:1", 4), true, 20s};
  auto late = listed_member{member("a:1", 5), false, 1s};
  const auto other = listed_member{member("b:1", 1), false, 0s};
  CHECK(merge_members({early, other, late}) == std::vector{late, other});
  CHECK(merge_members({late, early}) == std::vector{late});
  early.what.started = 2000;
  CHECK(merge_members({late, early}) == std::vector{early});
}

TEST_CASE("what no node says of itself is rejected") {
  CHECK(validate(member("a:1", 1)));
  for (const auto* address : {"", "a", "a:0", ":1", "a b\n:1"})
    CHECK_FALSE(validate(member(address, 1)));
  auto loud = member("a:1", 1);
  loud.host = std::string(member_text_limit_bytes + 1, 'h');
  CHECK_FALSE(validate(loud));
  auto sly = member("a:1", 1);
  sly.runs = {{"r", "\x1b[2J", 1}};
  CHECK_FALSE(validate(sly));
  auto busy = member("a:1", 1);
  busy.runs.resize(member_list_limit + 1);
  CHECK_FALSE(validate(busy));
  auto painted = member("a:1", 1);
  painted.labels = {{"zone", "\x1b[2J"}};
  CHECK_FALSE(validate(painted));
  auto crowded = member("a:1", 1);
  for (std::size_t i = 0; i <= member_list_limit; ++i)
    crowded.offered.custom.emplace(std::to_string(i), 1);
  CHECK_FALSE(validate(crowded));
}

namespace {

/// Fifty nodes, of which the first three are entry nodes that have joined each other; every other node has joined two
/// of them. Each message may be lost, come late, or twice. Time goes in tenths of a second.
class network {
 public:
  static constexpr std::size_t nodes = 50;
  static constexpr std::size_t entries = 3;

  explicit network(std::uint64_t seed) : random_(seed) {
    for (std::size_t i = 0; i < nodes; ++i)
      begin(i);
  }

  void begin(std::size_t node) {
    living_[node] = {member(address_of(node), 0, ++starts_), random_() % 10};
    if (node < entries)
      tables_[node] = member_table{};
  }
  void kill(std::size_t node) { living_.erase(node); }

  void run(std::chrono::seconds time) {
    for (auto end = now_ + time; now_ < end; now_ += 100ms)
      tick();
  }

  /// Whether all living entry nodes list those that live, and no others, as not silent.
  [[nodiscard]] bool is_settled() const {
    for (const auto& [entry, table] : tables_) {
      if (!living_.contains(entry))
        continue;
      std::set<std::string> wanted;
      for (const auto& [node, what] : living_)
        if (node != entry)
          wanted.insert(address_of(node));
      auto found = listed(table, now_);
      found.erase(address_of(entry));
      if (found != wanted)
        return false;
    }
    return true;
  }

  /// Of a node, in an entry node's list.
  [[nodiscard]] std::uint64_t start_of(std::size_t node, std::size_t entry) const {
    for (const auto& each : tables_.at(entry).list(now_))
      if (each.what.address == address_of(node))
        return each.what.started;
    return 0;
  }
  [[nodiscard]] std::uint64_t last_start() const { return starts_; }

 private:
  struct node {
    cluster_member what;
    std::uint64_t phase = 0;
  };
  struct packet {
    std::size_t to;
    std::vector<std::pair<cluster_member, source>> content;
  };

  void tick() {
    ++ticks_;
    for (auto& [id, each] : living_) {
      if ((ticks_ + each.phase) % 10 != 0)
        continue;
      ++each.what.beat;
      for (std::size_t entry = 0; entry < entries; ++entry)
        if (entry != id && (id < entries || entry == id % entries || entry == (id + 1) % entries))
          send(id, entry);
    }
    for (auto due = flying_.extract(ticks_); due; due = flying_.extract(ticks_))
      for (const auto& [to, content] : due.mapped())
        if (living_.contains(to))
          for (const auto& [what, from] : content)
            static_cast<void>(tables_[to].hear(what, from, now_));
  }

  void send(std::size_t from, std::size_t to) {
    packet result{to, {{living_[from].what, source::itself}}};
    if (from < entries)
      for (const auto& each : tables_[from].to_pass_on(now_))
        if (each.address != address_of(to))
          result.content.emplace_back(each, source::another);
    if (random_() % 5 == 0)
      return;
    fly(result);
    if (random_() % 5 == 0)
      fly(result);
  }

  void fly(const packet& what) {
    const auto delay = random_() % 8 == 0 ? 1 + random_() % 60 : 1 + random_() % 3;
    flying_[ticks_ + delay].push_back(what);
  }

  std::mt19937_64 random_;
  time_point now_ = start;
  std::uint64_t ticks_ = 0;
  std::uint64_t starts_ = 1000;
  std::map<std::size_t, node> living_;
  std::map<std::size_t, member_table> tables_;
  std::map<std::uint64_t, std::vector<packet>> flying_;
};

} // namespace

TEST_CASE(
    "fifty nodes on a network that loses, delays and repeats messages form a cluster, and heal after ten are killed") {
  const auto* given = std::getenv("TROUPE_SEED");
  const auto seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("TROUPE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  network all{seed};
  all.run(30s);
  CHECK(all.is_settled());
  // One of them an entry node.
  for (auto node : {1u, 7u, 11u, 13u, 20u, 25u, 31u, 40u, 41u, 49u})
    all.kill(node);
  all.run(60s);
  CHECK(all.is_settled());
  // Some come again, also the entry node, and are other starts of the same nodes.
  for (auto node : {7u, 13u, 1u})
    all.begin(node);
  all.run(60s);
  CHECK(all.is_settled());
  CHECK(all.start_of(1, 0) == all.last_start());
  CHECK(all.start_of(7, 2) == all.last_start() - 2);
}
