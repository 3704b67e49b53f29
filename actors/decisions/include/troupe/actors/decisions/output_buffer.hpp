#pragma once

#include <troupe/messages/node.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace troupe::actors {

/// The output lines of one run's workers that the driver has not taken yet. A worker that prints faster than the driver
/// takes its lines loses those beyond a limit; a line reports how many. A plain class.
class output_buffer {
 public:
  /// Of each worker; as strings, with some bytes for each.
  static constexpr std::size_t most_bytes = std::size_t{1} << 20;
  /// Limit of one message: small, because other messages wait behind it.
  static constexpr std::size_t batch_bytes = std::size_t{64} << 10;

  /// Returns whether there was nothing before.
  bool add(worker_output output);

  /// Takes some lines of the next worker in turn; nothing if there are none.
  [[nodiscard]] std::optional<worker_output> take();

  [[nodiscard]] bool empty() const noexcept { return turns_.empty(); }

 private:
  struct lines {
    std::deque<std::string> waiting;
    std::size_t bytes = 0;
    /// Lines dropped after the last waiting one.
    std::uint64_t dropped = 0;
    std::uint64_t batches = 0;
  };

  static std::size_t size_of(const std::string& line) noexcept { return line.size() + sizeof(std::string); }

  run_id run_;
  std::map<worker_id, lines> workers_;
  /// The workers that have lines, in the order in which they are served.
  std::deque<worker_id> turns_;
};

} // namespace troupe::actors
