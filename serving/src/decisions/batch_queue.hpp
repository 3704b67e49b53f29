#pragma once

#include "decisions/time_point.hpp"

#include <troupe/serving/server.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

namespace troupe::serving {

/// Decides which waiting requests are predicted next. Without clock and thread.
class batch_queue {
 public:
  using ticket = std::uint64_t;

  /// Whole requests, in the order of their arrival: at most `max_rows` rows, or one larger request.
  struct batch {
    std::vector<ticket> tickets;
    std::uint64_t rows = 0;
  };
  /// The batch may still fill: ask again when a request comes, or then.
  struct wait_until {
    time_point when;
  };
  /// Ask again when a request comes.
  struct wait_for_request {};
  using decision = std::variant<batch, wait_until, wait_for_request>;

  explicit batch_queue(const batch_config& config) : config_(config) {}

  /// Adds a request; nothing if it does not fit.
  [[nodiscard]] std::optional<ticket> offer(std::uint64_t rows, time_point now, time_point deadline);

  /// Adds a request again that was in a batch and has no prediction: it is the next, in a batch of its own.
  void put_back(ticket which, std::uint64_t rows, time_point deadline);

  /// Removes a request; false if it is not waiting.
  bool withdraw(ticket which);

  /// What a free replica does. Removes the requests of a batch, and those whose deadline has passed, which are in none.
  [[nodiscard]] decision next(time_point now);

  [[nodiscard]] std::uint64_t queued_rows() const noexcept { return queued_rows_; }
  [[nodiscard]] std::size_t queued_requests() const noexcept { return waiting_.size(); }

 private:
  struct entry {
    ticket number;
    std::uint64_t rows;
    time_point arrived;
    time_point deadline;
    bool is_alone = false;
  };

  void drop_expired(time_point now);

  batch_config config_;
  std::deque<entry> waiting_;
  std::uint64_t queued_rows_ = 0;
  ticket last_ = 0;
};

} // namespace troupe::serving
