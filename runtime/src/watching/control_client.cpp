#include <troupe/runtime/control_client.hpp>

#include <troupe/runtime/control_socket.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <utility>

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto patience = 2s;

tl::unexpected<error> gone() {
  return fail(errc::unreachable, "the run's driver has closed the connection");
}

} // namespace

expected<control_client::json> control_client::ask(const actors::control_request& request,
                                                   std::chrono::milliseconds limit) {
  const auto line = actors::to_line(request) + '\n';
  for (auto rest = std::string_view{line}; !rest.empty();) {
    const auto sent = ::send(stream_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR)
      return gone();
    rest.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
  }
  for (const auto until = clock::now() + limit;;) {
    TROUPE_TRY(auto got, read_line(until));
    if (!got)
      return fail(errc::unreachable, "the run's driver does not answer");
    if (got->contains("event")) {
      events_.push_back(std::move(*got));
      continue;
    }
    if (const auto refusal = got->find("error"); refusal != got->end() && refusal->is_object())
      return fail(refusal->value("code", std::string{}) == "not_authenticated" ? errc::not_authenticated
                                                                               : errc::invalid_argument,
                  refusal->value("message", std::string{"refused"}));
    return got->value("status", json::object());
  }
}

expected<std::optional<control_client::json>> control_client::next_event(std::chrono::milliseconds limit) {
  if (!events_.empty()) {
    auto result = std::move(events_.front());
    events_.pop_front();
    return result;
  }
  return read_line(clock::now() + limit);
}

expected<std::optional<control_client::json>> control_client::read_line(clock::time_point until) {
  for (;;) {
    if (const auto end = in_.find('\n'); end != std::string::npos) {
      auto line = json::parse(in_.substr(0, end), nullptr, false);
      in_.erase(0, end + 1);
      if (!line.is_object())
        return fail(errc::unreachable, "the run's driver answers with something else than JSON");
      return line;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    auto waiting = pollfd{stream_.get(), POLLIN, 0};
    const auto ready = ::poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready == 0)
      return std::optional<json>{};
    std::array<char, 16384> buffer;
    const auto got = ready < 0 ? -1 : ::recv(stream_.get(), buffer.data(), buffer.size(), 0);
    if (got == 0 || (got < 0 && errno != EINTR))
      return gone();
    in_.append(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
}

std::variant<control_client, absent_driver> find_driver(const std::filesystem::path& run) {
  for (const auto until = clock::now() + patience;; std::this_thread::sleep_for(20ms)) {
    auto connected = runtime::connect_to_run(run);
    if (connected)
      return control_client{collectives::unique_fd{*connected}};
    if (connected.error().code == errc::not_authenticated)
      return absent_driver{absence::deaf, "the run belongs to another user: " + connected.error().message};
    auto why = explain_absence(run, connected.error().message);
    if (why.why != absence::deaf || clock::now() > until)
      return why;
  }
}

} // namespace troupe::runtime
