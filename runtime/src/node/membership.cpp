#include "node/membership.hpp"

#include "net/members/member_messages.hpp"
#include "net/members/ticket_desk.hpp"

#include <troupe/config.hpp>
#include <troupe/messages/node.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace troupe::runtime {

namespace {

using actors::member_table;
using nlohmann::json;

/// How long after the last beat of another node this one counts as an entry node.
constexpr auto entry_memory = std::chrono::minutes{1};

/// The longest that a drain waits for replacements: more is a typing error.
constexpr auto most_patience = std::chrono::hours{24 * 7};

std::string host_of(const std::string& address) {
  const auto where = parse_endpoint(address);
  return where ? where->host : std::string{};
}

} // namespace

membership::membership(cluster_member self, std::vector<std::string> entries, log_function log)
    : log_(std::move(log)), entries_(std::move(entries)), self_(std::move(self)) {}

void membership::open(const std::string& address, obey_function obey, services others) {
  const auto lock = std::lock_guard{mutex_};
  obey_ = std::move(obey);
  services_ = std::move(others);
  self_.address = address;
}

void membership::close_services() {
  const auto lock = std::lock_guard{mutex_};
  services_.clear();
}

void membership::set_certificate_expiry(std::optional<std::int64_t> seconds) {
  const auto lock = std::lock_guard{mutex_};
  self_.certificate_expires = seconds;
}

void membership::set_status(member_phase phase, resources free, std::vector<member_run> runs) {
  runs.resize(std::min(runs.size(), member_list_limit));
  const auto lock = std::lock_guard{mutex_};
  // It does not come back from its end.
  if (self_.phase != member_phase::leaving)
    self_.phase = phase;
  self_.free = std::move(free);
  self_.runs = std::move(runs);
}

void membership::leave() {
  const auto lock = std::lock_guard{mutex_};
  self_.phase = member_phase::leaving;
}

const cluster_member& membership::next_self() {
  ++self_.beat;
  return self_;
}

bool membership::is_entry(clock::time_point now) const {
  return joined_at_ && now - *joined_at_ < entry_memory;
}

json membership::answer(const member_peer& peer, const json& question) {
  try {
    const auto what = question.value("ask", std::string{});
    auto service = std::shared_ptr<node_service>{};
    {
      const auto lock = std::lock_guard{mutex_};
      if (self_.address.empty())
        return describe_error({errc::timed_out, "this node is starting: ask again"});
      if (const auto found = services_.find(what); found != services_.end())
        service = found->second;
    }
    if (what == "beat")
      return answer_beat(peer, question);
    if (!includes(peer.role, certificate_role::driver))
      return refuse(peer, {errc::not_authenticated,
                           fmt::format("'{}' takes the role driver, and the certificate of {} has the role {}",
                                       what.substr(0, 20), peer.name, to_string(peer.role))});
    if (what == "members")
      return answer_members();
    if (what == "drain" && !question.at("patience_ms").is_number_unsigned())
      return refuse(peer, {errc::invalid_argument, "a drain needs 'patience_ms', a number of milliseconds from 0"});
    if (what == "drain")
      return obey(peer,
                  {member_command::kind::drain,
                   std::min<std::chrono::milliseconds>(
                       std::chrono::milliseconds{question.at("patience_ms").get<std::uint32_t>()}, most_patience)});
    if (what == "resume")
      return obey(peer, {});
    if (service)
      return service->answer(question);
    return refuse(peer, {errc::unsupported_version,
                         fmt::format("a question that this node (Troupe {}) does not know", self_.version)});
  } catch (const std::exception& x) {
    return refuse(peer, {errc::invalid_argument, fmt::format("not a question about members: {}", x.what())});
  }
}

json membership::refuse(const member_peer& peer, const error& why) {
  auto line = std::optional<std::string>{};
  {
    const auto lock = std::lock_guard{mutex_};
    line = refusals_.add(fmt::format("refused a question of {}: {}", peer.name, why.message), clock::now());
  }
  if (line)
    log(*line);
  return describe_error(why);
}

json membership::answer_beat(const member_peer& peer, const json& beat) {
  if (!includes(peer.role, certificate_role::node))
    return refuse(peer, {errc::not_authenticated,
                         fmt::format("a member takes the role node, and the certificate of {} has the role {}",
                                     peer.name, to_string(peer.role))});
  const auto member = parse_member(beat.value("self", json::object()));
  if (!member)
    return refuse(peer, member.error());
  if (!peer.is_named(host_of(member->address)))
    return refuse(peer, {errc::not_authenticated, fmt::format("it says that it is {}, and its certificate is of {}",
                                                              member->address, peer.name)});
  auto news = std::string{};
  auto result = json::object();
  {
    const auto lock = std::lock_guard{mutex_};
    const auto now = clock::now();
    if (member->address != self_.address) {
      news = hear(*member, member_table::source::itself);
      speakers_[peer.id] = member->address;
      joined_at_ = now;
    }
    if (beat.value("entry", false)) {
      hear_others(beat.value("members", json::array()));
      auto& members = result["members"] = json::array();
      for (const auto& each : table_.to_pass_on(now))
        members.push_back(describe(each));
    }
    result["self"] = describe(next_self());
  }
  if (!news.empty())
    log(news);
  return result;
}

json membership::answer_members() {
  const auto lock = std::lock_guard{mutex_};
  const auto now = clock::now();
  auto result = json{{"self", describe(next_self())}};
  auto& members = result["members"] = json::array();
  for (const auto& each : table_.list(now))
    if (each.what.address != self_.address)
      members.push_back(describe(each));
  members.push_back(describe(listed_member{self_, false, {}}));
  auto& entries = result["entries"] = json::array();
  if (!is_entry(now))
    for (const auto& each : entries_)
      if (each != self_.address)
        entries.push_back(each);
  return result;
}

json membership::obey(const member_peer& peer, const member_command& what) {
  const auto is_repeated = [&] {
    const auto lock = std::lock_guard{mutex_};
    const auto now = std::pair{peer.name, what.what};
    return std::exchange(last_command_, now) == now;
  }();
  // Who waits for the end of a drain asks again and again.
  if (!is_repeated)
    log(fmt::format("{} asks this node to {}", peer.name,
                    what.what == member_command::kind::drain ? "take no more workers" : "take workers again"));
  const auto lock = std::lock_guard{mutex_};
  // It sends a message, and waits for nothing.
  if (obey_)
    obey_(what);
  return {{"self", describe(next_self())}};
}

std::string membership::hear(const cluster_member& member, member_table::source from) {
  using outcome = member_table::outcome;
  switch (table_.hear(member, from, clock::now())) {
  case outcome::joined:
    return fmt::format("{} ({}) has joined{}", member.address, member.host,
                       member.protocol == protocol_version
                           ? ""
                           : fmt::format(", and speaks version {} of the protocol (Troupe {}), this node version {}: "
                                         "install the same Troupe on all hosts",
                                         member.protocol, member.version, protocol_version));
  case outcome::left:
    return {};
  case outcome::full:
    return refusals_
        .add(fmt::format("refused member {}: there are {} already", member.address, table_.size()), clock::now())
        .value_or("");
  case outcome::heard:
  case outcome::stale:
    return {};
  }
  return {};
}

void membership::hear_others(const json& members) {
  for (const auto& each : members)
    if (const auto member = parse_member(each); member && member->address != self_.address)
      // Whoever they have joined has logged it.
      std::ignore = hear(*member, member_table::source::another);
}

void membership::on_end(std::uint64_t peer) {
  const auto lock = std::lock_guard{mutex_};
  if (const auto speaker = speakers_.extract(peer))
    table_.note_loss(speaker.mapped(), clock::now());
}

json membership::next_beat() {
  const auto lock = std::lock_guard{mutex_};
  const auto now = clock::now();
  auto result = json{{"ask", "beat"}, {"self", describe(next_self())}};
  if (!is_entry(now))
    return result;
  result["entry"] = true;
  auto& members = result["members"] = json::array();
  for (const auto& each : table_.to_pass_on(now))
    members.push_back(describe(each));
  return result;
}

expected<membership::entry_kind> membership::take_answer(const json& answer) {
  TROUPE_TRY(const auto member, parse_member(answer.value("self", json::object())));
  const auto lock = std::lock_guard{mutex_};
  if (member.started == self_.started && member.pid == self_.pid && member.address == self_.address)
    return entry_kind::this_node;
  // Where it is dialled is logged by who dials.
  std::ignore = hear(member, member_table::source::itself);
  if (const auto others = answer.find("members"); others != answer.end() && others->is_array())
    hear_others(*others);
  return entry_kind::another;
}

void membership::look() {
  std::vector<std::string> silent;
  {
    const auto lock = std::lock_guard{mutex_};
    silent = table_.take_silent(clock::now());
  }
  for (const auto& each : silent)
    log(fmt::format("{} is silent", each));
}

} // namespace troupe::runtime
