#pragma once

#include "nccl/library.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <poll.h>
#include <set>
#include <string>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace fake_nccl {

namespace nccl = troupe::collectives::nccl;
using clock = std::chrono::steady_clock;

[[noreturn]] inline void violation(const std::string& what) {
  std::fprintf(stderr, "fake NCCL: %s\n", what.c_str());
  std::abort();
}

inline void demand(bool holds, const char* call, const char* what) {
  if (!holds)
    violation(std::string{call} + ": " + what);
}

inline bool is_set(const char* variable) {
  const auto* value = std::getenv(variable);
  return value != nullptr && std::strcmp(value, "1") == 0;
}

inline int library_version() {
  const auto* text = std::getenv("TROUPE_FAKE_NCCL_VERSION");
  return text != nullptr ? std::atoi(text) : 22809;
}

constexpr int first_that_shrinks = 22703;
constexpr int first_that_revokes = 22807;
constexpr int first_with_shared_devices = 23000;

/// How often a thread that waits for a socket checks whether the communicator has been given up.
constexpr int glance_ms = 1;

/// A failure and its text for ncclGetLastError.
struct outcome {
  nccl::result code = nccl::success;
  std::string text = {};
};

inline std::atomic<const char*> last_error = "";

/// The text is never freed, because readers hold no lock.
inline nccl::result report(const outcome& x) {
  if (x.code == nccl::success)
    return x.code;
  static auto& mutex = *new std::mutex;
  static auto& texts = *new std::set<std::string>;
  const std::lock_guard lock{mutex};
  last_error = texts.insert(x.text).first->c_str();
  return x.code;
}

inline outcome cuda_failure(cudaError_t code) {
  return {nccl::unhandled_cuda_error, std::string{"Cuda failure: "} + cudaGetErrorString(code)};
}

class descriptor {
 public:
  explicit descriptor(int fd = -1) noexcept : fd_(fd) {}
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~descriptor() {
    if (fd_ >= 0)
      ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

/// Identifies the rendezvous of a communicator's ranks.
using rendezvous = std::array<std::uint64_t, 2>;

/// The rendezvous for the `count`th communicator that survivors of another make.
inline rendezvous child_of(const rendezvous& parent, std::uint64_t count) {
  // As in splitmix64.
  const auto mix = [count](std::uint64_t x) {
    x += 0x9e3779b97f4a7c15 * (count + 1);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  return {mix(parent[0]), mix(parent[1])};
}

/// A socket between each pair of ranks.
class mesh {
 public:
  mesh(const rendezvous& where, int rank, int size, const cudaUUID_t& device)
      : where_(where), rank_(rank), size_(size), all_(static_cast<std::size_t>(size)), sockets_(all_.size()) {
    all_[static_cast<std::size_t>(rank)] = {rank, size, device};
  }

  /// Blocks until all ranks are connected, one of them is lost, or `is_given_up` is set.
  [[nodiscard]] outcome form(const std::atomic<bool>& is_given_up) {
    is_given_up_ = &is_given_up;
    try {
      connect_all();
      compare_devices();
    } catch (outcome& failure) {
      return std::move(failure);
    }
    return {};
  }
  void close() { sockets_.clear(); }

  [[nodiscard]] const rendezvous& where() const noexcept { return where_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const cudaUUID_t& device() const { return all_[static_cast<std::size_t>(rank_)].device; }
  [[nodiscard]] int socket(int peer) const { return sockets_[static_cast<std::size_t>(peer)].get(); }

 private:
  struct introduction {
    int rank = -1;
    int size = 0;
    cudaUUID_t device{};
  };

  static outcome failed(const char* call) {
    return {nccl::system_error, std::string{"Call to "} + call + " failed: " + std::strerror(errno)};
  }
  /// The rendezvous of NCCL's ranks uses a network, on which a lost peer is noticed.
  static outcome lost() { return {nccl::remote_error, "Connection closed by a remote peer during the rendezvous"}; }

  void demand_wanted() const {
    if (*is_given_up_)
      throw outcome{nccl::internal_error, "the communicator was given up during the rendezvous"};
  }

  /// In the abstract namespace, so that a killed process leaves nothing behind.
  [[nodiscard]] std::pair<sockaddr_un, socklen_t> address(int rank) const {
    sockaddr_un result{};
    result.sun_family = AF_UNIX;
    const auto length =
        std::snprintf(result.sun_path + 1, sizeof(result.sun_path) - 1, "troupe-fake-nccl-%016llx%016llx-%d",
                      static_cast<unsigned long long>(where_[0]), static_cast<unsigned long long>(where_[1]), rank);
    return {result, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length))};
  }

  void connect_all() {
    const descriptor listener{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    const auto [mine, length] = address(rank_);
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&mine), length) != 0 ||
        ::listen(listener.get(), size_) != 0)
      throw failed("bind");
    for (int peer = 0; peer < rank_; ++peer)
      keep(peer, connect_to(peer));
    for (int peer = rank_ + 1; peer < size_; ++peer)
      accept_from(listener.get());
    // Last, because these ranks answer only after they have connected to the ranks below them.
    for (int peer = 0; peer < rank_; ++peer)
      all_[static_cast<std::size_t>(peer)] = hear(socket(peer));
    for (const auto& x : all_)
      demand(x.size == size_, "ncclCommInitRankConfig", "ranks of communicators with different sizes use the same id");
  }

  [[nodiscard]] descriptor connect_to(int peer) const {
    const auto [theirs, length] = address(peer);
    descriptor fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&theirs), length) != 0) {
      // The peer does not listen yet, or its queue is full.
      if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
        throw failed("connect");
      demand_wanted();
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
    return fd;
  }

  void accept_from(int listener) {
    descriptor fd;
    while (fd.get() < 0) {
      await(listener);
      fd = descriptor{::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (fd.get() < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        throw failed("accept");
    }
    const auto theirs = hear(fd.get());
    demand(theirs.rank > rank_ && theirs.rank < size_ && socket(theirs.rank) < 0, "ncclCommInitRankConfig",
           "a rank occurs twice or is out of range");
    all_[static_cast<std::size_t>(theirs.rank)] = theirs;
    keep(theirs.rank, std::move(fd));
  }

  /// Sends the introduction: the first bytes on the socket, which always fit.
  void keep(int peer, descriptor fd) {
    const auto& mine = all_[static_cast<std::size_t>(rank_)];
    if (::send(fd.get(), &mine, sizeof(mine), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(mine)))
      throw lost();
    sockets_[static_cast<std::size_t>(peer)] = std::move(fd);
  }

  /// The introduction is sent and arrives as a whole. Leaves the data that follows it.
  [[nodiscard]] introduction hear(int fd) const {
    introduction result;
    for (;;) {
      await(fd);
      const auto received = ::recv(fd, &result, sizeof(result), 0);
      if (received == static_cast<ssize_t>(sizeof(result)))
        return result;
      if (received >= 0 || (errno != EAGAIN && errno != EINTR))
        throw lost();
    }
  }

  void await(int fd) const {
    pollfd waits{fd, POLLIN, 0};
    while (::poll(&waits, 1, glance_ms) <= 0)
      demand_wanted();
  }

  void compare_devices() const {
    if (library_version() >= first_with_shared_devices && is_set("NCCL_MULTI_RANK_GPU_ENABLE"))
      return;
    for (std::size_t i = 0; i < all_.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        if (std::ranges::equal(all_[i].device.bytes, all_[k].device.bytes))
          throw outcome{nccl::invalid_usage, "Duplicate GPU detected : rank " + std::to_string(i) + " and rank " +
                                                 std::to_string(k) + " both on one CUDA device"};
  }

  const rendezvous where_;
  const int rank_;
  const int size_;
  const std::atomic<bool>* is_given_up_ = nullptr;
  std::vector<introduction> all_;
  std::vector<descriptor> sockets_;
};

} // namespace fake_nccl
