#pragma once

#include <troupe/collectives/hierarchical_communicator.hpp>
#include <troupe/collectives/shm_communicator.hpp>
#include <troupe/collectives/tcp_communicator.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe::collectives::testing {

enum class swept_transport : std::uint8_t { tcp, tcp_encrypted, shm, hierarchical };

inline constexpr swept_transport all_transports[] = {swept_transport::tcp, swept_transport::tcp_encrypted,
                                                     swept_transport::shm, swept_transport::hierarchical};

inline std::string to_string(swept_transport x) {
  switch (x) {
  case swept_transport::tcp:
    return "tcp";
  case swept_transport::tcp_encrypted:
    return "tcp-encrypted";
  case swept_transport::shm:
    return "shm";
  case swept_transport::hierarchical:
    return "hierarchical";
  }
  return "?";
}

/// A key that is not the default one.
inline run_secret some_secret(std::uint8_t seed = 7) {
  run_secret result;
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = static_cast<std::byte>(seed + 31 * i);
  return result;
}

/// The control plane's exchange, between threads.
template <class Blob>
class rendezvous {
 public:
  explicit rendezvous(std::uint32_t size) : blobs_(size) {}

  std::vector<Blob> exchange(std::uint32_t rank, Blob mine) {
    std::unique_lock lock{mutex_};
    blobs_[rank] = std::move(mine);
    if (++arrived_ == blobs_.size())
      all_here_.notify_all();
    all_here_.wait(lock, [this] { return arrived_ == blobs_.size(); });
    return blobs_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<Blob> blobs_;
  std::size_t arrived_ = 0;
};

/// Copies of the others' descriptors, as a socket would deliver them.
inline std::vector<std::vector<unique_fd>> copies_of(const std::vector<std::vector<int>>& descriptors,
                                                     std::uint32_t own) {
  std::vector<std::vector<unique_fd>> result(descriptors.size());
  for (std::uint32_t r = 0; r < descriptors.size(); ++r)
    for (auto fd : descriptors[r])
      if (r != own)
        result[r].emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  return result;
}

/// Hosts of unequal sizes whose ranks are not adjacent.
inline std::vector<std::uint32_t> some_hosts(std::uint32_t world_size) {
  std::vector<std::uint32_t> result;
  for (std::uint32_t rank = 0; rank < world_size; ++rank)
    result.push_back(rank % 3 == 2 ? 5 : rank / 4);
  return result;
}

/// Where the ranks of one group, as threads of this process, form it over any transport.
class meeting {
 public:
  struct options {
    std::chrono::milliseconds deadline = std::chrono::seconds{120};
    generation_id generation{1};
    /// By rank; empty: some for a hierarchical group, else one.
    std::vector<std::uint32_t> hosts = {};
    bool results_for_devices = false;
  };

  meeting(swept_transport kind, std::uint32_t world_size, options how)
      : kind_(kind), how_(std::move(how)), addresses_(world_size), descriptors_(world_size), done_(world_size) {
    if (how_.hosts.empty())
      how_.hosts =
          kind == swept_transport::hierarchical ? some_hosts(world_size) : std::vector<std::uint32_t>(world_size);
  }

  expected<std::unique_ptr<communicator>> form(std::uint32_t rank) {
    const auto exchange_addresses = [&](std::string mine) {
      return expected<std::vector<std::string>>{addresses_.exchange(rank, std::move(mine))};
    };
    const auto exchange_descriptors = [&](std::span<const int> mine) { return exchange(rank, mine); };
    tcp_options place;
    place.rank = rank_id{rank};
    place.world_size = static_cast<std::uint32_t>(how_.hosts.size());
    place.generation = how_.generation;
    place.deadline = how_.deadline;
    place.secret = some_secret();
    place.tag = "a run";
    place.encrypted = kind_ != swept_transport::tcp;
    if (kind_ == swept_transport::tcp || kind_ == swept_transport::tcp_encrypted)
      return make_tcp_communicator(place, exchange_addresses);
    // Every rank maps the pools of all others into this one process, of which ThreadSanitizer leaves us 1.5 TiB.
    auto pool = value_or_throw(shared_pool::make(1 << 28));
    if (kind_ == swept_transport::shm)
      return make_shm_communicator({place.rank,
                                    place.world_size,
                                    place.generation,
                                    place.deadline,
                                    std::move(pool),
                                    {},
                                    how_.results_for_devices},
                                   exchange_descriptors);
    return make_hierarchical_communicator({place, how_.hosts, std::move(pool), how_.results_for_devices},
                                          exchange_addresses, exchange_descriptors);
  }

 private:
  expected<std::vector<std::vector<unique_fd>>> exchange(std::uint32_t rank, std::span<const int> mine) {
    auto all = descriptors_.exchange(rank, {mine.begin(), mine.end()});
    std::vector<std::vector<int>> local;
    std::uint32_t own = 0;
    for (std::uint32_t r = 0; r < all.size(); ++r) {
      if (r == rank)
        own = static_cast<std::uint32_t>(local.size());
      if (how_.hosts[r] == how_.hosts[rank])
        local.push_back(all[r]);
    }
    auto copies = copies_of(local, own);
    // A descriptor that was passed on is open somewhere else.
    done_.exchange(rank, 0);
    return copies;
  }

  swept_transport kind_;
  options how_;
  rendezvous<std::string> addresses_;
  rendezvous<std::vector<int>> descriptors_;
  rendezvous<int> done_;
};

/// Ranks as threads of this process, over any transport.
class rank_group {
 public:
  explicit rank_group(swept_transport kind, std::uint32_t world_size,
                      std::chrono::milliseconds deadline = std::chrono::seconds{120},
                      generation_id generation = generation_id{1}, std::vector<std::uint32_t> hosts = {},
                      bool results_for_devices = false)
      : members_(world_size) {
    meeting place{kind, world_size, {deadline, generation, std::move(hosts), results_for_devices}};
    std::vector<error> errors(world_size);
    in_threads([&](std::uint32_t rank) {
      if (auto made = place.form(rank))
        members_[rank] = std::move(*made);
      else
        errors[rank] = made.error();
    });
    for (const auto& x : errors)
      if (x.code != errc::none)
        throw std::runtime_error{x.message};
  }

  /// Leaves in all threads at once, as processes would.
  ~rank_group() {
    in_threads([this](std::uint32_t rank) { members_[rank].reset(); });
  }

  communicator& operator[](std::uint32_t rank) { return *members_[rank]; }
  void leave(std::uint32_t rank) { members_[rank].reset(); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }

  /// Calls `f(communicator)` on every rank that is still there; gives what each returned, in rank order.
  template <class F>
  auto run(F f) {
    using result = decltype(f(*members_[0]));
    static_assert(!std::is_same_v<result, bool>, "the threads would write into the same bytes");
    std::vector<result> results(size());
    in_threads([&](std::uint32_t rank) {
      if (members_[rank])
        results[rank] = f(*members_[rank]);
    });
    return results;
  }

 private:
  void in_threads(const std::function<void(std::uint32_t)>& f) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < size(); ++rank)
      threads.emplace_back(f, rank);
    for (auto& x : threads)
      x.join();
  }

  std::vector<std::unique_ptr<communicator>> members_;
};

/// Groups are made once: all cases of a transport and size run on the same connections, one after the other, as steps
/// do.
inline rank_group& group_of(swept_transport kind, std::uint32_t world_size) {
  static std::map<std::pair<swept_transport, std::uint32_t>, std::unique_ptr<rank_group>> groups;
  auto& group = groups[{kind, world_size}];
  if (!group)
    group = std::make_unique<rank_group>(kind, world_size);
  return *group;
}

} // namespace troupe::collectives::testing
