#include "http/http_server.hpp"

#include <troupe/runtime/keys.hpp>

#include <array>
#include <cerrno>
#include <csignal>
#include <fmt/format.h>
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

void signal_event(int descriptor) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(descriptor, &one, sizeof one);
}

std::string address_of(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "unknown";
  return text.data();
}

expected<owned_descriptor> listen_at(const listen_config& config) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const auto code = ::getaddrinfo(config.host.c_str(), std::to_string(config.port).c_str(), &hints, &found);
      code != 0)
    return fail(errc::invalid_argument, fmt::format("cannot listen at '{}': {}", config.host, ::gai_strerror(code)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned{found, &::freeaddrinfo};
  auto result = owned_descriptor{
      ::socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, found->ai_protocol)};
  const int on = 1;
  ::setsockopt(result.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (result.get() < 0 || ::bind(result.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(result.get(), SOMAXCONN) != 0) {
    const auto is_taken = errno == EADDRINUSE;
    auto reason = system_error(fmt::format("cannot listen at {} port {}", config.host, config.port));
    return fail(is_taken ? errc::already_exists : errc::invalid_argument,
                is_taken ? reason.message + ": choose another port, or 0 for a free one" : reason.message);
  }
  return result;
}

} // namespace

owned_descriptor::~owned_descriptor() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

http_server::http_server(listen_config listen, limits_config limits, request_handler& handler)
    : listen_(std::move(listen)), limits_(limits), handler_(handler), budget_(limits.max_total_body_bytes) {}

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
  crowd_event_ = owned_descriptor{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)};
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

void http_server::run() {
  accepting_ = std::thread{[this] { accept_connections(); }};
}

std::size_t http_server::connections() const {
  const auto lock = std::lock_guard{mutex_};
  return open_.size();
}

void http_server::accept_connections() {
  for (;;) {
    std::array<pollfd, 2> events{{{listening_.get(), POLLIN, 0}, {stop_event_.get(), POLLIN, 0}}};
    if (::poll(events.data(), events.size(), -1) < 0 && errno != EINTR)
      return;
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
      take_in({descriptor, address_of(peer, size)});
      continue;
    }
    // Without descriptors or memory the connection stays where it is, and poll would return at once.
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
      (void)await_ready(stop_event_.get(), POLLIN, std::chrono::steady_clock::now() + std::chrono::milliseconds{50});
    else if (errno == EINTR || errno == ECONNABORTED)
      continue;
    return;
  }
}

void http_server::take_in(waiting_connection connection) {
  auto is_crowded = false;
  {
    const auto lock = std::lock_guard{mutex_};
    is_crowded = idle_workers_ <= waiting_.size() && workers_.size() >= limits_.max_connections;
    if (!is_crowded && idle_workers_ <= waiting_.size()) {
      try {
        workers_.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        is_crowded = true;
      }
    }
    if (is_crowded && (waiting_.size() >= max_waiting || workers_.empty())) {
      // Sent without the lock.
    } else {
      waiting_.push_back(std::move(connection));
      connection.descriptor = -1;
    }
  }
  if (connection.descriptor >= 0) {
    turn_away(connection.descriptor);
    return;
  }
  if (is_crowded)
    signal_event(crowd_event_.get());
  changed_.notify_one();
}

void http_server::turn_away(int descriptor) {
  const auto refusal = make_error(503, "the server has as many connections as it may: try again");
  const auto text = fmt::format("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: "
                                "1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}",
                                refusal.body.size(), refusal.body);
  // A new connection has room for it. Over TLS there is no answer before a handshake.
  if (!tls_) [[maybe_unused]]
    const auto sent = ::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  handler_.sent(refusal.status);
  ::shutdown(descriptor, SHUT_WR);
  ::close(descriptor);
}

std::optional<http_server::waiting_connection> http_server::next_connection() {
  auto lock = std::unique_lock{mutex_};
  ++idle_workers_;
  changed_.wait(lock, [this] { return !waiting_.empty() || is_stopping_; });
  --idle_workers_;
  if (waiting_.empty())
    return std::nullopt;
  auto result = std::move(waiting_.front());
  waiting_.pop_front();
  open_.insert(result.descriptor);
  return result;
}

void http_server::work() {
  // OpenSSL writes to sockets that a peer has closed.
  sigset_t broken_pipe;
  ::sigemptyset(&broken_pipe);
  ::sigaddset(&broken_pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  auto engine = http_engine{handler_, limits_, budget_, is_stopping_};
  while (auto connection = next_connection())
    serve(engine, std::move(*connection));
}

void http_server::serve(http_engine& engine, waiting_connection connection) {
  const auto descriptor = connection.descriptor;
  {
    auto stream = connection_stream{make_transport(descriptor, tls_ ? &*tls_ : nullptr), std::move(connection.peer),
                                    limits_.send_timeout};
    auto is_open = stream.below().begin(std::chrono::steady_clock::now() + limits_.receive_timeout);
    while (is_open && await_request(stream)) {
      stream.begin_request(std::chrono::steady_clock::now() + limits_.receive_timeout);
      const auto outcome = engine.serve(stream);
      is_open = stream.flush() && outcome == http_engine::outcome::keep;
      if (outcome == http_engine::outcome::close_unread)
        stream.linger();
    }
    stream.below().end();
    // Before the descriptor's number can be another connection's.
    const auto lock = std::lock_guard{mutex_};
    open_.erase(descriptor);
  }
  changed_.notify_all();
}

bool http_server::await_request(connection_stream& stream) const {
  if (stream.has_buffered())
    return true;
  const auto deadline = std::chrono::steady_clock::now() + limits_.idle_timeout;
  for (;;) {
    std::array<pollfd, 3> events{
        {{stream.below().descriptor(), POLLIN, 0}, {stop_event_.get(), POLLIN, 0}, {crowd_event_.get(), POLLIN, 0}}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    const auto count = ::poll(events.data(), events.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (count < 0 && errno == EINTR)
      continue;
    // A request that has come is answered, whatever else happens.
    if (count > 0 && events[0].revents != 0)
      return true;
    if (count <= 0 || events[1].revents != 0)
      return false;
    std::uint64_t taken = 0;
    if (::read(crowd_event_.get(), &taken, sizeof taken) == sizeof taken)
      return false;
  }
}

bool http_server::drain(std::chrono::milliseconds grace) {
  {
    const auto lock = std::lock_guard{mutex_};
    is_stopping_ = true;
  }
  signal_event(stop_event_.get());
  accepting_.join();
  changed_.notify_all();
  auto lock = std::unique_lock{mutex_};
  return changed_.wait_for(lock, grace, [this] { return open_.empty() && waiting_.empty(); });
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
