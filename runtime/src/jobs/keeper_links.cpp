#include "jobs/keeper_links.hpp"

#include "net/members/member_client.hpp"
#include "net/members/member_questions.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <optional>
#include <utility>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

constexpr auto interval = 1s;
/// Between two looks for other keepers.
constexpr auto look_interval = 200ms;
/// Between two questions whether an answer is there.
constexpr auto poll_interval = 20ms;

/// Returns early after a stop request.
void pause(std::chrono::milliseconds time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  auto lock = std::unique_lock{mutex};
  never.wait_for(lock, stop, time, [] { return false; });
}

} // namespace

keeper_links::keeper_links(job_host& jobs, member_access how)
    : jobs_(jobs), how_(std::move(how)), looks_([this](const std::stop_token& stop) { look(stop); }) {}

keeper_links::~keeper_links() {
  looks_ = {};
  for (auto& [address, thread] : peers_)
    thread.request_stop();
}

void keeper_links::look(const std::stop_token& stop) {
  for (; !stop.stop_requested(); pause(look_interval, stop)) {
    const auto wanted = jobs_.other_keepers();
    std::erase_if(peers_, [&](const auto& each) { return !wanted.contains(each.first); });
    for (const auto& address : wanted)
      if (!peers_.contains(address))
        peers_.emplace(address,
                       std::jthread{[this, address](const std::stop_token& its_stop) { talk(address, its_stop); }});
  }
}

void keeper_links::talk(const std::string& address, const std::stop_token& stop) {
  std::optional<member_client> link;
  auto problem = std::string{};
  const auto fail_with = [&](const error& why) {
    link.reset();
    if (!stop.stop_requested() && std::exchange(problem, why.message) != why.message)
      jobs_.say(fmt::format("cannot tell {} about jobs: {}", address, why.message));
  };
  for (; !stop.stop_requested(); pause(interval, stop)) {
    if (!link) {
      auto made = connect_to_node(address, how_, stop);
      if (!made) {
        fail_with(made.error());
        continue;
      }
      link.emplace(std::move(*made));
    }
    auto question = jobs_.beat_for(address);
    question.update({{"ask", "job"}, {"do", "beat"}, {"ticket", serialization::random_hex(16)}});
    auto answer = link->ask(question, how_.limit);
    for (const auto until = std::chrono::steady_clock::now() + how_.limit;
         answer && answer->value("pending", false) && std::chrono::steady_clock::now() < until;) {
      pause(poll_interval, stop);
      answer = link->ask(question, how_.limit);
    }
    if (!answer) {
      fail_with(answer.error());
      continue;
    }
    problem.clear();
    jobs_.on_told(address, question);
    jobs_.take_beat(*answer);
  }
}

} // namespace troupe::runtime
