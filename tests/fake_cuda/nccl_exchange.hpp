#pragma once

#include "nccl_mesh.hpp"

#include "tree/element_arithmetic.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <sys/uio.h>

namespace fake_nccl {

enum class kind : std::uint32_t { send, receive, all_gather, all_reduce };

inline std::uint64_t size_of(nccl::data_type type) {
  constexpr std::array<std::uint64_t, 10> sizes{1, 1, 4, 0, 8, 0, 2, 4, 8, 2};
  const auto i = static_cast<std::size_t>(type);
  const auto result = i < sizes.size() ? sizes[i] : 0;
  demand(result != 0, "a call", "the type is not supported");
  return result;
}

struct operation {
  kind what;
  /// For sends and receives; otherwise 0.
  int peer;
  const void* from;
  void* to;
  std::uint64_t count;
  nccl::data_type type;
  void* stream;

  [[nodiscard]] std::uint64_t size_bytes() const { return count * size_of(type); }
};

/// Precedes the bytes. The receiver expects an equal one.
struct header {
  kind what = kind::send;
  /// The type and count of a collective.
  std::uint32_t type = 0;
  std::uint64_t count = 0;
  std::uint64_t size_bytes = 0;

  bool operator==(const header&) const = default;

  [[nodiscard]] std::string to_text() const {
    return std::to_string(size_bytes) + " bytes (of " +
           (what == kind::send         ? "a send"
            : what == kind::all_gather ? "an all-gather"
                                       : "an all-reduce") +
           ", type " + std::to_string(type) + ", count " + std::to_string(count) + ")";
  }
};

/// Exchanges messages between this rank and all ranks, including itself, concurrently; in order for each pair of ranks.
class exchange {
 public:
  explicit exchange(const mesh& between) : between_(between), lines_(static_cast<std::size_t>(between.size())) {}

  void send(int peer, const header& head, const void* data) {
    lines_[static_cast<std::size_t>(peer)].outgoing.push_back({head, const_cast<void*>(data)});
  }
  void receive(int peer, const header& head, void* data) {
    lines_[static_cast<std::size_t>(peer)].incoming.push_back({head, data});
  }

  /// Whether everything has been sent and received; false if it was given up. A lost peer does not end the exchange.
  template <class F>
  [[nodiscard]] bool run(const std::atomic<bool>& is_given_up, F on_peer_gone) {
    copy_own();
    while (!is_done() && !is_given_up) {
      auto sockets = waiting();
      ::poll(sockets.data(), sockets.size(), glance_ms);
      for (std::size_t peer = 0; peer < sockets.size(); ++peer)
        if (auto& x = lines_[peer]; sockets[peer].revents != 0 && !serve(sockets[peer], x)) {
          x.is_gone = true;
          on_peer_gone(static_cast<int>(peer));
        }
    }
    return !is_given_up;
  }

 private:
  struct message {
    header head;
    /// Only read if it is sent.
    void* data;
    header heard = {};
    /// Including the header.
    std::uint64_t done = 0;

    [[nodiscard]] bool is_done() const { return done == sizeof(header) + head.size_bytes; }
    /// The remaining parts of header and bytes.
    [[nodiscard]] std::array<iovec, 2> rest(header& first) const {
      const auto of_header = std::min<std::uint64_t>(done, sizeof(header));
      const auto of_data = done - of_header;
      return {
          iovec{reinterpret_cast<std::byte*>(&first) + of_header, sizeof(header) - of_header},
          iovec{head.size_bytes == 0 ? nullptr : static_cast<std::byte*>(data) + of_data, head.size_bytes - of_data}};
    }
  };

  struct line {
    std::deque<message> outgoing;
    std::deque<message> incoming;
    bool is_gone = false;
  };

  void copy_own() {
    auto& x = lines_[static_cast<std::size_t>(between_.rank())];
    demand(x.outgoing.size() == x.incoming.size(), "ncclGroupEnd",
           "a rank does not receive all that it sends to itself");
    for (; !x.outgoing.empty(); x.outgoing.pop_front(), x.incoming.pop_front()) {
      const auto& from = x.outgoing.front();
      const auto& to = x.incoming.front();
      if (from.head != to.head)
        violation(from.head.to_text() + " of this rank itself is received as " + to.head.to_text());
      if (from.head.size_bytes != 0)
        std::memmove(to.data, from.data, from.head.size_bytes);
    }
  }

  [[nodiscard]] bool is_done() const {
    return std::ranges::all_of(lines_, [](const line& x) { return x.outgoing.empty() && x.incoming.empty(); });
  }

  [[nodiscard]] std::vector<pollfd> waiting() const {
    std::vector<pollfd> result;
    for (const auto& x : lines_) {
      const auto events = (x.outgoing.empty() ? 0 : POLLOUT) | (x.incoming.empty() ? 0 : POLLIN);
      // A closed socket is reported even without requested events.
      const auto fd = events == 0 || x.is_gone ? -1 : between_.socket(static_cast<int>(result.size()));
      result.push_back({fd, static_cast<short>(events), 0});
    }
    return result;
  }

  /// Whether the peer is still connected. Data that it had sent before is read first.
  static bool serve(const pollfd& socket, line& x) {
    constexpr auto ended = POLLHUP | POLLERR;
    if ((socket.events & POLLIN) != 0 && (socket.revents & (POLLIN | ended)) != 0 && !pull(socket.fd, x.incoming))
      return false;
    return (socket.events & POLLOUT) == 0 || (socket.revents & (POLLOUT | ended)) == 0 || push(socket.fd, x.outgoing);
  }

  static bool push(int fd, std::deque<message>& outgoing) {
    auto& x = outgoing.front();
    auto parts = x.rest(x.head);
    msghdr call{};
    call.msg_iov = parts.data();
    call.msg_iovlen = parts.size();
    return note(::sendmsg(fd, &call, MSG_NOSIGNAL | MSG_DONTWAIT), outgoing);
  }

  static bool pull(int fd, std::deque<message>& incoming) {
    auto& x = incoming.front();
    const auto is_header = x.done < sizeof(header);
    const auto part = x.rest(x.heard)[is_header ? 0 : 1];
    const auto moved = ::recv(fd, part.iov_base, part.iov_len, MSG_DONTWAIT);
    if (is_header && moved == static_cast<ssize_t>(part.iov_len) && x.heard != x.head)
      violation(x.heard.to_text() + " of another rank is received as " + x.head.to_text());
    return note(moved, incoming);
  }

  static bool note(ssize_t moved, std::deque<message>& messages) {
    if (moved > 0)
      messages.front().done += static_cast<std::uint64_t>(moved);
    else if (moved < 0 && errno == EFAULT)
      violation("memory that cannot be used on this stream");
    else if (moved == 0 || (errno != EAGAIN && errno != EINTR))
      return false;
    if (messages.front().is_done())
      messages.pop_front();
    return true;
  }

  const mesh& between_;
  std::vector<line> lines_;
};
// -- sums ------------------------------------------------------------------------------------------------------------

namespace arithmetic = troupe::collectives::arithmetic;

using contributions = std::vector<std::unique_ptr<std::byte[]>>;

template <class T, class Widen = std::identity, class Narrow = std::identity>
inline void add_up(const contributions& parts, std::byte* result, std::uint64_t count, Widen widen = {},
                   Narrow narrow = {}) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto load = [&](std::size_t rank) {
      T x;
      std::memcpy(&x, parts[rank].get() + i * sizeof(T), sizeof(T));
      return widen(x);
    };
    auto sum = load(0);
    for (std::size_t rank = 1; rank < parts.size(); ++rank)
      sum = static_cast<decltype(sum)>(sum + load(rank));
    const T rounded = narrow(sum);
    std::memcpy(result + i * sizeof(T), &rounded, sizeof(T));
  }
}

/// Summed as f32 and rounded once.
template <class Half>
void add_up_halves(const contributions& parts, std::byte* result, std::uint64_t count) {
  add_up<Half>(
      parts, result, count, [](Half x) { return arithmetic::widened(x); },
      [](float x) { return arithmetic::narrowed<Half>(x); });
}

/// In the order of ranks. Integers wrap.
inline void add_up(nccl::data_type type, const contributions& parts, std::byte* result, std::uint64_t count) {
  switch (type) {
  case nccl::int8:
  case nccl::uint8:
    return add_up<std::uint8_t>(parts, result, count);
  case nccl::int32:
    return add_up<std::uint32_t>(parts, result, count);
  case nccl::int64:
    return add_up<std::uint64_t>(parts, result, count);
  case nccl::float16:
    return add_up_halves<arithmetic::f16>(parts, result, count);
  case nccl::bfloat16:
    return add_up_halves<arithmetic::bf16>(parts, result, count);
  case nccl::float32:
    return add_up<float>(parts, result, count);
  case nccl::float64:
    return add_up<double>(parts, result, count);
  }
}

/// The operations of one group on a stream. An all-reduce takes two rounds: each rank sums a part and sends it to all.
class group_work {
 public:
  explicit group_work(const mesh& between) : between_(between), first_(between), second_(between) {}

  template <class F>
  void run(std::vector<operation> all, const std::atomic<bool>& is_given_up, F on_peer_gone) {
    // NCCL does not care about the order of all-gathers and sends within a group.
    std::stable_partition(all.begin(), all.end(),
                          [](const operation& x) { return x.what == kind::all_gather || x.what == kind::all_reduce; });
    for (const auto& x : all)
      begin(x);
    if (!first_.run(is_given_up, on_peer_gone))
      return;
    for (const auto& x : reductions_)
      sum(x);
    static_cast<void>(second_.run(is_given_up, on_peer_gone));
  }

 private:
  /// An all-reduce, and the part of all ranks' contributions that this rank sums.
  struct reduction {
    operation what;
    contributions parts;
  };

  void begin(const operation& x) {
    const header head{kind::send, 0, 0, x.size_bytes()};
    if (x.what == kind::send)
      first_.send(x.peer, head, x.from);
    else if (x.what == kind::receive)
      first_.receive(x.peer, head, x.to);
    else if (x.what == kind::all_gather)
      gather(x);
    else
      spread(x);
  }

  void gather(const operation& x) {
    const auto head = head_of(x, x.size_bytes());
    for (int peer = 0; peer < between_.size(); ++peer) {
      first_.send(peer, head, x.from);
      first_.receive(peer, head, static_cast<std::byte*>(x.to) + static_cast<std::uint64_t>(peer) * x.size_bytes());
    }
  }

  void spread(const operation& x) {
    reduction begun{x, {}};
    const auto mine = size_of_part(x, between_.rank());
    for (int peer = 0; peer < between_.size(); ++peer) {
      const auto theirs = head_of(x, size_of_part(x, peer));
      first_.send(peer, theirs, static_cast<const std::byte*>(x.from) + begin_of(x, peer));
      begun.parts.push_back(std::make_unique_for_overwrite<std::byte[]>(mine));
      first_.receive(peer, head_of(x, mine), begun.parts.back().get());
    }
    reductions_.push_back(std::move(begun));
  }

  /// The result may overlap the contribution, whose data for other ranks has been sent.
  void sum(const reduction& begun) {
    const auto& x = begun.what;
    auto* result = static_cast<std::byte*>(x.to);
    auto* my_part = result + begin_of(x, between_.rank());
    const auto mine = size_of_part(x, between_.rank());
    add_up(x.type, begun.parts, my_part, mine / size_of(x.type));
    for (int peer = 0; peer < between_.size(); ++peer) {
      second_.send(peer, head_of(x, mine), my_part);
      second_.receive(peer, head_of(x, size_of_part(x, peer)), result + begin_of(x, peer));
    }
  }

  static header head_of(const operation& x, std::uint64_t size_bytes) {
    return {x.what, static_cast<std::uint32_t>(x.type), x.count, size_bytes};
  }
  [[nodiscard]] std::uint64_t begin_of(const operation& x, int rank) const {
    return x.count * static_cast<std::uint64_t>(rank) / static_cast<std::uint64_t>(between_.size()) * size_of(x.type);
  }
  [[nodiscard]] std::uint64_t size_of_part(const operation& x, int rank) const {
    return begin_of(x, rank + 1) - begin_of(x, rank);
  }

  const mesh& between_;
  exchange first_;
  exchange second_;
  std::vector<reduction> reductions_;
};

} // namespace fake_nccl
