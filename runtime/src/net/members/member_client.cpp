#include "net/members/member_client.hpp"

#include "net/members/member_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <sys/socket.h>

namespace troupe::runtime {

namespace {

/// Memory for an answer is taken as it arrives.
constexpr std::size_t piece_bytes = std::size_t{64} << 10;

void send_at_once(int fd) {
  const auto on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

} // namespace

expected<member_client> member_client::connect(const endpoint& where, const std::shared_ptr<key_source>& keys,
                                               std::chrono::milliseconds limit, std::stop_token stop) {
  const auto deadline = dialling_clock::now() + limit;
  TROUPE_TRY(auto socket, dial(where, deadline, stop));
  send_at_once(socket.get());
  if (!keys) {
    auto plain = byte_channel{std::unique_ptr<tls_session>{}, socket.get()};
    return member_client{where, std::move(socket), std::move(plain), std::move(stop)};
  }
  auto session =
      std::make_unique<tls_session>(keys->current(), tls_role::client, socket.get(), where.host, tls_protocol::members);
  const auto status = complete(socket.get(), deadline, stop, [&] { return session->handshake(); });
  TROUPE_TRY(explain(where, status, *session));
  if (session->protocol() != tls_protocol::members)
    return fail(errc::unsupported_version,
                fmt::format("{} keeps no list of members: it is no caf-node, or one of an older Troupe; install the "
                            "same on all hosts",
                            to_string(where)));
  auto channel = byte_channel{std::move(session), socket.get()};
  return member_client{where, std::move(socket), std::move(channel), std::move(stop)};
}

error member_client::reason_of(tls_status status) const {
  if (stop_.stop_requested())
    return {errc::aborted, "the answer is not wanted any more"};
  if (channel_.session() != nullptr)
    return explain(where_, status, *channel_.session()).error();
  return unreachable(where_, status == tls_status::failed ? "the other end closed the connection; does it run with "
                                                            "--insecure, too?"
                                                          : "it accepts connections but sends nothing");
}

expected<void> member_client::send(const std::string& bytes, dialling_clock::time_point deadline) {
  for (std::size_t done = 0; done < bytes.size();) {
    std::size_t count = 0;
    const auto status = complete(socket_.get(), deadline, stop_,
                                 [&] { return channel_.write(bytes.data() + done, bytes.size() - done, count); });
    if (status != tls_status::done)
      return fail(reason_of(status));
    done += count;
  }
  return {};
}

expected<std::string> member_client::receive(std::size_t size, dialling_clock::time_point deadline) {
  std::string result;
  while (result.size() < size) {
    const auto before = result.size();
    result.resize(std::min(size, before + piece_bytes));
    std::size_t count = 0;
    const auto status = complete(socket_.get(), deadline, stop_,
                                 [&] { return channel_.read(result.data() + before, result.size() - before, count); });
    if (status != tls_status::done)
      return fail(reason_of(status));
    result.resize(before + count);
  }
  return result;
}

expected<nlohmann::json> member_client::ask(const nlohmann::json& question, std::chrono::milliseconds limit) {
  const auto deadline = dialling_clock::now() + limit;
  TROUPE_TRY(send(frame(question), deadline));
  TROUPE_TRY(const auto header, receive(member_header_bytes, deadline));
  TROUPE_TRY(const auto size, text_size(header));
  TROUPE_TRY(const auto text, receive(size, deadline));
  auto answer = parse_text(text);
  if (!answer)
    return answer;
  if (auto refusal = error_in(*answer); refusal.code != errc::none)
    return fail(std::move(refusal));
  return answer;
}

} // namespace troupe::runtime
