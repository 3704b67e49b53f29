#pragma once

#include <troupe/collectives/address_exchange.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <string>
#include <vector>

namespace troupe::collectives {

/// One rank's description of its device to the others, before the transport for gradients is chosen.
struct device_offer {
  /// The GPU's UUID: equal for ranks that share one.
  std::string device;
  /// "NCCL 2.28.9"; empty if it cannot be opened.
  std::string nccl;

  bool operator==(const device_offer&) const = default;
};

/// An all-gather of offers among the ranks of a generation, in rank order. Fails with the exchange's error, or with
/// `errc::mismatch` if a blob is from another generation.
[[nodiscard]] expected<std::vector<device_offer>>
exchange_device_offers(generation_id generation, const device_offer& mine, const address_exchange& exchange);

} // namespace troupe::collectives
