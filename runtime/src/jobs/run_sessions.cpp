#include "jobs/run_sessions.hpp"

#include <fmt/format.h>

#include <utility>

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto idle_limit = 60s;
constexpr auto event_patience = 250ms;
constexpr std::size_t most_sessions = 256;
constexpr std::size_t most_events = 256;

std::string text_of(const nlohmann::ordered_json& line) {
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace

std::variant<std::uint64_t, absent_driver> run_sessions::open(const std::filesystem::path& run) {
  auto found = find_driver(run);
  if (auto* absent = std::get_if<absent_driver>(&found))
    return std::move(*absent);
  const auto lock = std::lock_guard{mutex_};
  std::erase_if(sessions_, [](const auto& each) { return clock::now() - each.second->used > idle_limit; });
  if (sessions_.size() >= most_sessions)
    return absent_driver{absence::deaf,
                         fmt::format("{} others watch runs of this node: try again later", sessions_.size())};
  sessions_.emplace(++last_, std::make_shared<connection>(std::get<control_client>(std::move(found))));
  return last_;
}

expected<std::shared_ptr<run_sessions::connection>> run_sessions::find(std::uint64_t session) {
  const auto lock = std::lock_guard{mutex_};
  const auto found = sessions_.find(session);
  if (found == sessions_.end())
    return fail(errc::not_found, "this connection to the run has ended");
  found->second->used = clock::now();
  return found->second;
}

expected<std::string> run_sessions::request(std::uint64_t session, std::string_view line) {
  TROUPE_TRY(const auto request, actors::parse_control_request(line));
  TROUPE_TRY(const auto connection, find(session));
  const auto lock = std::lock_guard{connection->mutex};
  const auto status = connection->driver.ask(request);
  if (status)
    return actors::answer_line(request, *status);
  if (status.error().code == errc::unreachable)
    return fail(status.error());
  return actors::error_line(status.error());
}

expected<run_sessions::news> run_sessions::events(std::uint64_t session) {
  TROUPE_TRY(const auto connection, find(session));
  const auto lock = std::lock_guard{connection->mutex};
  news result;
  for (auto patience = event_patience; result.lines.size() < most_events; patience = 0ms) {
    const auto event = connection->driver.next_event(patience);
    if (!event) {
      result.has_ended = true;
      const auto all = std::lock_guard{mutex_};
      sessions_.erase(session);
      break;
    }
    if (!*event)
      break;
    result.lines.push_back(text_of(**event));
  }
  return result;
}

} // namespace troupe::runtime
