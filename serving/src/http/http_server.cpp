#include "http/http_server.hpp"

#include "decisions/rate_limiter.hpp"

#include <troupe/runtime/keys.hpp>

#include <array>
#include <cerrno>
#include <csignal>
#include <exception>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace troupe::serving {

namespace {

/// How many connections may wait for a thread.
constexpr std::size_t max_waiting = 64;

void pause_until_stop(int stop_event) {
  auto stop = pollfd{stop_event, POLLIN, 0};
  (void)::poll(&stop, 1, 50);
}

std::string address_of(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "unknown";
  return text.data();
}

owned_descriptor listen_at(const addrinfo& address) {
  auto result = owned_descriptor{
      ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol)};
  const int on = 1;
  if (result.get() < 0 || ::setsockopt(result.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(result.get(), address.ai_addr, address.ai_addrlen) != 0 || ::listen(result.get(), SOMAXCONN) != 0) {
    const auto reason = errno;
    result = owned_descriptor{};
    errno = reason;
  }
  return result;
}

/// At the first of the name's addresses that is possible.
expected<owned_descriptor> listen_at(const listen_config& config) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const auto code = ::getaddrinfo(config.host.c_str(), std::to_string(config.port).c_str(), &hints, &found);
      code != 0)
    return fail(errc::invalid_argument, fmt::format("cannot listen at '{}': {}", config.host, ::gai_strerror(code)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned{found, &::freeaddrinfo};
  auto first_reason = 0;
  for (const auto* each = found; each != nullptr; each = each->ai_next) {
    if (auto result = listen_at(*each); result.get() >= 0)
      return result;
    first_reason = first_reason == 0 ? errno : first_reason;
  }
  errno = first_reason;
  auto reason = system_error(fmt::format("cannot listen at {} port {}", config.host, config.port));
  return first_reason == EADDRINUSE
             ? fail(errc::already_exists, reason.message + ": choose another port, or 0 for a free one")
             : fail(errc::invalid_argument, reason.message);
}

/// The most connections of one source.
std::size_t source_connections(const limits_config& limits, const listen_config& listen) {
  const auto most =
      runtime::is_loopback(listen.host) ? std::numeric_limits<std::size_t>::max() : (limits.max_connections + 1) / 2;
  return limits.max_source_connections.value_or(most);
}

} // namespace

owned_descriptor::~owned_descriptor() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

http_server::http_server(listen_config listen, limits_config limits, request_handler& handler)
    : listen_(std::move(listen)),
      limits_(limits),
      context_{handler, limits_, memory_, is_stopping_},
      memory_(limits.max_total_body_bytes),
      sources_(source_connections(limits, listen_)) {}

http_server::~http_server() {
  if (!accepting_.joinable())
    return;
  (void)drain(std::chrono::milliseconds{0});
  close();
}

expected<void> http_server::open() {
  if (!listen_.certificate.empty()) {
    TROUPE_TRY(tls_, tls_context::load(listen_));
  }
  TROUPE_TRY(listening_, listen_at(listen_));
  stop_event_ = owned_descriptor{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  crowd_event_ = owned_descriptor{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (stop_event_.get() < 0 || crowd_event_.get() < 0)
    return fail(system_error("eventfd"));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    return fail(system_error("getsockname"));
  port_ = ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                          : reinterpret_cast<const sockaddr_in&>(own).sin_port);
  return {};
}

expected<void> http_server::run() {
  try {
    accepting_ = std::thread{[this] { accept_connections(); }};
  } catch (const std::system_error& x) {
    return fail(errc::unsatisfiable, fmt::format("no thread for connections: {}", x.what()));
  }
  return {};
}

std::size_t http_server::connections() const {
  const auto lock = std::lock_guard{mutex_};
  return open_.size();
}

void http_server::accept_connections() {
  for (;;) {
    std::array<pollfd, 2> events{{{listening_.get(), POLLIN, 0}, {stop_event_.get(), POLLIN, 0}}};
    if (::poll(events.data(), events.size(), -1) < 0) {
      pause_until_stop(stop_event_.get());
      events[1].revents = is_stopping_ ? POLLIN : 0;
    }
    if (events[0].revents != 0)
      accept_waiting();
    if (events[1].revents != 0)
      break;
  }
  // What the kernel has accepted is answered, too.
  accept_waiting();
  listening_ = owned_descriptor{};
}

void http_server::accept_waiting() {
  for (;;) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    const auto descriptor =
        ::accept4(listening_.get(), reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor >= 0) {
      try {
        auto address = address_of(peer, size);
        auto source = source_of(address);
        take_in({descriptor, std::move(address), std::move(source)});
      } catch (const std::exception&) {
        // Without memory.
        ::close(descriptor);
      }
      continue;
    }
    // Without descriptors or memory the connection stays where it is, and poll would return at once.
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
      pause_until_stop(stop_event_.get());
    else if (errno == EINTR || errno == ECONNABORTED)
      continue;
    return;
  }
}

void http_server::take_in(accepted connection) {
  const auto descriptor = connection.descriptor;
  auto why_not = std::string_view{};
  {
    const auto lock = std::lock_guard{mutex_};
    if (!sources_.enter(connection.source)) {
      why_not = "this address has as many connections as it may: try again";
    } else {
      const auto has_worker = find_worker();
      if (!has_worker && (waiting_.size() >= max_waiting || workers_.empty())) {
        sources_.leave(connection.source);
        why_not = "the server has as many connections as it may: try again";
      } else {
        waiting_.push_back(std::move(connection));
        update_crowd();
      }
    }
  }
  if (why_not.empty())
    changed_.notify_one();
  else
    turn_away(descriptor, why_not);
}

bool http_server::find_worker() {
  if (free_workers_ > waiting_.size())
    return true;
  if (workers_.size() >= limits_.max_connections)
    return false;
  try {
    workers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    return false;
  }
  ++free_workers_;
  return true;
}

void http_server::turn_away(int descriptor, std::string_view why) {
  const auto refusal = make_retry(503, why);
  const auto text = response_head(refusal, true) + refusal.body;
  // A new connection has room for it. Over TLS there is no answer before a handshake.
  if (!tls_) [[maybe_unused]]
    const auto sent = ::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  context_.handler.sent(refusal.status);
  ::shutdown(descriptor, SHUT_WR);
  ::close(descriptor);
}

void http_server::update_crowd() {
  const auto is_crowded = waiting_.size() > free_workers_;
  if (is_crowded == std::exchange(is_crowded_, is_crowded))
    return;
  if (is_crowded) {
    (void)::eventfd_write(crowd_event_.get(), 1);
  } else {
    eventfd_t taken = 0;
    (void)::eventfd_read(crowd_event_.get(), &taken);
  }
}

bool http_server::leave_place() {
  const auto lock = std::lock_guard{mutex_};
  if (!is_crowded_)
    return false;
  ++free_workers_;
  update_crowd();
  return true;
}

std::optional<http_server::accepted> http_server::next_connection() {
  auto lock = std::unique_lock{mutex_};
  changed_.wait(lock, [this] { return !waiting_.empty() || is_stopping_; });
  --free_workers_;
  if (waiting_.empty())
    return std::nullopt;
  auto result = std::move(waiting_.front());
  waiting_.pop_front();
  open_.insert(result.descriptor);
  update_crowd();
  return result;
}

void http_server::work() noexcept {
  // OpenSSL writes to sockets that a peer has closed.
  sigset_t broken_pipe;
  ::sigemptyset(&broken_pipe);
  ::sigaddset(&broken_pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  while (auto connection = next_connection()) {
    auto has_left_place = false;
    try {
      has_left_place = serve(*connection);
    } catch (...) {
      // Without memory: this connection has been closed.
      context_.handler.sent(500);
    }
    {
      const auto lock = std::lock_guard{mutex_};
      sources_.leave(connection->source);
      free_workers_ += has_left_place ? 0 : 1;
      update_crowd();
    }
    changed_.notify_all();
  }
}

bool http_server::serve(const accepted& accepted) {
  /// Forgets the descriptor before its number can be another connection's.
  struct open_entry {
    http_server& server;
    int descriptor;
    ~open_entry() {
      const auto lock = std::lock_guard{server.mutex_};
      server.open_.erase(descriptor);
    }
  };
  auto has_left_place = false;
  const auto events = interruptions{stop_event_.get(), crowd_event_.get(), [&] {
                                      has_left_place = leave_place();
                                      return has_left_place;
                                    }};
  auto below = make_transport(accepted.descriptor, tls_ ? &*tls_ : nullptr);
  if (below == nullptr) {
    const auto lock = std::lock_guard{mutex_};
    open_.erase(accepted.descriptor);
    ::close(accepted.descriptor);
    return false;
  }
  auto client = connection{std::move(below), accepted.peer, limits_.send_timeout, events};
  const auto entry = open_entry{*this, accepted.descriptor};
  const auto deadline =
      after(std::chrono::steady_clock::now(), std::min(limits_.head_timeout, limits_.receive_timeout));
  if (client.begin(deadline) == wait_outcome::ready)
    serve_requests(client, context_);
  client.end();
  return has_left_place;
}

bool http_server::drain(std::chrono::milliseconds grace) {
  {
    const auto lock = std::lock_guard{mutex_};
    is_stopping_ = true;
  }
  (void)::eventfd_write(stop_event_.get(), 1);
  accepting_.join();
  changed_.notify_all();
  auto lock = std::unique_lock{mutex_};
  return changed_.wait_until(lock, after(std::chrono::steady_clock::now(), grace),
                             [this] { return open_.empty() && waiting_.empty(); });
}

void http_server::close() {
  {
    const auto lock = std::lock_guard{mutex_};
    for (const auto& each : waiting_)
      ::close(each.descriptor);
    waiting_.clear();
    for (auto each : open_)
      ::shutdown(each, SHUT_RDWR);
  }
  for (auto& each : workers_)
    each.join();
  workers_.clear();
}

} // namespace troupe::serving
