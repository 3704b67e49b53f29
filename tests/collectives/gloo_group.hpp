#pragma once

#include <troupe/collectives/gloo_communicator.hpp>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace troupe::collectives::testing {

/// The control plane's exchange, among threads.
class meeting {
 public:
  explicit meeting(std::uint32_t size) : blobs_(size) {}

  std::vector<std::string> exchange(std::uint32_t rank, std::string mine) {
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
  std::vector<std::string> blobs_;
  std::size_t arrived_ = 0;
};

/// Ranks as threads of this process, connected over loopback.
class gloo_group {
 public:
  explicit gloo_group(std::uint32_t world_size, std::chrono::milliseconds deadline = std::chrono::seconds{120},
                      generation_id generation = generation_id{1})
      : members_(world_size) {
    meeting place{world_size};
    std::vector<error> errors(world_size);
    in_threads([&](std::uint32_t rank) {
      gloo_options options;
      options.rank = rank_id{rank};
      options.world_size = world_size;
      options.generation = generation;
      options.deadline = deadline;
      auto made = make_gloo_communicator(
          options, [&](std::string mine) { return expected<std::vector<std::string>>{place.exchange(rank, mine)}; });
      if (made)
        members_[rank] = std::move(*made);
      else
        errors[rank] = made.error();
    });
    for (const auto& x : errors)
      if (x.code != errc::none)
        throw std::runtime_error{x.message};
  }

  /// Leaves in all threads at once, as processes would.
  ~gloo_group() {
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

} // namespace troupe::collectives::testing
