#pragma once

#include "rank_link.hpp"

#include <troupe/collectives/communicator.hpp>
#include <troupe/collectives/shared_pool.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace troupe::bench {

class gloo_peer;
class plain_sockets;

/// Floats, and what owns their memory.
using shared_floats = std::shared_ptr<std::span<float>>;

/// One way to sum floats over all ranks: one rank's part, for one size.
class contender {
 public:
  contender() = default;
  contender(const contender&) = delete;
  contender& operator=(const contender&) = delete;
  virtual ~contender() = default;

  /// This rank's contribution, to be written before `run`.
  [[nodiscard]] virtual std::span<float> input() = 0;

  /// The timed operation. Throws `troupe::exception`.
  virtual void run() = 0;

  /// The sum; for `limit`, this rank's share of it.
  [[nodiscard]] virtual std::span<const float> result() const = 0;

  /// The index in the sum of the first element of `result`.
  [[nodiscard]] virtual std::uint64_t first_element() const { return 0; }
};

/// The names of all contenders in this program.
[[nodiscard]] std::span<const std::string_view> contender_names() noexcept;

/// The data shared by the contenders of one rank: the process's memory and the groups, which are formed on first use.
class contender_factory {
 public:
  /// `host` is the address at which the other ranks reach this one.
  contender_factory(rank_link& link, std::string host);
  ~contender_factory();

  /// All ranks call it with the same arguments. Contenders that use registered memory get the same block while `bytes`
  /// stays the same.
  [[nodiscard]] std::unique_ptr<contender> make(std::string_view name, std::uint64_t bytes);

 private:
  enum class cipher : std::uint8_t { none, tls };

  collectives::communicator& shm();
  collectives::communicator& tcp(cipher how);
  collectives::communicator& two_hosts(cipher how);
  collectives::communicator& ucx();
  shared_floats registered(std::uint64_t bytes);

  rank_link& link_;
  std::string host_;
  std::shared_ptr<collectives::shared_pool> pool_;
  std::unique_ptr<collectives::communicator> shm_;
  std::unique_ptr<collectives::communicator> tcp_;
  std::unique_ptr<collectives::communicator> tcp_encrypted_;
  std::unique_ptr<collectives::communicator> two_hosts_;
  std::unique_ptr<collectives::communicator> two_hosts_encrypted_;
  std::unique_ptr<collectives::communicator> ucx_;
  std::shared_ptr<gloo_peer> gloo_;
  std::unique_ptr<plain_sockets> sockets_;
  /// Of the size requested last, while it is in use.
  std::weak_ptr<std::span<float>> registered_;
};

} // namespace troupe::bench
