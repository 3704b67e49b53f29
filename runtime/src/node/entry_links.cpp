#include "node/entry_links.hpp"

#include "net/members/member_client.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

/// How long a node may take to be connected to and to answer.
constexpr auto entry_timeout = 3s;
constexpr auto farewell_timeout = 500ms;

/// Returns early after a stop request.
void pause(std::chrono::milliseconds time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  auto lock = std::unique_lock{mutex};
  never.wait_for(lock, stop, time, [] { return false; });
}

} // namespace

entry_links::entry_links(std::shared_ptr<membership> members, const std::vector<endpoint>& entries,
                         std::shared_ptr<key_source> keys)
    : members_(std::move(members)), keys_(std::move(keys)) {
  threads_.emplace_back([this](const std::stop_token& stop) {
    for (; !stop.stop_requested(); pause(beat_interval, stop))
      members_->look();
  });
  for (const auto& entry : entries)
    threads_.emplace_back([this, entry](const std::stop_token& stop) { join(entry, stop); });
}

entry_links::~entry_links() {
  members_->leave();
  for (auto& each : threads_)
    each.request_stop();
}

void entry_links::join(const endpoint& entry, const std::stop_token& stop) {
  std::optional<member_client> link;
  // What was logged last, so that a node that stays away is not logged once a second.
  std::string problem = "not joined yet";
  const auto fail_with = [&](const error& why) {
    link.reset();
    if (!stop.stop_requested() && problem != why.message)
      members_->log(fmt::format("has not joined the cluster by {}, and tries again: {}", to_string(entry),
                                problem = why.message));
  };
  for (; !stop.stop_requested(); pause(beat_interval, stop)) {
    if (!link) {
      auto made = member_client::connect(entry, keys_, entry_timeout, stop);
      if (!made) {
        fail_with(made.error());
        continue;
      }
      link.emplace(std::move(*made));
    }
    auto kind = link->ask(members_->next_beat(), entry_timeout).and_then([this](const nlohmann::json& answer) {
      return members_->take_answer(answer);
    });
    if (!kind) {
      fail_with(kind.error());
      continue;
    }
    // Where all nodes have one list of entry nodes, it names the entry nodes themselves, too.
    if (*kind == membership::entry_kind::this_node)
      return;
    if (!std::exchange(problem, {}).empty())
      members_->log(fmt::format("has joined the cluster by {}", to_string(entry)));
  }
  if (!link)
    return;
  link->stop_with({});
  std::ignore = link->ask(members_->next_beat(), farewell_timeout);
}

} // namespace troupe::runtime
