#include "driver/control_port.hpp"

#include "process/signals_blocked.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/runtime/control_socket.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;
using collectives::unique_fd;

/// A socket's address has 108 bytes: the directory is named by a descriptor.
sockaddr_un address_in(const unique_fd& directory) {
  sockaddr_un result{};
  result.sun_family = AF_UNIX;
  const auto path = fmt::format("/proc/self/fd/{}/{}", directory.get(), control_socket_name);
  std::memcpy(result.sun_path, path.c_str(), path.size() + 1);
  return result;
}

unique_fd open_directory(const std::filesystem::path& directory) {
  return unique_fd{::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
}

error io_failure(const std::filesystem::path& directory) {
  auto result = system_error("cannot listen on " + (directory / control_socket_name).string());
  result.code = errc::io_error;
  return result;
}

bool is_same_user(int connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

class unix_control_port : public actors::control_port {
 public:
  unix_control_port(unique_fd directory, unique_fd listener, unique_fd wake, ino_t inode,
                    const control_port_limits& limits)
      : directory_(std::move(directory)),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        inode_(inode),
        limits_(limits) {}

  ~unix_control_port() override {
    remove_socket();
    {
      auto lock = std::lock_guard{mutex_};
      ends_by_ = clock::now() + limits_.closing;
    }
    wake();
    if (thread_.joinable())
      thread_.join();
  }

  void serve(std::function<void(connection, std::string)> on_line) override {
    on_line_ = std::move(on_line);
    const auto blocked = signals_blocked{};
    thread_ = std::thread{[this] { loop(); }};
  }

  void answer(connection whom, std::string line) override {
    auto lock = std::lock_guard{mutex_};
    if (const auto found = peers_.find(whom); found != peers_.end())
      found->second.session.answer(line);
    wake();
  }

  void subscribe(connection whom) override {
    auto lock = std::lock_guard{mutex_};
    if (const auto found = peers_.find(whom); found != peers_.end())
      found->second.session.subscribe();
  }

  void publish(const std::string& line) override {
    auto lock = std::lock_guard{mutex_};
    for (auto& [number, each] : peers_)
      each.session.publish(line);
    wake();
  }

  [[nodiscard]] bool has_subscribers() const override {
    auto lock = std::lock_guard{mutex_};
    return std::ranges::any_of(peers_, [](const auto& x) { return x.second.session.is_subscribed(); });
  }

 private:
  struct peer {
    unique_fd stream;
    line_session session;
    /// It sends nothing more, and may still read.
    bool has_ended = false;
  };

  /// Another driver may have replaced it.
  void remove_socket() const {
    struct stat there {};
    if (::fstatat(directory_.get(), control_socket_name, &there, AT_SYMLINK_NOFOLLOW) == 0 && there.st_ino == inode_)
      ::unlinkat(directory_.get(), control_socket_name, 0);
  }

  void wake() const {
    const std::uint64_t one = 1;
    std::ignore = ::write(wake_.get(), &one, sizeof(one));
  }

  void loop() {
    for (;;) {
      auto waiting = std::vector<pollfd>{};
      auto limit = clock::time_point{};
      {
        auto lock = std::lock_guard{mutex_};
        const auto now = clock::now();
        if (is_over(now))
          return;
        std::tie(waiting, limit) = what_to_wait_for(now);
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - clock::now()).count();
      ::poll(waiting.data(), waiting.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
      std::uint64_t ignored = 0;
      std::ignore = ::read(wake_.get(), &ignored, sizeof(ignored));
      for (auto& [from, line] : take_lines(waiting))
        on_line_(from, std::move(line));
    }
  }

  [[nodiscard]] bool is_over(clock::time_point now) const {
    const auto has_output = [](const auto& x) { return !x.second.session.output().empty(); };
    return ends_by_ && (now >= *ends_by_ || !std::ranges::any_of(peers_, has_output));
  }

  [[nodiscard]] std::pair<std::vector<pollfd>, clock::time_point> what_to_wait_for(clock::time_point now) const {
    auto limit = ends_by_.value_or(now + std::chrono::seconds{60});
    auto waiting = std::vector<pollfd>{{wake_.get(), POLLIN, 0}};
    if (!ends_by_ && now >= accepts_from_)
      waiting.push_back({listener_.get(), POLLIN, 0});
    else
      limit = std::min(limit, std::max(accepts_from_, now + std::chrono::milliseconds{1}));
    for (const auto& [number, each] : peers_) {
      const auto& session = each.session;
      const auto reads = session.wants_input() && !each.has_ended ? POLLIN : 0;
      const auto writes = session.output().empty() ? 0 : POLLOUT;
      // Without events it is woken by the end of the connection.
      waiting.push_back({each.stream.get(), static_cast<short>(reads | writes), 0});
      if (!session.has_asked())
        limit = std::min(limit, now + limits_.line.silence);
      if (const auto next = session.next_line_at())
        limit = std::min(limit, *next);
    }
    return {std::move(waiting), limit};
  }

  [[nodiscard]] std::vector<std::pair<connection, std::string>> take_lines(const std::vector<pollfd>& polled) {
    auto lock = std::lock_guard{mutex_};
    const auto now = clock::now();
    accept_all(now);
    std::vector<std::pair<connection, std::string>> result;
    for (auto i = peers_.begin(); i != peers_.end();) {
      const auto is_connected = exchange(i->second) && !is_hung_up(i->second, polled);
      auto& session = i->second.session;
      if (auto line = session.next_line(now))
        result.emplace_back(i->first, std::move(*line));
      const auto is_done =
          session.output().empty() && (session.is_over() || (i->second.has_ended && session.is_idle()));
      const auto keeps = is_connected && !is_done && !session.is_clogged() && !session.is_overdue(now);
      i = keeps ? std::next(i) : peers_.erase(i);
    }
    return result;
  }

  /// Returns whether the connection lives.
  static bool exchange(peer& x) {
    std::array<char, 16384> buffer;
    while (x.session.wants_input() && !x.has_ended) {
      const auto got = ::recv(x.stream.get(), buffer.data(), buffer.size(), 0);
      if (got < 0 && errno != EAGAIN && errno != EINTR)
        return false;
      x.has_ended = got == 0;
      if (got <= 0)
        break;
      x.session.receive({buffer.data(), static_cast<std::size_t>(got)});
    }
    while (!x.session.output().empty()) {
      const auto output = x.session.output();
      const auto sent = ::send(x.stream.get(), output.data(), output.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR)
        return false;
      if (sent < 0)
        break;
      x.session.on_sent(static_cast<std::size_t>(sent));
    }
    return true;
  }

  /// Whether the peer neither sends nor reads any more.
  static bool is_hung_up(const peer& x, const std::vector<pollfd>& polled) {
    const auto found = std::ranges::find(polled, x.stream.get(), &pollfd::fd);
    return found != polled.end() && (found->revents & (POLLHUP | POLLERR)) != 0;
  }

  void accept_all(clock::time_point now) {
    while (!ends_by_ && now >= accepts_from_) {
      auto stream = unique_fd{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (!stream) {
        // Without descriptors left, the listener stays readable.
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
          accepts_from_ = now + std::chrono::milliseconds{200};
        return;
      }
      make_room();
      auto& [number, added] = *peers_.try_emplace(++last_, peer{std::move(stream), {limits_.line, now}}).first;
      if (!is_same_user(added.stream.get()))
        added.session.end_with(R"({"error":{"code":"not_authenticated","message":"the run belongs to another user"}})");
      else if (peers_.size() > limits_.connections)
        added.session.end_with(
            R"({"error":{"code":"unsatisfiable","message":"too many connections to this run: close some"}})");
    }
  }

  /// The one that has been silent longest makes room for another.
  void make_room() {
    if (peers_.size() < limits_.connections)
      return;
    const auto idle = std::ranges::find_if(peers_, [](const auto& x) { return !x.second.session.has_asked(); });
    if (idle != peers_.end())
      peers_.erase(idle);
  }

  unique_fd directory_;
  unique_fd listener_;
  unique_fd wake_;
  ino_t inode_;
  control_port_limits limits_;
  std::function<void(connection, std::string)> on_line_;
  /// Guards what follows.
  mutable std::mutex mutex_;
  std::map<connection, peer> peers_;
  connection last_ = 0;
  clock::time_point accepts_from_{};
  std::optional<clock::time_point> ends_by_;
  std::thread thread_;
};

} // namespace

expected<std::unique_ptr<actors::control_port>> open_control_port(const std::filesystem::path& directory,
                                                                  const control_port_limits& limits) {
  auto where = open_directory(directory);
  auto listener = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  auto wake = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!where || !listener || !wake)
    return fail(io_failure(directory));
  // What a driver that was killed has left.
  if (::unlinkat(where.get(), control_socket_name, 0) != 0 && errno != ENOENT)
    return fail(io_failure(directory));
  const auto address = address_in(where);
  struct stat made {};
  // The mode of the socket becomes that of its file.
  if (::fchmod(listener.get(), 0600) != 0 ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener.get(), 16) != 0 || ::fstatat(where.get(), control_socket_name, &made, AT_SYMLINK_NOFOLLOW) != 0)
    return fail(io_failure(directory));
  return std::make_unique<unix_control_port>(std::move(where), std::move(listener), std::move(wake), made.st_ino,
                                             limits);
}

expected<int> connect_to_run(const std::filesystem::path& directory) {
  const auto where = open_directory(directory);
  auto stream = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!where || !stream)
    return fail(errc::unreachable, system_error(directory.string()).message);
  const auto address = address_in(where);
  if (::connect(stream.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
    return stream.release();
  const auto code = errno == ECONNREFUSED || errno == ENOENT ? errc::connection_refused
                    : errno == EACCES || errno == EPERM      ? errc::not_authenticated
                                                             : errc::unreachable;
  return fail(code, system_error((directory / control_socket_name).string()).message);
}

} // namespace troupe::runtime
