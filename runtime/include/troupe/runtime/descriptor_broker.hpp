#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstddef>
#include <memory>

namespace troupe::runtime {

/// How many packets a worker may send between two completed exchanges; after more, its socket is closed.
inline constexpr std::size_t max_fruitless_packets = 256;

/// Exchanges file descriptors among the workers of a node. Each worker holds one end of a socket pair and the broker
/// the other. Once all local ranks of a group of a run have sent their descriptors, each receives those of the others
/// (see `descriptor_link`). The socket identifies the worker, and runs are separate.
///
/// Keeps a worker's descriptors until the exchange, the worker or the group is over. One thread serves all sockets. All
/// functions may be called from any thread.
class descriptor_broker {
 public:
  /// Fails if the limit on descriptors or threads is reached.
  [[nodiscard]] static expected<descriptor_broker> make();

  descriptor_broker(descriptor_broker&&) noexcept;
  descriptor_broker& operator=(descriptor_broker&&) noexcept;

  /// Closes all sockets. Pending exchanges fail with `errc::node_lost`.
  ~descriptor_broker();

  /// Returns the worker's end of its socket pair, which closes on exec. The worker is removed when all copies of it are
  /// closed. Fails with `errc::already_exists` for a worker that is already known.
  [[nodiscard]] expected<collectives::unique_fd> add(const run_id& run, worker_id worker);

  /// Removes a worker. Harmless for an unknown one.
  void remove(const run_id& run, worker_id worker);

  /// Removes a run and all its workers. Their pending exchanges fail with `errc::stale_generation`.
  void end_run(const run_id& run);

 private:
  class impl;

  explicit descriptor_broker(std::unique_ptr<impl> state);

  std::unique_ptr<impl> impl_;
};

} // namespace troupe::runtime
