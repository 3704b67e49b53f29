#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/secure_stream.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace troupe::serving {

/// What a connection to a process is used for.
struct link_use {
  std::uint32_t replica = 0;
  /// The model that it predicts with; empty while it waits for one.
  std::string model;

  bool operator==(const link_use&) const = default;
};

/// The waiting connection for another copy of `model`: of a process that has no copy of it or, with `takes_any`, of the
/// one that has the fewest; of several, of that with the fewest of any model. Nothing if there is none. Pure.
[[nodiscard]] std::optional<std::size_t> choose_link(std::span<const link_use> links, const std::string& model,
                                                     bool takes_any);

/// The connections from the processes of replicas. Thread-safe. Owned by a `shared_ptr`.
class replica_links : public std::enable_shared_from_this<replica_links> {
  struct link {
    link_use use;
    std::stop_source stop;
    runtime::secure_stream stream;
  };

 public:
  /// A connection for one model, until this is destroyed. Used by one thread at a time.
  class lease {
   public:
    lease(lease&& other) noexcept : owner_(std::move(other.owner_)), link_(std::exchange(other.link_, nullptr)) {}
    lease& operator=(lease&&) = delete;
    ~lease() {
      if (link_ != nullptr)
        owner_->end(link_);
    }

    /// Its calls fail with `errc::unreachable` or `errc::aborted` once the process is gone.
    [[nodiscard]] runtime::secure_stream& stream() noexcept { return link_->stream; }

   private:
    friend class replica_links;
    lease(std::shared_ptr<replica_links> owner, link* what) noexcept : owner_(std::move(owner)), link_(what) {}

    std::shared_ptr<replica_links> owner_;
    link* link_;
  };

  /// `patience`: how long a process without a copy of the model is waited for. `limit`: how long any is.
  replica_links(std::chrono::milliseconds patience, std::chrono::milliseconds limit)
      : patience_(patience), limit_(limit) {}

  /// A process has connected, for one more model.
  void add(std::uint32_t replica, runtime::secure_stream stream);

  /// Waits for a connection to load `model`. Fails with `errc::unreachable` without one until the limit, and with
  /// `errc::stopped` after `close`.
  [[nodiscard]] expected<lease> take(const std::string& model);

  /// The process has ended: so do its connections.
  void drop(std::uint32_t replica);

  /// Waits until a process is connected; false at the deadline, and after `close`.
  [[nodiscard]] bool await_first(std::chrono::steady_clock::time_point deadline);

  /// Ends all connections, and lets those go who wait.
  void close();

 private:
  void end(link* what);

  const std::chrono::milliseconds patience_;
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_closed_ = false;
  bool has_had_any_ = false;
  std::list<link> links_;
};

} // namespace troupe::serving
