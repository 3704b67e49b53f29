#include "trainer/run_nodes.hpp"

#include <troupe/actors/error_conversion.hpp>

#include <caf/all.hpp>
#include <fmt/format.h>

#include <utility>

// How a driver takes over nodes that have workers already: an earlier driver's, or its own after a lost connection.

namespace troupe::actors {

void run_nodes::claim_all(const std::string& secret, const std::map<std::uint32_t, node_offer>& nodes) {
  claimed_with_ = secret;
  secret_ = secret;
  for (const auto& [node, offer] : nodes) {
    inherited_.insert(node);
    roster_[node].offer = offer;
    roster_[node].state = node_state::cut;
    broken_.add(node, "node " + name_of(node) + " does not answer: look at that host and at its caf-node's output",
                clock::now());
  }
  dial_all();
}

void run_nodes::adopt_all(opening what) {
  claimed_with_.reset();
  open(std::move(what));
  for (auto node : inherited_)
    if (links_[node] != nullptr && roster_[node].state == node_state::cut)
      adopt(node);
}

void run_nodes::begin_anew(run_id run) {
  run_ = std::move(run);
  claimed_with_.reset();
  inherited_.clear();
  for (auto node : roster_.in_state(node_state::cut)) {
    broken_.remove(node);
    roster_[node].state = node_state::away;
    if (links_[node] != nullptr)
      ask_for_offer(node);
  }
}

/// Claims a node that may have workers of an earlier driver. It answers with those that live, and keeps their messages.
void run_nodes::claim(std::uint32_t node) {
  self_->request(links_[node]->handle(), node_timeout, claim_run{run_, *claimed_with_, claim_})
      .then(
          [this, node, link = links_.number_of(node)](const run_claimed& answer) {
            if (!claimed_with_ || link != links_.number_of(node))
              return;
            broken_.remove(node);
            events_->on_node_claimed(node, answer.workers);
          },
          [this, node, link = links_.number_of(node)](const caf::error& reason) {
            if (claimed_with_ && link == links_.number_of(node))
              on_refused(node, reason);
          });
}

/// Reconnects a node that may have workers of this run. The workers continue; pending messages are sent again.
void run_nodes::adopt(std::uint32_t node) {
  if (!opening_)
    return;
  if (inherited_.contains(node))
    return ask_for_part_address(node, [this, node] { request_adopt(node); });
  request_adopt(node);
}

void run_nodes::request_adopt(std::uint32_t node) {
  if (!opening_ || links_[node] == nullptr)
    return;
  self_
      ->request(links_[node]->handle(), node_timeout, adopt_run{run_, opening_->request.secret, claim_},
                opening_->control, opening_->collectives, opening_->store)
      .then(
          [this, node, link = links_.number_of(node)](const run_claimed& answer) {
            if (opening_ && link == links_.number_of(node))
              on_adopted(node, answer);
          },
          [this, node, link = links_.number_of(node)](const caf::error& reason) {
            if (opening_ && link == links_.number_of(node))
              on_refused(node, reason);
          });
}

void run_nodes::on_adopted(std::uint32_t node, const run_claimed& answer) {
  auto& state = roster_[node].state;
  if (state == node_state::fenced)
    return readmit(node);
  // Keep an earlier announcement that the node is leaving.
  if (state != node_state::leaving)
    state = node_state::open;
  broken_.remove(node);
  monitor_.add(node, clock::now());
  mail_[node].connect(links_[node]->handle());
  if (inherited_.erase(node) > 0)
    events_->on_node_claimed(node, answer.workers);
  events_->on_node_answers(node);
}

/// A node has refused this driver's claim to the run.
void run_nodes::on_refused(std::uint32_t node, const caf::error& reason) {
  if (!is_refusal(reason))
    return links_.disconnect(node);
  if (from_caf(reason).code == errc::superseded)
    return events_->on_superseded();
  if (roster_[node].state == node_state::fenced)
    return readmit(node);
  inherited_.erase(node);
  lose(node, node_state::asked, "node " + name_of(node) + " was started anew, or has ended its workers");
  ask_for_offer(node);
}

} // namespace troupe::actors
