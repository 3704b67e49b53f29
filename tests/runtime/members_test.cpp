#include "listening_node.hpp"
#include "net/members/member_client.hpp"
#include "net/members/member_messages.hpp"
#include "node/membership.hpp"

#include <troupe/runtime/members.hpp>
#include <troupe/runtime/node_host.hpp>

#include <processes.hpp>
#include <scratch_directory.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

/// Nodes that say who they are, and who may ask them.
namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::becomes_true;
using testing::hang_limit;

cluster_member sample() {
  cluster_member result;
  result.address = "10.0.0.7:4000";
  result.host = "host-a";
  result.started = 1'700'000'000'000;
  result.beat = 41;
  result.protocol = protocol_version;
  result.version = "1.2.3";
  result.pid = 4711;
  result.offered = {16, 4, 1ull << 40, {{"licence", 3}}};
  result.free = {16, 2, 1ull << 39, {{"licence", 1}}};
  result.labels = {{"kind", "serving"}, {"zone", "a"}};
  result.phase = member_phase::drained;
  result.runs = {{"0123", "digits", 2}, {"4567", "gpt", 1}};
  result.certificate_expires = 1'800'000'000;
  return result;
}

std::shared_ptr<membership> make_membership(const std::string& address, std::vector<std::string> entries = {}) {
  auto self = sample();
  self.phase = member_phase::available;
  auto result = std::make_shared<membership>(self, std::move(entries), membership::log_function{});
  result->open(address, {}, {});
  return result;
}

member_peer peer(certificate_role role = certificate_role::both, std::uint64_t id = 1) {
  return {id, "somebody", role, [](const std::string& host) { return host != "10.9.9.9"; }};
}

json beat_of(const std::string& address, std::uint64_t beat = 1) {
  auto self = sample();
  self.address = address;
  self.beat = beat;
  return {{"ask", "beat"}, {"self", describe(self)}};
}

std::set<std::string> addresses_in(const json& answer) {
  std::set<std::string> result;
  for (const auto& each : answer.value("members", json::array()))
    result.insert(each.at("address").get<std::string>());
  return result;
}

} // namespace

TEST_CASE("a member comes back from its text, also with fields of a later version") {
  auto text = describe(sample());
  CHECK(parse_member(text) == sample());
  text["colour"] = "blue";
  CHECK(parse_member(text) == sample());
  text["phase"] = "repainted";
  CHECK(parse_member(text)->phase == member_phase::drained);
  const auto listed = listed_member{sample(), true, 12'345ms};
  CHECK(parse_listed(describe(listed)) == listed);
  for (const auto* field : {"address", "started", "beat", "protocol", "version", "offered", "phase"}) {
    auto lacking = describe(sample());
    lacking.erase(field);
    CHECK_FALSE(parse_member(lacking));
    lacking[field] = json::array({1});
    CHECK_FALSE(parse_member(lacking));
  }
  // Of an earlier version.
  auto earlier = describe(sample());
  earlier.erase("labels");
  earlier["offered"] = {{"cpus", 16U}, {"gpus", 4}};
  CHECK(parse_member(earlier)->labels.empty());
  CHECK(parse_member(earlier)->offered == resources{16, 4});
}

TEST_CASE("texts come in two pieces, and what is none ends the connection") {
  auto service = make_membership("10.0.0.7:4000");
  const auto question = frame({{"ask", "members"}});
  {
    member_session session{service, peer()};
    for (auto i = 0; i < 2; ++i) {
      REQUIRE(session.wanted_bytes() == member_header_bytes);
      CHECK(session.take(question.substr(0, 4)) == std::string{});
      REQUIRE(session.wanted_bytes() == question.size() - 4);
      const auto answer = session.take(question.substr(4));
      REQUIRE(answer);
      CHECK(text_size(*answer) == answer->size() - 4);
      CHECK(addresses_in(value_or_throw(parse_text(answer->substr(4)))) == std::set<std::string>{"10.0.0.7:4000"});
    }
  }
  for (const auto& header : {std::string(4, '\0'), std::string("\xff\xff\xff\xff"), std::string("\0\x80\0\1", 4)}) {
    member_session session{service, peer()};
    CHECK_FALSE(session.take(header));
  }
  for (const auto* text : {"x", "[]", "3", "{\"ask\":"}) {
    member_session session{service, peer()};
    REQUIRE(session.take(frame(json{}).substr(0, 3) + static_cast<char>(std::string{text}.size())));
    CHECK_FALSE(session.take(text));
  }
}

TEST_CASE("a text's bytes arrive as they are") {
  for (std::size_t size = 1; size < 600; ++size) {
    std::string bytes;
    for (std::size_t i = 0; i < size; ++i)
      bytes += static_cast<char>(i + size);
    const auto sent = frame({{"data", as_data(bytes)}, {"offset", 7}});
    CHECK(text_size(sent) == sent.size() - member_header_bytes);
    const auto text = value_or_throw(parse_text(std::string_view{sent}.substr(member_header_bytes)));
    CHECK(data_of(text) == bytes);
    CHECK(text.at("offset") == 7);
  }
  CHECK(data_of(value_or_throw(parse_text(std::string_view{frame({{"data", as_data("")}})}.substr(4)))).empty());
  CHECK(data_of(value_or_throw(parse_text("{}"))).empty());
  CHECK(data_of(value_or_throw(parse_text(R"({"data": "text"})"))).empty());
  CHECK_FALSE(parse_text(std::string_view{"\0{}", 3}));
  CHECK_FALSE(parse_text(std::string_view{"[]\0x", 4}));
}

TEST_CASE("nodes may only say who they are, and drivers only ask") {
  auto service = make_membership("10.0.0.7:4000");
  const auto code_of = [&](certificate_role role, const json& question) {
    return error_in(service->answer(peer(role), question)).code;
  };
  CHECK(code_of(certificate_role::node, beat_of("10.0.0.8:4000")) == errc::none);
  CHECK(code_of(certificate_role::driver, beat_of("10.0.0.8:4000")) == errc::not_authenticated);
  CHECK(code_of(certificate_role::node, beat_of("10.9.9.9:4000")) == errc::not_authenticated);
  for (const auto& question :
       {json{{"ask", "members"}}, json{{"ask", "drain"}, {"patience_ms", 1U}}, json{{"ask", "resume"}}}) {
    CHECK(code_of(certificate_role::node, question) == errc::not_authenticated);
    CHECK(code_of(certificate_role::driver, question) == errc::none);
    CHECK(code_of(certificate_role::both, question) == errc::none);
  }
  CHECK(code_of(certificate_role::driver, {{"ask", "open_run"}}) == errc::unsupported_version);
  for (const auto& wrong :
       {json::object(), json{{"ask", 3}}, json{{"ask", "drain"}}, json{{"ask", "drain"}, {"patience_ms", -1}}})
    CHECK(code_of(certificate_role::driver, wrong) != errc::none);
  for (const auto& wrong :
       {json{{"ask", "beat"}}, json{{"ask", "beat"}, {"self", 3}}, json{{"ask", "beat"}, {"self", json::object()}}})
    CHECK(code_of(certificate_role::node, wrong) == errc::invalid_argument);
}

TEST_CASE("an entry node passes its list on to entry nodes alone, and names no others") {
  auto entry = make_membership("10.0.0.7:4000", {"10.0.0.5:4000", "10.0.0.7:4000"});
  // Nobody has joined it yet: who asks it is sent on.
  CHECK(entry->answer(peer(), {{"ask", "members"}})["entries"] == json{"10.0.0.5:4000"});
  const auto answer = entry->answer(peer(), beat_of("10.0.0.8:4000"));
  CHECK(addresses_in(answer).empty());
  CHECK(answer.at("self").at("address") == "10.0.0.7:4000");
  auto from_entry = beat_of("10.0.0.5:4000");
  from_entry["entry"] = true;
  from_entry["members"] = {describe(sample()), beat_of("10.0.0.6:4000")["self"], 3, json::object()};
  CHECK(addresses_in(entry->answer(peer(certificate_role::both, 2), from_entry)) ==
        std::set<std::string>{"10.0.0.5:4000", "10.0.0.6:4000", "10.0.0.8:4000"});
  const auto list = entry->answer(peer(), {{"ask", "members"}});
  CHECK(addresses_in(list) ==
        std::set<std::string>{"10.0.0.5:4000", "10.0.0.6:4000", "10.0.0.7:4000", "10.0.0.8:4000"});
  CHECK(list["entries"] == json::array());
  CHECK(entry->next_beat().value("entry", false));
}

TEST_CASE("damaged texts are refused, and harm nobody") {
  const auto* given = std::getenv("TROUPE_SEED");
  const auto seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("TROUPE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  auto random = std::mt19937_64{seed};
  auto service = make_membership("10.0.0.7:4000");
  auto whole = beat_of("10.0.0.8:4000");
  whole["entry"] = true;
  whole["members"] = {beat_of("10.0.0.6:4000")["self"]};
  const auto good = frame(whole);
  auto answers = 0;
  for (auto round = 0; round < 5000; ++round) {
    auto bytes = good;
    for (auto flips = 1 + random() % 4; flips > 0; --flips)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    member_session session{service, peer(certificate_role::both, 100 + static_cast<std::uint64_t>(round))};
    if (session.take(std::string_view{bytes}.substr(0, 4)) && session.wanted_bytes() <= bytes.size() - 4)
      answers += session.take(std::string_view{bytes}.substr(4, session.wanted_bytes())).has_value() ? 1 : 0;
  }
  CHECK(answers > 0);
  CHECK(service->answer(peer(), {{"ask", "members"}}).contains("self"));
}

namespace {

/// An authority, and the files of an entry node on 127.0.0.1.
struct cluster {
  cluster() {
    REQUIRE(init_cluster_ca(top()));
    node_keys = make({"127.0.0.1"});
    service = make_membership("127.0.0.1:4000");
    host.emplace(node_keys);
    node = actors::spawn_node(host->get(), {"here", "127.0.0.1", {4, 0}, {}},
                              [](const auto&) { return std::make_unique<idle_launcher>(); });
    auto source = key_source::make(node_keys);
    REQUIRE(source);
    auto port = publish(node, {"127.0.0.1", 0}, std::move(*source), service);
    REQUIRE(port);
    where = {"127.0.0.1", *port};
  }
  ~cluster() { caf::anon_send_exit(node, caf::exit_reason::user_shutdown); }

  [[nodiscard]] std::filesystem::path top() const { return scratch.path() / "keys"; }

  tls_files make(const certificate_request& what) const { return value_or_throw(issue_certificate(top(), what)); }

  expected<json> ask(const tls_files& with, const json& question) const {
    auto keys = value_or_throw(key_source::make(with));
    TROUPE_TRY(auto client, member_client::connect(where, keys, hang_limit));
    return client.ask(question, hang_limit);
  }

  testing::scratch_directory scratch;
  tls_files node_keys;
  std::shared_ptr<membership> service;
  std::optional<system_host> host;
  actors::node_actor node;
  endpoint where;
};

} // namespace

TEST_CASE_FIXTURE(cluster, "over TLS a node's certificate joins under its own name, and nothing else") {
  const auto other = make({"127.0.0.2"});
  CHECK(ask(other, beat_of("127.0.0.2:4000")));
  const auto impostor = ask(other, beat_of("127.0.0.1:5000"));
  REQUIRE_FALSE(impostor);
  CHECK(impostor.error().code == errc::not_authenticated);
  CHECK(impostor.error().message.find("it says that it is 127.0.0.1:5000, and its certificate is of 127.0.0.2") !=
        std::string::npos);
  for (const auto* what : {"members", "resume", "drain"}) {
    const auto refused = ask(other, {{"ask", what}, {"patience_ms", 1U}});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == errc::not_authenticated);
  }
  // What CAF carries stays closed to it.
  system_host here{other};
  auto command = connect(here.get(), where, hang_limit);
  REQUIRE_FALSE(command);
  CHECK(command.error().code == errc::not_authenticated);
  // A driver may ask, and may not join.
  const auto driver = make({"driver", certificate_role::driver});
  const auto list = ask(driver, {{"ask", "members"}});
  REQUIRE_MESSAGE(list, list.error().message);
  CHECK(addresses_in(*list) == std::set<std::string>{"127.0.0.1:4000", "127.0.0.2:4000"});
  CHECK_FALSE(ask(driver, beat_of("127.0.0.1:4001")));
}

TEST_CASE_FIXTURE(cluster, "a peer of another authority, with a revoked certificate or without a role is refused") {
  cluster others;
  const auto foreign = ask(others.make({"127.0.0.3"}), beat_of("127.0.0.3:4000"));
  REQUIRE_FALSE(foreign);
  CHECK(foreign.error().code == errc::not_authenticated);
  const auto revoked = make({"127.0.0.4"});
  std::filesystem::copy_file(revoked.key, scratch.path() / "key");
  std::filesystem::copy_file(revoked.certificate, scratch.path() / "certificate");
  REQUIRE(revoke_certificates(top(), "127.0.0.4"));
  auto copy = revoked;
  copy.key = scratch.path() / "key";
  copy.certificate = scratch.path() / "certificate";
  const auto gone = ask(copy, beat_of("127.0.0.4:4000"));
  REQUIRE_FALSE(gone);
  CHECK(gone.error().code == errc::not_authenticated);
}

TEST_CASE_FIXTURE(cluster, "an open connection ends when its peer is revoked, and with the node") {
  const auto other = make({"127.0.0.2"});
  auto client = value_or_throw(member_client::connect(where, value_or_throw(key_source::make(other)), hang_limit));
  REQUIRE(client.ask(beat_of("127.0.0.2:4000"), hang_limit));
  SUBCASE("revoked") {
    REQUIRE(revoke_certificates(top(), "127.0.0.2"));
    std::uint64_t beat = 1;
    CHECK(becomes_true([&] { return !client.ask(beat_of("127.0.0.2:4000", ++beat), hang_limit); }));
  }
  SUBCASE("unpublished") {
    unpublish(node, where.port);
    CHECK(becomes_true([&] { return !client.ask(beat_of("127.0.0.2:4000", 2), hang_limit); }));
  }
}

namespace {

/// Nodes in this process, with this machine's keys. Their threads are real, and so are their connections.
class light_cluster {
 public:
  explicit light_cluster(bool insecure = false) : insecure_(insecure) {}

  /// Starts a node that joins these; returns its address.
  std::string start(const std::vector<std::string>& entries = {}) {
    node_options options;
    options.keys = scratch_.path();
    options.cpus = 2;
    options.gpus = 0;
    options.insecure = insecure_;
    if (insecure_)
      options.program_directory = scratch_.path();
    for (const auto& each : entries)
      options.join.push_back(value_or_throw(parse_endpoint(each)));
    auto node = value_or_throw(node_host::start(options));
    auto address = to_string(node.address());
    nodes_.emplace_back(address, std::make_unique<node_host>(std::move(node)));
    return address;
  }

  void stop(const std::string& address) {
    std::erase_if(nodes_, [&](const auto& x) { return x.first == address; });
  }

  [[nodiscard]] std::set<std::string> living() const {
    std::set<std::string> result;
    for (const auto& each : nodes_)
      result.insert(each.first);
    return result;
  }

  [[nodiscard]] member_access access() const { return {scratch_.path(), insecure_, 5s}; }

  /// Whether this node lists those that live, and no others.
  [[nodiscard]] bool lists_all(const std::string& entry) const {
    const auto members = list_members({entry}, access());
    if (!members)
      return false;
    std::set<std::string> result;
    for (const auto& each : *members)
      if (!each.is_silent && each.what.phase != member_phase::leaving)
        result.insert(each.what.address);
    return result == living();
  }

 private:
  testing::scratch_directory scratch_;
  bool insecure_;
  std::vector<std::pair<std::string, std::unique_ptr<node_host>>> nodes_;
};

} // namespace

TEST_CASE("nodes that join each other become a cluster, whichever of them is asked") {
  auto insecure = false;
  SUBCASE("with keys") {}
  SUBCASE("without TLS") {
    insecure = true;
  }
  light_cluster all{insecure};
  const auto first = all.start();
  const auto second = all.start({first});
  const auto third = all.start({first, second});
  const auto fourth = all.start({second});
  for (const auto& each : {first, second, third, fourth})
    CHECK(becomes_true([&] { return all.lists_all(each); }));
  all.stop(third);
  for (const auto& each : {first, second, fourth})
    CHECK(becomes_true([&] { return all.lists_all(each); }));
  all.start({first});
  CHECK(becomes_true([&] { return all.lists_all(second); }));
}

TEST_CASE("a node is drained and resumed, and its list says so") {
  light_cluster all;
  const auto entry = all.start();
  const auto other = all.start({entry});
  CHECK(becomes_true([&] { return all.lists_all(entry); }));
  const auto phase_of = [&](const std::string& address) {
    const auto members = value_or_throw(list_members({entry}, all.access()));
    const auto found = std::ranges::find(members, address, [](const listed_member& x) { return x.what.address; });
    REQUIRE(found != members.end());
    return found->what.phase;
  };
  CHECK(drain_node(other, 10s, all.access()));
  CHECK(becomes_true([&] { return phase_of(other) == member_phase::drained; }));
  CHECK(phase_of(entry) == member_phase::available);
  CHECK(resume_node(other, all.access()));
  CHECK(becomes_true([&] { return phase_of(other) == member_phase::available; }));
  const auto nobody = list_members({"127.0.0.1:1", "127.0.0.1:2"}, all.access());
  REQUIRE_FALSE(nobody);
  CHECK(nobody.error().message.starts_with("none of the 2 entry nodes answers"));
}

} // namespace troupe::runtime
