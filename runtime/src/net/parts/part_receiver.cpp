#include "net/parts/part_greeting.hpp"
#include "net/parts/part_session.hpp"
#include "net/parts/part_stream.hpp"

#include <troupe/collectives/listener.hpp>
#include <troupe/collectives/unproven_peers.hpp>
#include <troupe/runtime/local_address.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using collectives::peer_source;
using collectives::unique_fd;
using collectives::unproven_limits;
using collectives::unproven_peers;
using clock = std::chrono::steady_clock;

/// All workers of a host may connect at once, from one address.
constexpr auto limits = unproven_limits{.in_all = 256, .of_source = 192, .time = 10s};

/// As many requests are answered at a time. More of them would not make the device faster.
constexpr std::size_t max_threads = 8;

/// The most connections taken from a port in one turn.
constexpr int accepts_per_turn = 64;

/// Answers the requests of sessions, each in one of a few threads. Sessions that have nothing to say are with the
/// owner.
class session_pool {
 public:
  /// `returned` gets a session after its request, in the thread that has answered it.
  explicit session_pool(std::function<void(std::unique_ptr<part_session>)> returned) : returned_(std::move(returned)) {}

  ~session_pool() {
    for (auto& each : threads_)
      each.request_stop();
    changed_.notify_all();
  }

  void answer(std::unique_ptr<part_session> session) {
    const auto lock = std::lock_guard{mutex_};
    waiting_.push_back(std::move(session));
    if (idle_ < waiting_.size() && threads_.size() < max_threads)
      try {
        threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
      } catch (const std::system_error&) {
        // Out of threads. An existing thread answers it; if there is none, the connection is closed.
        if (threads_.empty())
          waiting_.clear();
      }
    changed_.notify_one();
  }

 private:
  void work(const std::stop_token& stop) {
    // As low as the writing threads of workers, so that training goes first.
    ::setpriority(PRIO_PROCESS, 0, 10);
    std::vector<std::byte> buffer;
    while (auto session = next(stop))
      if (session->answer_next(buffer))
        returned_(std::move(session));
  }

  std::unique_ptr<part_session> next(const std::stop_token& stop) {
    auto lock = std::unique_lock{mutex_};
    ++idle_;
    const auto found = changed_.wait(lock, stop, [this] { return !waiting_.empty(); });
    --idle_;
    if (!found || stop.stop_requested())
      return nullptr;
    auto result = std::move(waiting_.front());
    waiting_.pop_front();
    return result;
  }

  std::function<void(std::unique_ptr<part_session>)> returned_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::unique_ptr<part_session>> waiting_;
  std::size_t idle_ = 0;
  /// Last, so that they have ended before the rest goes.
  std::vector<std::jthread> threads_;
};

/// Listens towards the nodes. One thread accepts connections, lets workers prove themselves, and waits for requests.
class receiver : public actors::part_receiver {
 public:
  receiver(part_stream_secret secret, std::filesystem::path checkpoints, std::optional<port_range> ports,
           unique_fd changed)
      : secret_(std::move(secret)),
        checkpoints_(std::move(checkpoints)),
        ports_(ports),
        changed_(std::move(changed)),
        pool_([this](std::unique_ptr<part_session> session) { take_back(std::move(session)); }),
        watcher_([this] { watch(); }) {}

  ~receiver() override {
    stop_.request_stop();
    wake();
    watcher_.join();
  }

  expected<std::string> address_towards(const std::string& host) override {
    const auto mine = local_address_towards(host);
    if (mine.empty())
      return std::string{};
    const auto lock = std::lock_guard{mutex_};
    auto found = listeners_.find(mine);
    if (found == listeners_.end()) {
      TROUPE_TRY(const auto own, collectives::tcp::resolve_own_host(mine));
      auto made = collectives::tcp::listen_at(own, ports_);
      if (!made)
        return fail(made.error().code, fmt::format("cannot listen for parts of checkpoints: {}", made.error().message));
      found = listeners_.emplace(mine, std::move(*made)).first;
      wake();
    }
    return to_string(endpoint{mine, found->second.at.port()});
  }

  void lend(const std::filesystem::path& checkpoint) override {
    auto opened = serialization::checkpoint::open(checkpoint);
    const auto lock = std::lock_guard{mutex_};
    lent_ = opened ? std::make_shared<const serialization::checkpoint>(std::move(*opened)) : nullptr;
  }

 private:
  struct stranger {
    unproven_peers::ticket place;
    std::unique_ptr<part_greeting> greeting;
  };

  void wake() {
    const std::uint64_t once = 1;
    std::ignore = ::write(changed_.get(), &once, sizeof(once));
  }

  void take_back(std::unique_ptr<part_session> session) {
    {
      const auto lock = std::lock_guard{mutex_};
      returned_.push_back(std::move(session));
    }
    wake();
  }

  // -- the watcher's thread

  void watch() {
    while (!stop_.stop_requested()) {
      wait();
      const auto now = clock::now();
      // In the order in which `wait` has listed them.
      std::size_t next = 1;
      const auto is_ready = [&] { return polled_[next++].revents != 0; };
      std::vector<int> ready_listeners;
      for (std::size_t i = 0; i < listening_; ++i, ++next)
        if (polled_[next].revents != 0)
          ready_listeners.push_back(polled_[next].fd);
      advance_strangers(is_ready);
      answer_requests(is_ready);
      for (const auto place : strangers_.take_late(now))
        drop(place);
      for (const auto fd : ready_listeners)
        accept_some(fd, now);
    }
  }

  void wait() {
    polled_.assign({{changed_.get(), POLLIN, 0}});
    {
      const auto lock = std::lock_guard{mutex_};
      std::ranges::move(returned_, std::back_inserter(quiet_));
      returned_.clear();
      for (const auto& [host, each] : listeners_)
        polled_.push_back({each.socket.get(), POLLIN, 0});
      listening_ = listeners_.size();
    }
    for (const auto& each : greetings_)
      polled_.push_back(
          {each.greeting->fd(), static_cast<short>(each.greeting->wants_to_write() ? POLLOUT : POLLIN), 0});
    for (const auto& each : quiet_)
      polled_.push_back({each->fd(), POLLIN, 0});
    auto limit = -1;
    if (const auto deadline = strangers_.next_deadline()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - clock::now()).count();
      limit = static_cast<int>(std::max<std::int64_t>(left, 0));
    }
    if (std::ranges::any_of(quiet_, [](const auto& x) { return x->has_unread(); }))
      limit = 0;
    ::poll(polled_.data(), polled_.size(), limit);
    std::uint64_t times = 0;
    if (polled_.front().revents != 0)
      std::ignore = ::read(changed_.get(), &times, sizeof(times));
  }

  template <class Ready>
  void advance_strangers(Ready is_ready) {
    std::erase_if(greetings_, [&](stranger& x) {
      if (!is_ready())
        return false;
      auto result = advance(*x.greeting);
      if (std::holds_alternative<std::monostate>(result))
        return false;
      strangers_.remove(x.place);
      if (auto* stream = std::get_if<secure_stream>(&result))
        admit(std::move(*stream));
      return true;
    });
  }

  /// No data from a peer may end the driver.
  part_greeting::outcome advance(part_greeting& x) {
    try {
      return x.advance(stop_.get_token());
    } catch (const std::exception&) {
      return part_greeting::refused{};
    }
  }

  void admit(secure_stream stream) {
    joined_.push_back(std::make_unique<part_session>(std::move(stream), secret_.run, checkpoints_, [this] {
      const auto lock = std::lock_guard{mutex_};
      return lent_;
    }));
  }

  template <class Ready>
  void answer_requests(Ready is_ready) {
    for (auto& each : quiet_)
      if (is_ready() || each->has_unread())
        pool_.answer(std::move(each));
    std::erase(quiet_, nullptr);
    // Not polled in this turn.
    std::ranges::move(joined_, std::back_inserter(quiet_));
    joined_.clear();
  }

  void accept_some(int listener, clock::time_point now) {
    for (auto i = 0; i < accepts_per_turn; ++i) {
      auto socket = unique_fd{::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
      if (!socket) {
        // Without descriptors left, a stranger gives up its own.
        if (errno == EMFILE || errno == ENFILE)
          make_room();
        return;
      }
      const auto place = strangers_.admit(peer_source::of(socket.get()), now);
      if (place.crowded_out)
        drop(*place.crowded_out);
      greetings_.push_back({place.added, std::make_unique<part_greeting>(std::move(socket), secret_)});
    }
  }

  void make_room() {
    if (const auto place = strangers_.take_oldest())
      drop(*place);
    else
      // The port stays ready: do not spin.
      std::this_thread::sleep_for(100ms);
  }

  void drop(unproven_peers::ticket place) {
    std::erase_if(greetings_, [&](const stranger& x) { return x.place == place; });
  }

  const part_stream_secret secret_;
  const std::filesystem::path checkpoints_;
  const std::optional<port_range> ports_;
  /// Ready when there is something new for the watcher.
  const unique_fd changed_;
  std::stop_source stop_;

  std::mutex mutex_;
  /// By the address of this host to which they are bound.
  std::map<std::string, collectives::tcp::listener> listeners_;
  std::vector<std::unique_ptr<part_session>> returned_;
  std::shared_ptr<const serialization::checkpoint> lent_;

  // Of the watcher's thread.
  unproven_peers strangers_{limits};
  std::vector<stranger> greetings_;
  std::vector<std::unique_ptr<part_session>> joined_;
  std::vector<std::unique_ptr<part_session>> quiet_;
  std::vector<pollfd> polled_;
  std::size_t listening_ = 0;

  session_pool pool_;
  std::thread watcher_;
};

} // namespace

expected<std::unique_ptr<actors::part_receiver>>
open_part_receiver(part_stream_secret secret, std::filesystem::path checkpoints, std::optional<port_range> ports) {
  auto changed = unique_fd{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  if (!changed)
    return fail(errc::unreachable, fmt::format("cannot listen for parts of checkpoints: {}", std::strerror(errno)));
  return std::make_unique<receiver>(std::move(secret), std::move(checkpoints), ports, std::move(changed));
}

} // namespace troupe::runtime
