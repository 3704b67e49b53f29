#include "net/members/ticket_desk.hpp"

#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <sys/resource.h>
#include <utility>

namespace troupe::runtime {

namespace {

using json = nlohmann::json;
using namespace std::chrono_literals;

constexpr std::size_t most_tickets = 512;
constexpr auto lowest_priority = 19;
/// After which an answer that nobody has fetched is forgotten.
constexpr auto answer_lifetime = 60s;

} // namespace

json describe_error(const error& why) {
  return {{"code", static_cast<unsigned>(why.code)}, {"message", why.message}};
}

std::string text_in(const json& question, const char* key) {
  const auto found = question.find(key);
  if (found == question.end() || !found->is_string())
    throw std::invalid_argument{fmt::format("'{}' is missing, or no text", key)};
  return found->get<std::string>();
}

std::uint64_t number_in(const json& question, const char* key) {
  const auto found = question.find(key);
  if (found == question.end() || !found->is_number_unsigned())
    throw std::invalid_argument{fmt::format("'{}' is missing, or no number from 0", key)};
  return found->get<std::uint64_t>();
}

ticket_desk::ticket_desk(std::size_t threads, std::string about, carry_out_function carry_out, desk_priority priority)
    : about_(std::move(about)), carry_out_(std::move(carry_out)), priority_(priority) {
  for (std::size_t i = 0; i < threads; ++i)
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
}

ticket_desk::~ticket_desk() {
  for (auto& each : threads_)
    each.request_stop();
  threads_.clear();
}

json ticket_desk::answer(const json& question) {
  const auto ticket = text_in(question, "ticket");
  const auto lock = std::lock_guard{mutex_};
  const auto now = clock::now();
  if (const auto known = tickets_.find(ticket); known != tickets_.end()) {
    if (!known->second)
      return {{"pending", true}};
    auto answer = std::move(known->second->answer);
    tickets_.erase(known);
    return answer;
  }
  std::erase_if(tickets_, [&](const auto& each) { return each.second && now - each.second->at > answer_lifetime; });
  if (tickets_.size() >= most_tickets)
    return describe_error({errc::busy, fmt::format("this node has {} questions to answer: ask later", most_tickets)});
  tickets_.emplace(ticket, std::nullopt);
  orders_.push_back({ticket, question});
  wake_.notify_one();
  return {{"pending", true}};
}

void ticket_desk::work(const std::stop_token& stop) {
  // Linux changes only the calling thread.
  if (priority_ == desk_priority::after_others)
    ::setpriority(PRIO_PROCESS, 0, lowest_priority);
  auto lock = std::unique_lock{mutex_};
  while (wake_.wait(lock, stop, [&] { return !orders_.empty(); })) {
    const auto next = std::move(orders_.front());
    orders_.pop_front();
    lock.unlock();
    auto answer = carry_out(next.question);
    lock.lock();
    tickets_[next.ticket] = done{std::move(answer), clock::now()};
  }
}

json ticket_desk::carry_out(const json& question) const {
  try {
    auto answer = carry_out_(question);
    return answer ? std::move(*answer) : describe_error(answer.error());
  } catch (const std::exception& x) {
    return describe_error({errc::invalid_argument, fmt::format("not a question about {}: {}", about_, x.what())});
  }
}

} // namespace troupe::runtime
