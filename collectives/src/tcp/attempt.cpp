#include "tcp/attempt.hpp"
#include "tcp/error_text.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <sys/socket.h>
#include <utility>

namespace troupe::collectives::tcp {

namespace {

attempt::failed failure_of(refusal why) {
  return {why, std::string{to_string(why)}};
}

std::string name_of(const tcp_options& options, const connection_name& x) {
  return fmt::format("{}/{}/{}>{}/{}", options.tag, options.generation, x.dialler, x.acceptor, x.lane);
}

} // namespace

attempt::attempt(const group& in, unique_fd socket, const address& peer, const connection_name& name,
                 clock::time_point ends_at)
    : group_(in), socket_(std::move(socket)), peer_(peer), ends_at_(ends_at), dialled_(name), wants_to_write_(true) {}

attempt::attempt(const group& in, unique_fd socket, const address& peer, unproven_peers::ticket place,
                 clock::time_point ends_at)
    : group_(in),
      socket_(std::move(socket)),
      peer_(peer),
      stage_(accepting_handshake{in.identity, random_nonce()}),
      ends_at_(ends_at),
      place_(place) {}

int attempt::fd() const {
  const auto* tls = std::get_if<tls_handshake>(&stage_);
  return tls != nullptr ? (*tls)->fd() : socket_.get();
}

attempt::outcome attempt::advance() {
  if (std::holds_alternative<connecting>(stage_))
    if (auto failure = finish_connecting())
      return std::move(*failure);
  if (auto* tls = std::get_if<tls_handshake>(&stage_))
    return shake_hands(*tls);
  if (!flush())
    return failure_of(refusal::closed_early);
  if (wants_to_write_)
    return {};
  return read_message();
}

std::optional<attempt::failed> attempt::finish_connecting() {
  auto code = 0;
  socklen_t size = sizeof(code);
  ::getsockopt(fd(), SOL_SOCKET, SO_ERROR, &code, &size);
  if (code != 0)
    return failed{refusal::none, text_of(code), code};
  auto& handshake =
      stage_.emplace<dialling_handshake>(group_.identity, dialled_->acceptor, dialled_->lane, random_nonce());
  outgoing_.assign(handshake.hello().begin(), handshake.hello().end());
  return {};
}

/// False if the connection has ended.
bool attempt::flush() {
  while (!outgoing_.empty()) {
    const auto sent = ::send(fd(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent < 0) {
      wants_to_write_ = errno == EAGAIN;
      return errno == EAGAIN;
    }
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + sent);
  }
  wants_to_write_ = false;
  return true;
}

attempt::outcome attempt::read_message() {
  const auto wanted = std::visit(
      [](const auto& stage) -> std::size_t {
        if constexpr (requires { stage.wanted_bytes(); })
          return stage.wanted_bytes();
        else
          return 0;
      },
      stage_);
  const auto had = incoming_.size();
  incoming_.resize(wanted);
  const auto got = ::recv(fd(), incoming_.data() + had, wanted - had, 0);
  const auto code = errno;
  incoming_.resize(had + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (got == 0 || (got < 0 && code != EAGAIN && code != EINTR))
    return failure_of(refusal::closed_early);
  if (incoming_.size() < wanted)
    return {};
  const auto message = std::exchange(incoming_, {});
  auto step = std::visit(
      [&](auto& stage) -> handshake_step {
        if constexpr (requires { stage.take(message); })
          return stage.take(message);
        else
          return refused{{}, refusal::garbage};
      },
      stage_);
  return take(std::move(step));
}

attempt::outcome attempt::take(handshake_step step) {
  if (auto* more = std::get_if<goes_on>(&step)) {
    outgoing_ = std::move(more->reply);
    if (!flush())
      return failure_of(refusal::closed_early);
    return {};
  }
  if (auto* no = std::get_if<refused>(&step)) {
    outgoing_ = std::move(no->reply);
    std::ignore = flush();
    return failure_of(no->why);
  }
  auto& yes = std::get<established>(step);
  if (const auto why = dialled_ ? refusal::none : group_.objects(yes.name); why != refusal::none) {
    outgoing_ = accepting_handshake::last_message(why);
    std::ignore = flush();
    return failure_of(why);
  }
  outgoing_ = std::move(yes.reply);
  // Eight bytes on a new connection: the socket takes them.
  if (!flush() || wants_to_write_)
    return failure_of(refusal::closed_early);
  name_ = yes.name;
  if (!group_.options.encrypted)
    return ready{yes.name, make_plain_channel(std::move(socket_))};
  auto made = make_tls_channel(std::move(socket_), dialled_ ? tls_side::client : tls_side::server, yes.key,
                               name_of(group_.options, yes.name));
  if (!made)
    return failed{refusal::tls_failed, made.error().message};
  return shake_hands(stage_.emplace<tls_handshake>(std::move(*made)));
}

attempt::outcome attempt::shake_hands(tls_handshake& tls) {
  switch (tls->shake_hands()) {
  case tls_session::state::wants_read:
    wants_to_write_ = false;
    return {};
  case tls_session::state::wants_write:
    wants_to_write_ = true;
    return {};
  case tls_session::state::failed:
    return failed{refusal::tls_failed, fmt::format("{}: {}", to_string(refusal::tls_failed), tls->channel::why())};
  case tls_session::state::done:
    break;
  }
  // Another connection with the same name may have been faster.
  if (!dialled_)
    if (const auto why = group_.objects(*name_); why != refusal::none)
      return failure_of(why);
  return ready{*name_, std::move(tls)};
}

} // namespace troupe::collectives::tcp
