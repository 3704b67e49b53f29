#include "trainer/member_watch.hpp"

#include <caf/all.hpp>
#include <fmt/format.h>

#include <exception>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;

/// A member that joins is used within this time.
constexpr auto ask_interval = 1s;

} // namespace

void member_watch::on_tick(clock::time_point now) {
  if (is_asking_ || (asked_ && now - *asked_ < ask_interval))
    return;
  asked_ = now;
  is_asking_ = true;
  self_->system().spawn<caf::detached>([trainer = caf::actor_cast<caf::weak_actor_ptr>(self_->ctrl()), list = list_] {
    members_listed message;
    try {
      if (auto members = list())
        message.members = std::move(*members);
      else
        message.reason = std::move(members.error());
    } catch (const std::exception& x) {
      message.reason = {errc::unreachable, x.what()};
    }
    if (auto strong = trainer.lock())
      caf::anon_send(caf::actor_cast<trainer_interface>(strong), std::move(message));
  });
}

std::vector<std::string> member_watch::take(const members_listed& answer) {
  is_asking_ = false;
  std::vector<std::string> result;
  if (answer.reason.code != errc::none) {
    problem_ = answer.reason.message;
    if (knows_members_ && !std::exchange(is_unreachable_, true))
      result.push_back(
          fmt::format("no entry node of the cluster answers: the run goes on with the nodes that it knows, "
                      "and learns of no others until one does ({})",
                      problem_));
    return result;
  }
  knows_members_ = true;
  problem_.clear();
  if (std::exchange(is_unreachable_, false))
    result.emplace_back("an entry node of the cluster answers again");
  for (const auto& each : answer.members) {
    const auto why = why_unusable(each);
    if (why.empty())
      continue;
    problem_ += fmt::format("{}{}: {}", problem_.empty() ? "" : "; ", each.what.address, why);
    if (each.what.protocol != protocol_version && reported_.insert(each.what.address).second)
      result.push_back(fmt::format("node {} is not used: {}", each.what.address, why));
  }
  return result;
}

} // namespace troupe::actors
