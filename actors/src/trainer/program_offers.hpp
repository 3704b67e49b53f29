#pragma once

#include "trainer/interface.hpp"
#include <troupe/actors/trainer.hpp>
#include <troupe/config.hpp>

#include <cstdint>
#include <stop_token>
#include <string>
#include <utility>

namespace troupe::actors {

/// Offers the workers' program to nodes, each in a thread of its own: it may be sent for long. Used in the trainer's
/// thread.
class program_offers {
 public:
  /// Sends `program_offered` to `self`.
  program_offers(trainer_base& self, cluster_config cluster, const trainer_services& services)
      : self_(&self), cluster_(std::move(cluster)), offer_(services.offer_program) {}
  program_offers(const program_offers&) = delete;
  program_offers& operator=(const program_offers&) = delete;
  ~program_offers() { stop(); }

  /// Whether nodes other than the driver's own are offered anything.
  [[nodiscard]] bool are_made() const noexcept { return offer_ != nullptr; }

  /// `connection` is the node's present one.
  void make(std::uint32_t node, std::uint64_t connection, const std::string& address);

  /// Ends those under way.
  void stop() { stop_.request_stop(); }

 private:
  trainer_base* self_;
  cluster_config cluster_;
  decltype(trainer_services::offer_program) offer_;
  std::stop_source stop_;
};

} // namespace troupe::actors
