#include "trainer/run_nodes.hpp"

#include <troupe/actors/decisions/resource_sums.hpp>
#include <troupe/actors/error_conversion.hpp>

#include <caf/all.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;

/// Redial interval of a node that is away.
constexpr auto dial_interval = 1s;

/// Redial interval and limit for a node with workers of this run. A new connection succeeds sooner than TCP's
/// backed-off retransmissions.
constexpr auto reconnect_interval = 200ms;
constexpr auto reconnect_limit = 2s;

/// TCP is encrypted unless the network is trusted; NCCL sends clear text.
auto may_carry_gradients(const trainer_config& config, const trainer_services& services) {
  return [is_safe = config.cluster.trusted_network || config.run.transport != transport_mode::nccl,
          is_loopback = services.is_loopback](const std::string& address) {
    return is_safe || is_loopback == nullptr || is_loopback(address);
  };
}

} // namespace

run_nodes::run_nodes(trainer_base& self, node_events& events, const trainer_config& config,
                     const trainer_services& services, run_id run, run_claim claim)
    : self_(&self),
      events_(&events),
      run_(std::move(run)),
      claim_(std::move(claim)),
      links_(self,
             [connect = services.connect_node, cluster = config.cluster](const std::string& address,
                                                                         std::chrono::milliseconds limit) {
               auto limited = cluster;
               limited.connect_timeout = std::min(limited.connect_timeout, limit);
               return connect(limited, address);
             }),
      group_(services.group),
      roster_({config.scaling, may_carry_gradients(config, services), dial_interval, reconnect_interval}),
      monitor_(config.failure.heartbeat_timeout) {
  if (config.cluster.is_embedded())
    add({});
  for (const auto& address : config.cluster.nodes)
    add(address);
}

std::uint32_t run_nodes::add(std::string address) {
  roster_.add(std::move(address));
  links_.add();
  part_addresses_.emplace_back();
  mail_.emplace_back();
  return roster_.size() - 1;
}

void run_nodes::name(const named_node& which) {
  const auto known = roster_.find(which.address);
  const auto node = known ? *known : add(which.address);
  roster_[node].most_workers = which.slots.value_or(node_health::any_number);
  roster_[node].is_wanted = true;
  if (!known)
    dial(node);
}

bool run_nodes::stay(std::uint32_t node) {
  if (roster_[node].state != node_state::leaving)
    return false;
  roster_[node].state = node_state::open;
  return true;
}

void run_nodes::dial_all() {
  for (std::uint32_t i = 0; i < roster_.size(); ++i)
    dial(i);
}

void run_nodes::dial(std::uint32_t node) {
  auto& state = roster_[node].state;
  const auto was_open = state == node_state::cut || state == node_state::fenced;
  if (!was_open)
    state = node_state::dialling;
  links_.dial(node, roster_[node].address, was_open ? reconnect_limit : std::chrono::milliseconds::max());
}

void run_nodes::on_dialled(node_dialled& message) {
  links_.on_dialled(message.node);
  auto& node = roster_[message.node];
  const auto now = clock::now();
  const auto is_first = std::exchange(node.tried, now) == clock::time_point{};
  if (message.connection) {
    links_.accept(message.node, std::move(message.connection));
    if (node.state == node_state::cut)
      return claimed_with_ ? claim(message.node) : adopt(message.node);
    if (node.state == node_state::fenced)
      return readmit(message.node);
    node.offer = {};
    return ask_for_offer(message.node);
  }
  if (node.state == node_state::cut) {
    broken_.on_dialled(message.node,
                       message.reason.code == errc::connection_refused ? broken_links::dial_result::refused
                                                                       : broken_links::dial_result::failed,
                       now);
    return report_broken(now);
  }
  if (node.state == node_state::fenced)
    return;
  if (events_->needs_node(message.node, true))
    return miss(message.node, node_state::away, std::move(message.reason));
  node.state = node_state::away;
  if (is_first)
    events_->notify(severity::warning, "begins without a node: " + message.reason.message);
  events_->on_node_answered();
}

void run_nodes::ask_for_offer(std::uint32_t node) {
  roster_[node].state = node_state::asked;
  self_->request(links_[node]->handle(), node_timeout, offer_request{run_, protocol_version, predecessor_, waits_})
      .then(
          [this, node, link = links_.number_of(node)](node_offer& offer) {
            if (link != links_.number_of(node) || roster_[node].state != node_state::asked)
              return;
            complaints_.erase(node);
            roster_[node].offer = std::move(offer);
            roster_[node].state = node_state::offered;
            opening_ ? open_on(node) : events_->on_node_answered();
          },
          [this, node, link = links_.number_of(node)](const caf::error& reason) {
            fail(node, link, from_caf(reason));
          });
}

void run_nodes::ask_again(const waiting_run& who) {
  waits_ = who;
  for (auto node : roster_.in_state(node_state::offered))
    ask_for_offer(node);
}

void run_nodes::lease(std::map<std::uint32_t, resources> amounts, const waiting_run& who,
                      std::function<void(expected<void>)> done) {
  auto round = std::make_shared<lease_round>(std::move(amounts));
  auto finish = [this, round, who, done = std::move(done)](std::uint32_t node, expected<void> answer) {
    round->on_answer(node, std::move(answer));
    if (!round->is_over())
      return;
    if (!round->refusal())
      return done({});
    for (const auto& [each, amount] : round->amounts())
      if (links_[each] != nullptr)
        caf::anon_send(links_[each]->handle(), lease_request{who.ticket, who.run_name, {}, {}});
    done(troupe::fail(*round->refusal()));
  };
  for (const auto& [node, amount] : round->amounts()) {
    // A node that is to get back what it has leased may have died of what it was asked for.
    const auto gives_back = is_nothing(amount);
    if (links_[node] == nullptr) {
      finish(node, gives_back ? expected<void>{}
                              : troupe::fail(errc::node_lost,
                                             fmt::format("the connection to node {} is gone", name_of(node))));
      continue;
    }
    self_->request(links_[node]->handle(), node_timeout, lease_request{who.ticket, who.run_name, amount, predecessor_})
        .then([finish, node] { finish(node, {}); },
              [this, finish, node, gives_back](const caf::error& reason) {
                if (gives_back)
                  return finish(node, {});
                auto ours = from_caf(reason);
                finish(node, troupe::fail(ours.code, fmt::format("node {}: {}", name_of(node), ours.message)));
              });
  }
}

void run_nodes::open(opening what) {
  opening_ = std::move(what);
  opening_->request.predecessor = predecessor_;
  opening_->request.claim = claim_;
  secret_ = opening_->request.secret;
  for (auto i : roster_.in_state(node_state::offered))
    open_on(i);
}

void run_nodes::open_on(std::uint32_t node) {
  roster_[node].state = node_state::opening;
  ask_for_part_address(node, [this, node] { request_open(node); });
}

void run_nodes::ask_for_part_address(std::uint32_t node, std::function<void()> then) {
  self_->request(opening_->files, caf::infinite, part_address_request{roster_[node].offer.address})
      .then(
          [this, node, then = std::move(then)](std::string& address) {
            part_addresses_[node] = std::move(address);
            then();
          },
          [this, node, link = links_.number_of(node)](const caf::error& reason) {
            // Any other error means that the run is ending.
            if (auto ours = from_caf(reason); ours.code == errc::unreachable)
              fail(node, link, std::move(ours));
          });
}

void run_nodes::request_open(std::uint32_t node) {
  // The node may have been lost meanwhile, or the run may be over.
  if (!opening_ || roster_[node].state != node_state::opening || links_[node] == nullptr)
    return;
  self_
      ->request(links_[node]->handle(), node_timeout, opening_->request, opening_->control, opening_->collectives,
                opening_->store)
      .then(
          [this, node, link = links_.number_of(node)](const run_opened&) {
            if (link != links_.number_of(node) || roster_[node].state != node_state::opening)
              return;
            roster_[node].state = node_state::open;
            // Do not time an embedded node: whatever stalls it stalls its workers too.
            if (!roster_[node].address.empty())
              monitor_.add(node, clock::now());
            mail_[node] = {};
            mail_[node].connect(links_[node]->handle());
            if (group_)
              mail_[node].send(*self_, keep_processes{run_, group_->id, secret_, claim_}, group_->keeper);
            if (missing_.empty())
              return events_->on_node_open(node);
            report_missing();
          },
          [this, node, link = links_.number_of(node)](const caf::error& reason) {
            fail(node, link, from_caf(reason));
          });
}

/// The run cannot begin without this node.
void run_nodes::miss(std::uint32_t node, node_state from_now_on, error reason) {
  monitor_.remove(node);
  mail_[node] = {};
  roster_[node].state = from_now_on;
  roster_[node].tried = clock::now();
  missing_.emplace(node, std::move(reason));
  report_missing();
}

/// Reports together the nodes that the run cannot begin without, once no other may be added to them.
void run_nodes::report_missing() {
  if (missing_.empty() || !roster_.in_state(node_state::opening).empty())
    return;
  auto all = std::exchange(missing_, {});
  auto result = all.begin()->second;
  for (auto each = std::next(all.begin()); each != all.end(); ++each)
    result.message += "\n" + each->second.message;
  events_->on_node_missing(std::move(result));
}

/// A request to this node has failed on this link.
void run_nodes::fail(std::uint32_t node, std::uint64_t link, error reason) {
  if (link != links_.number_of(node))
    return;
  auto text = fmt::format("node {}: {}", name_of(node), reason.message);
  const auto is_late = reason.code == errc::timed_out;
  if (events_->needs_node(node, is_late))
    return miss(node, node_state::refused, {reason.code, std::move(text)});
  auto& state = roster_[node].state;
  if (is_away(state))
    return;
  state = is_late ? node_state::away : node_state::refused;
  roster_[node].tried = clock::now();
  // A node that is drained may be asked for hours.
  if (auto& last = complaints_[node]; std::exchange(last, text) != text)
    events_->notify(severity::warning, text + (is_late ? "; it is asked again" : "; it gets no workers"));
  report_missing();
}

std::optional<std::uint32_t> run_nodes::on_beat(const caf::strong_actor_ptr& sender, clock::time_point now) {
  auto node = links_.find(sender);
  if (!node)
    return std::nullopt;
  if (roster_[*node].state == node_state::fenced) {
    readmit(*node);
    return std::nullopt;
  }
  if (monitor_.heard(*node, now)) {
    if (roster_[*node].state == node_state::silent)
      roster_[*node].state = node_state::open;
    events_->on_node_answers(*node);
  }
  return node;
}

void run_nodes::lose(std::uint32_t node, node_state from_now_on, const std::string& why) {
  broken_.remove(node);
  monitor_.remove(node);
  mail_[node] = {};
  roster_[node].state = from_now_on;
  roster_[node].tried = clock::now();
  events_->on_node_lost(node, why);
  report_missing();
}

void run_nodes::report_broken(clock::time_point now) {
  if (auto nodes = broken_.take_unreachable(now); !nodes.empty())
    events_->on_nodes_silent(nodes);
  for (auto node : broken_.dead(now))
    // If the node lives after all, its workers must end before it is used again.
    lose(node, node_state::fenced,
         fmt::format("nobody listens at {} any more: look at that host and at its caf-node's output", name_of(node)));
}

void run_nodes::give_up(std::uint32_t node) {
  monitor_.remove(node);
  broken_.remove(node);
  mail_[node] = {};
  roster_[node].state = node_state::fenced;
}

/// A node that was given up answers again: ends its old workers, then offers its capacity.
void run_nodes::readmit(std::uint32_t node) {
  if (!readmitted_.insert(node).second)
    return;
  // Processes may take long to end.
  self_->request(links_[node]->handle(), caf::infinite, troupe::end_run{run_, secret_, claim_})
      .then(
          [this, node, link = links_.number_of(node)] {
            readmitted_.erase(node);
            if (!opening_ || link != links_.number_of(node) || roster_[node].state != node_state::fenced)
              return;
            events_->notify(
                severity::warning,
                fmt::format("node {} answers again: its workers have ended, and it takes new ones", name_of(node)));
            ask_for_offer(node);
          },
          // The connection is gone; the next one tries again.
          [this, node](const caf::error&) { readmitted_.erase(node); });
}

void run_nodes::report_silent(clock::time_point now) {
  const auto silent = monitor_.silent(now);
  // One fault often cuts off several nodes. Collect them before deciding which to give up.
  if (monitor_.anyone_quiet(now)) {
    for (const auto& [node, silent_for] : silent)
      monitor_.spare(node);
    return;
  }
  std::map<std::uint32_t, std::string> nodes;
  for (const auto& [node, silent_for] : silent) {
    if (roster_[node].state == node_state::open)
      roster_[node].state = node_state::silent;
    nodes[node] = fmt::format("node {} has said nothing for {} ms: it is frozen, or the network is cut", name_of(node),
                              std::chrono::duration_cast<std::chrono::milliseconds>(silent_for).count());
  }
  if (!nodes.empty())
    events_->on_nodes_silent(nodes);
}

void run_nodes::on_tick(clock::time_point now) {
  report_silent(now);
  report_broken(now);
  for (auto i : roster_.to_try(now))
    if (links_[i] == nullptr && !roster_[i].address.empty())
      dial(i);
    else if (links_[i] != nullptr && roster_[i].state == node_state::away)
      ask_for_offer(i);
    else if (links_[i] != nullptr && roster_[i].state == node_state::fenced)
      readmit(i);
}

void run_nodes::on_down(const node_down& message) {
  if (!links_.is_current(message))
    return;
  auto node = message.node;
  auto text = fmt::format("the connection to node {} is gone", name_of(node));
  links_.disconnect(node);
  if (events_->needs_node(node, true))
    return miss(node, node_state::away, {errc::node_lost, std::move(text)});
  auto& state = roster_[node].state;
  if (state != node_state::leaving)
    text += ": look at that host and at its caf-node's output";
  const auto is_hosted_here = roster_[node].address.empty();
  // Its workers of this run are ended when it answers.
  if (state == node_state::fenced)
    return;
  if (is_hosted_here || (state != node_state::open && state != node_state::silent && state != node_state::cut &&
                         state != node_state::leaving))
    return lose(node, node_state::away, text);
  const auto now = clock::now();
  monitor_.remove(node);
  // A silent node was already reported, and the run may be waiting for it.
  state = node_state::cut;
  broken_.add(node, std::move(text), now);
  dial(node);
}

void run_nodes::start(std::uint32_t node, start_workers message, std::function<void(error)> on_failure) {
  message.secret = secret_;
  message.claim = claim_;
  // No limit: many processes start slowly on a busy host, and run.start_timeout bounds the wait.
  mail_[node].request<workers_started>(
      *self_, [](const workers_started&) {},
      [on_failure = std::move(on_failure)](const caf::error& reason) {
        // The node may have received the request before the connection was lost.
        if (auto ours = from_caf(reason); ours.code != errc::already_exists)
          on_failure(ours);
      },
      std::move(message));
}

void run_nodes::kill(std::uint32_t node, worker_id worker, const std::string& why) {
  mail_[node].send(*self_, kill_worker{run_, worker, why, secret_, claim_});
}

void run_nodes::end_run(std::function<void()> done) {
  opening_.reset();
  missing_.clear();
  std::vector<node_actor> awaited;
  for (std::uint32_t i = 0; i < roster_.size(); ++i) {
    if (links_[i] == nullptr)
      continue;
    // Notify a node that was given up, but do not wait for it.
    if (is_away(roster_[i].state))
      caf::anon_send(links_[i]->handle(), troupe::end_run{run_, secret_, claim_});
    else
      awaited.push_back(links_[i]->handle());
  }
  if (awaited.empty())
    return done();
  auto finish = [left = std::make_shared<std::size_t>(awaited.size()), done = std::move(done)] {
    if (--*left == 0)
      done();
  };
  for (const auto& node : awaited)
    self_->request(node, grace_period, troupe::end_run{run_, secret_, claim_})
        .then(finish, [finish](const caf::error&) { finish(); });
}

void run_nodes::abandon() {
  opening_.reset();
  missing_.clear();
  for (std::uint32_t i = 0; i < roster_.size(); ++i)
    if (links_[i] != nullptr)
      links_.disconnect(i);
}

std::string run_nodes::name_of(std::uint32_t node) const {
  const auto* connection = links_[node];
  return connection != nullptr ? connection->address() : roster_[node].address;
}

} // namespace troupe::actors
