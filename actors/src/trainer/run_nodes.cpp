#include "trainer/run_nodes.hpp"

#include <troupe/actors/error_conversion.hpp>

#include <caf/all.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace troupe::actors {

namespace {

/// How often a node that is away is dialled.
constexpr auto dial_interval = std::chrono::seconds{1};

/// Gloo sends clear text.
auto may_carry_gradients(const cluster_config& cluster, const trainer_services& services) {
  return [trusted = cluster.trusted_network, is_loopback = services.is_loopback](const std::string& address) {
    return trusted || is_loopback == nullptr || is_loopback(address);
  };
}

} // namespace

run_nodes::run_nodes(trainer_base& self, node_events& events, const trainer_config& config,
                     const trainer_services& services, run_id run)
    : self_(&self),
      events_(&events),
      run_(std::move(run)),
      links_(self, [connect = services.connect_node,
                    cluster = config.cluster](const std::string& address) { return connect(cluster, address); }),
      roster_({config.scaling, may_carry_gradients(config.cluster, services), dial_interval}),
      monitor_(config.failure.heartbeat_timeout) {
  auto addresses = config.cluster.nodes;
  if (addresses.empty())
    addresses.emplace_back();
  for (auto& address : addresses) {
    roster_.add(std::move(address));
    links_.add();
    part_addresses_.emplace_back();
  }
}

void run_nodes::dial_all() {
  for (std::uint32_t i = 0; i < roster_.size(); ++i)
    dial(i);
}

void run_nodes::dial(std::uint32_t node) {
  roster_[node].state = node_state::dialling;
  links_.dial(node, roster_[node].address);
}

void run_nodes::on_dialled(node_dialled& message) {
  auto& node = roster_[message.node];
  const auto is_first = std::exchange(node.tried, clock::now()) == clock::time_point{};
  if (message.connection) {
    links_.accept(message.node, std::move(message.connection));
    node.offer = {};
    return ask_for_offer(message.node);
  }
  node.state = node_state::away;
  if (events_->needs_node(message.node, true))
    return events_->on_node_missing(std::move(message.reason));
  if (is_first)
    events_->notify(true, "begins without a node: " + message.reason.message);
  events_->on_node_answered();
}

void run_nodes::ask_for_offer(std::uint32_t node) {
  roster_[node].state = node_state::asked;
  self_->request(links_[node]->handle(), node_timeout, offer_request{run_})
      .then(
          [this, node, link = links_.number_of(node)](node_offer& offer) {
            if (link != links_.number_of(node) || roster_[node].state != node_state::asked)
              return;
            roster_[node].offer = std::move(offer);
            roster_[node].state = node_state::offered;
            opening_ ? open_on(node) : events_->on_node_answered();
          },
          [this, node, link = links_.number_of(node)](const caf::error& reason) { fail(node, link, reason); });
}

void run_nodes::open(opening what) {
  opening_ = std::move(what);
  for (auto i : roster_.in_state(node_state::offered))
    open_on(i);
}

void run_nodes::open_on(std::uint32_t node) {
  roster_[node].state = node_state::opening;
  self_->request(opening_->files, caf::infinite, part_address_request{roster_[node].offer.address})
      .then(
          [this, node](std::string& address) {
            part_addresses_[node] = std::move(address);
            request_open(node);
          },
          // Then the run is ending.
          [](const caf::error&) {});
}

void run_nodes::request_open(std::uint32_t node) {
  // It may have been lost meanwhile, or the run may be over.
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
            monitor_.add(node, clock::now());
            events_->on_node_open(node);
          },
          [this, node, link = links_.number_of(node)](const caf::error& reason) { fail(node, link, reason); });
}

/// A node did not do what it was asked for over this link.
void run_nodes::fail(std::uint32_t node, std::uint64_t link, const caf::error& reason) {
  if (link != links_.number_of(node))
    return;
  auto ours = from_caf(reason);
  auto text = fmt::format("node {}: {}", name_of(node), ours.message);
  const auto is_late = ours.code == errc::timed_out;
  if (events_->needs_node(node, is_late))
    return events_->on_node_missing({ours.code, std::move(text)});
  auto& state = roster_[node].state;
  if (is_away(state))
    return;
  state = is_late ? node_state::away : node_state::refused;
  roster_[node].tried = clock::now();
  events_->notify(true, text + (is_late ? "; it is asked again" : "; it gets no workers"));
}

std::optional<std::uint32_t> run_nodes::on_beat(const caf::strong_actor_ptr& sender, clock::time_point now) {
  auto node = links_.find(sender);
  if (!node)
    return std::nullopt;
  if (roster_[*node].state == node_state::fenced) {
    readmit(*node);
    return std::nullopt;
  }
  monitor_.heard(*node, now);
  return node;
}

/// A node that was given up answers again. Its workers of this run are of no use any more, but it has capacity.
void run_nodes::readmit(std::uint32_t node) {
  events_->notify(true, fmt::format("node {} answers again: its workers end, and it takes new ones", name_of(node)));
  roster_[node].state = node_state::asked;
  self_->request(links_[node]->handle(), node_timeout, troupe::end_run{run_})
      .then(
          [this, node, link = links_.number_of(node)] {
            if (link == links_.number_of(node))
              ask_for_offer(node);
          },
          [this, node, link = links_.number_of(node)](const caf::error& reason) { fail(node, link, reason); });
}

void run_nodes::on_tick(clock::time_point now) {
  for (const auto& [node, silent_for] : monitor_.silent(now)) {
    auto text = fmt::format("node {} has said nothing for {} ms: it is frozen, or the network is cut", name_of(node),
                            std::chrono::duration_cast<std::chrono::milliseconds>(silent_for).count());
    if (events_->needs_node(node, true))
      return events_->on_node_missing({errc::node_lost, std::move(text)});
    lose(node, node_state::fenced, text);
  }
  for (auto i : roster_.to_try(now))
    if (links_[i] != nullptr)
      ask_for_offer(i);
    else if (!roster_[i].address.empty())
      dial(i);
}

void run_nodes::on_down(const node_down& message) {
  if (!links_.is_current(message))
    return;
  auto node = message.node;
  auto text = fmt::format("the connection to node {} is gone", name_of(node));
  if (events_->needs_node(node, true))
    return events_->on_node_missing({errc::node_lost, std::move(text)});
  if (roster_[node].state != node_state::leaving)
    text += ": look at that host and at its caf-node's output";
  roster_[node].tried = clock::now();
  lose(node, node_state::away, text);
  links_.disconnect(node);
}

void run_nodes::lose(std::uint32_t node, node_state next, const std::string& why) {
  monitor_.remove(node);
  roster_[node].state = next;
  events_->on_node_lost(node, why);
}

void run_nodes::start(std::uint32_t node, start_workers message, std::function<void(error)> on_failure) {
  self_->request(links_[node]->handle(), node_timeout, std::move(message))
      .then([](const workers_started&) {},
            [on_failure = std::move(on_failure)](const caf::error& reason) { on_failure(from_caf(reason)); });
}

void run_nodes::kill(std::uint32_t node, worker_id worker, const std::string& why) {
  if (links_[node] != nullptr)
    caf::anon_send(links_[node]->handle(), kill_worker{run_, worker, why});
}

void run_nodes::end_run(std::function<void()> done) {
  opening_.reset();
  std::vector<node_actor> awaited;
  for (std::uint32_t i = 0; i < roster_.size(); ++i) {
    if (links_[i] == nullptr)
      continue;
    // A node that is given up is told, and not waited for.
    if (is_away(roster_[i].state))
      caf::anon_send(links_[i]->handle(), troupe::end_run{run_});
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
    self_->request(node, grace_period, troupe::end_run{run_}).then(finish, [finish](const caf::error&) { finish(); });
}

std::string run_nodes::name_of(std::uint32_t node) const {
  const auto* connection = links_[node];
  return connection != nullptr ? connection->address() : roster_[node].address;
}

} // namespace troupe::actors
