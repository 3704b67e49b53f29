#include "net/members/ticket_client.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

} // namespace

member_access patient(member_access how) {
  how.limit = std::max<std::chrono::milliseconds>(how.limit, 30s);
  return how;
}

expected<nlohmann::json> ticket_client::ask(nlohmann::json question, std::chrono::milliseconds patience,
                                            const std::stop_token& stop) {
  question["ticket"] = serialization::random_hex(16);
  auto pause = 1ms;
  for (const auto until = clock::now() + patience;; std::this_thread::sleep_for(pause)) {
    TROUPE_TRY(auto answer, ask_once(question, stop));
    if (!answer.value("pending", false))
      return answer;
    if (clock::now() > until)
      return fail(errc::unreachable, fmt::format("the node {} has not done it after {} s", address_,
                                                 std::chrono::duration_cast<std::chrono::seconds>(patience).count()));
    // Its bytes are there, and need not be sent again.
    question.erase("data");
    pause = std::min(pause * 2, 50ms);
  }
}

expected<nlohmann::json> ticket_client::ask_once(const nlohmann::json& question, const std::stop_token& stop) {
  if (stop.stop_requested())
    return fail(errc::aborted, fmt::format("asking the node {} was stopped", address_));
  if (!node_) {
    TROUPE_TRY(auto node, connect_to_node(address_, how_, stop));
    node_.emplace(std::move(node));
  }
  node_->stop_with(stop);
  auto answer = node_->ask(question, how_.limit);
  if (!answer)
    node_.reset();
  return answer;
}

} // namespace troupe::runtime
