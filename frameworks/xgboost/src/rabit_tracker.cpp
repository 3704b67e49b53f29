#include "rabit_tracker.hpp"
#include "rabit_links.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace troupe::xgboost {

namespace {

using namespace std::chrono_literals;
using collectives::unique_fd;
using time = std::chrono::steady_clock::time_point;

constexpr std::int32_t magic = 0xff99;
/// A connecting worker must identify itself within this time.
constexpr auto introduction_limit = 5s;
constexpr std::int32_t longest_text = 1024;

/// Waits until `fd` is readable or writable; false at the deadline, and once `wake` is readable.
bool wait_for(int fd, short events, int wake, time deadline) {
  for (;;) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entries[] = {{fd, events, 0}, {wake, POLLIN, 0}};
    auto ready = ::poll(entries, 2, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000)));
    if (ready > 0)
      return entries[1].revents == 0;
    if (ready == 0 || errno != EINTR)
      return false;
  }
}

/// One worker's connection, read and written in whole words and texts. After an error `good()` is false, and reads
/// return zeros.
class words {
 public:
  words(int fd, int wake, time deadline) : fd_(fd), wake_(wake), deadline_(deadline) {}

  [[nodiscard]] bool good() const noexcept { return good_; }

  std::int32_t read() {
    std::int32_t value = 0;
    transfer(&value, sizeof value, POLLIN);
    return good_ ? value : 0;
  }

  std::string read_text() {
    auto size = read();
    good_ = good_ && size >= 0 && size <= longest_text;
    std::string result(good_ ? static_cast<std::size_t>(size) : 0, '\0');
    transfer(result.data(), result.size(), POLLIN);
    return result;
  }

  void write(std::int32_t value) { transfer(&value, sizeof value, POLLOUT); }

  void write_text(std::string text) {
    write(static_cast<std::int32_t>(text.size()));
    transfer(text.data(), text.size(), POLLOUT);
  }

 private:
  void transfer(void* data, std::size_t bytes, short direction) {
    auto* at = static_cast<char*>(data);
    while (good_ && bytes > 0) {
      good_ = wait_for(fd_, direction, wake_, deadline_);
      if (!good_)
        return;
      auto done = direction == POLLIN ? ::recv(fd_, at, bytes, MSG_DONTWAIT)
                                      : ::send(fd_, at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (done < 0 && (errno == EAGAIN || errno == EINTR))
        continue;
      good_ = done > 0;
      at += std::max<ssize_t>(done, 0);
      bytes -= static_cast<std::size_t>(std::max<ssize_t>(done, 0));
    }
  }

  int fd_;
  int wake_;
  time deadline_;
  bool good_ = true;
};

struct address {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(sockaddr_storage);

  [[nodiscard]] sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&bytes); }

  [[nodiscard]] std::string host() {
    char text[NI_MAXHOST] = {};
    return ::getnameinfo(get(), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
  }

  [[nodiscard]] std::uint16_t port() noexcept {
    return ntohs(bytes.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bytes)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&bytes)->sin_port);
  }
};

expected<unique_fd> listen_at(const std::string& host, std::uint16_t& port) {
  auto where = addrinfo{};
  where.ai_flags = AI_PASSIVE;
  where.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "0", &where, &found) != 0)
    return fail(errc::io_error, fmt::format("XGBoost's tracker: '{}' is not an address of this host", host));
  auto socket = unique_fd{::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  auto bound = socket.get() >= 0 && ::bind(socket.get(), found->ai_addr, found->ai_addrlen) == 0 &&
               ::listen(socket.get(), SOMAXCONN) == 0;
  ::freeaddrinfo(found);
  auto own = address{};
  if (!bound || ::getsockname(socket.get(), own.get(), &own.size) != 0)
    return fail(system_error(fmt::format("XGBoost's tracker cannot listen on {}", host)));
  port = own.port();
  return socket;
}

error too_late(std::size_t came, std::size_t of) {
  return {errc::timed_out, fmt::format("only {} of {} workers connected to XGBoost's tracker within its deadline: the "
                                       "others are lost, or take long to read their data (training_config::deadline)",
                                       came, of)};
}

} // namespace

std::string rabit_tracker::task_id(std::uint32_t rank, const std::string& secret) {
  return fmt::format("{}-{}", rank, secret);
}

expected<std::unique_ptr<rabit_tracker>> rabit_tracker::start(const std::string& host, std::uint32_t world_size,
                                                              std::string secret, std::chrono::milliseconds deadline) {
  auto result = std::unique_ptr<rabit_tracker>{new rabit_tracker};
  TROUPE_TRY(auto listener, listen_at(host, result->port_));
  result->listener_ = std::move(listener);
  result->wake_ = unique_fd{::eventfd(0, EFD_CLOEXEC)};
  if (result->wake_.get() < 0)
    return fail(system_error("XGBoost's tracker"));
  result->secret_ = std::move(secret);
  result->peers_.resize(world_size);
  result->thread_ = std::jthread{[self = result.get(), until = std::chrono::steady_clock::now() + deadline](
                                     const std::stop_token& stop) { self->run(stop, until); }};
  return result;
}

rabit_tracker::~rabit_tracker() {
  thread_.request_stop();
  (void)::eventfd_write(wake_.get(), 1);
}

error rabit_tracker::reason() const {
  auto lock = std::lock_guard{mutex_};
  return reason_;
}

void rabit_tracker::run(const std::stop_token& stop, time deadline) {
  auto done = bring_together(stop, deadline);
  if (!done) {
    auto lock = std::lock_guard{mutex_};
    reason_ = std::move(done.error());
  }
  // Closing the connections releases workers that wait for an answer. The tracker keeps accepting connections, because
  // a worker that shuts down tries to reach it.
  peers_.clear();
  while (!stop.stop_requested()) {
    pollfd entries[] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (::poll(entries, 2, -1) <= 0 || (entries[0].revents & POLLIN) == 0)
      continue;
    auto socket = unique_fd{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    if (socket.get() < 0 || !done)
      continue;
    auto line = words{socket.get(), wake_.get(), std::chrono::steady_clock::now() + introduction_limit};
    if (line.read() == magic)
      line.write(magic);
    (void)line.read();
    (void)line.read();
    (void)line.read_text();
    (void)line.read_text();
  }
}

expected<void> rabit_tracker::bring_together(const std::stop_token& stop, time deadline) {
  TROUPE_TRY(gather(stop, deadline));
  for (std::size_t rank = 0; rank < peers_.size(); ++rank)
    TROUPE_TRY(place(static_cast<std::int32_t>(rank), deadline));
  return {};
}

expected<void> rabit_tracker::gather(const std::stop_token& stop, time deadline) {
  auto came = [this] {
    return static_cast<std::size_t>(std::ranges::count_if(peers_, [](const peer& x) { return x.socket.get() >= 0; }));
  };
  while (came() < peers_.size()) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left <= 0ms)
      return fail(too_late(came(), peers_.size()));
    pollfd entries[] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    (void)::poll(entries, 2, static_cast<int>(std::min<std::int64_t>(left.count(), 1'000'000)));
    if (stop.stop_requested())
      return fail(errc::aborted, "XGBoost's tracker was stopped");
    if ((entries[0].revents & POLLIN) == 0)
      continue;
    auto from = address{};
    auto socket = unique_fd{::accept4(listener_.get(), from.get(), &from.size, SOCK_CLOEXEC)};
    if (socket.get() >= 0)
      admit(std::move(socket), from.host(), deadline);
  }
  return {};
}

void rabit_tracker::admit(unique_fd socket, std::string host, time deadline) {
  auto line =
      words{socket.get(), wake_.get(), std::min(deadline, std::chrono::steady_clock::now() + introduction_limit)};
  if (line.read() != magic)
    return;
  line.write(magic);
  (void)line.read(); // -1: no rank yet
  (void)line.read(); // -1: no number of workers yet
  auto task = line.read_text();
  auto command = line.read_text();
  if (!line.good() || command != "start")
    return;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank)
    if (task == task_id(static_cast<std::uint32_t>(rank), secret_) && peers_[rank].socket.get() < 0) {
      peers_[rank].socket = std::move(socket);
      peers_[rank].host = std::move(host);
      return;
    }
}

/// A rank connects to those of its neighbours that are placed already, and accepts connections from the others.
expected<void> rabit_tracker::place(std::int32_t rank, time deadline) {
  auto& self = peers_[static_cast<std::size_t>(rank)];
  auto links = links_of(rank, static_cast<std::int32_t>(peers_.size()));
  auto line = words{self.socket.get(), wake_.get(), deadline};
  line.write(rank);
  line.write(links.parent);
  line.write(static_cast<std::int32_t>(peers_.size()));
  line.write(static_cast<std::int32_t>(links.tree.size()));
  for (auto neighbour : links.tree)
    line.write(neighbour);
  line.write(links.previous);
  line.write(links.next);
  // The worker sends the links it has, connects, and sends how many it could not reach; then it is sent a new list.
  for (std::int32_t failed = 1; failed != 0 && line.good();) {
    auto good = std::vector<std::int32_t>{};
    for (auto count = std::clamp(line.read(), 0, static_cast<std::int32_t>(peers_.size())); count > 0; --count)
      good.push_back(line.read());
    auto lacks = [&](std::int32_t neighbour) { return std::ranges::find(good, neighbour) == good.end(); };
    auto is_placed = [&](std::int32_t neighbour) { return neighbour < rank; };
    auto to_dial = std::vector<std::int32_t>{};
    std::ranges::copy_if(links.all, std::back_inserter(to_dial), [&](auto x) { return lacks(x) && is_placed(x); });
    line.write(static_cast<std::int32_t>(to_dial.size()));
    line.write(static_cast<std::int32_t>(std::ranges::count_if(links.all, [&](auto x) { return !is_placed(x); })));
    for (auto neighbour : to_dial) {
      const auto& there = peers_[static_cast<std::size_t>(neighbour)];
      line.write_text(there.host);
      line.write(there.port);
      line.write(neighbour);
    }
    failed = line.read();
  }
  self.port = line.read();
  if (!line.good())
    return fail(errc::aborted, fmt::format("rank {} did not complete its connections to other XGBoost workers: it is "
                                           "lost, or could not reach a lower rank",
                                           rank));
  return {};
}

} // namespace troupe::xgboost
