#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstddef>
#include <memory>

namespace troupe::runtime {

/// How many packets a worker may send without an exchange coming about; then its link is closed.
inline constexpr std::size_t max_fruitless_packets = 256;

/// Passes descriptors on among the workers of a node: each worker holds one end of a socket pair, this the other, and
/// once all local ranks of a run's generation have sent theirs, each gets those of the others (see `descriptor_link`).
/// Runs do not see each other; who a worker is follows from its socket.
///
/// Keeps a worker's descriptors until the exchange, the worker or the generation is over. One thread of its own serves
/// all sockets. All functions may be called from any thread.
class descriptor_broker {
 public:
  /// Fails when the kernel has no more descriptors or threads for us.
  [[nodiscard]] static expected<descriptor_broker> make();

  descriptor_broker(descriptor_broker&&) noexcept;
  descriptor_broker& operator=(descriptor_broker&&) noexcept;

  /// Closes all sockets: whoever waits fails with `errc::node_lost`.
  ~descriptor_broker();

  /// The worker's end of its socket pair; closes on exec until it is given to the child. The worker is forgotten when
  /// all copies of it are closed. Fails with `errc::already_exists` for a worker that is here.
  [[nodiscard]] expected<collectives::unique_fd> add(const run_id& run, worker_id worker);

  /// Forgets a worker; one that is not here too.
  void remove(const run_id& run, worker_id worker);

  /// Forgets a run and all its workers. Those who wait fail with `errc::stale_generation`.
  void end_run(const run_id& run);

 private:
  class impl;

  explicit descriptor_broker(std::unique_ptr<impl> state);

  std::unique_ptr<impl> impl_;
};

} // namespace troupe::runtime
