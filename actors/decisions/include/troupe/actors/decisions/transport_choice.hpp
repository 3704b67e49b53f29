#pragma once

#include <troupe/actors/decisions/placement.hpp>
#include <troupe/collectives/device_offer.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/begin.hpp>
#include <troupe/messages/regroup.hpp>

#include <cstdint>
#include <span>
#include <string>

namespace troupe::actors {

/// What carries the gradients, and why.
struct transport_choice {
  transport_kind transport = transport_kind::self;
  /// For people: "shared memory: all 4 workers are on one node".
  std::string reason;

  bool operator==(const transport_choice&) const = default;
};

/// Chooses from where the workers are. Pure. Fails with `errc::invalid_argument` where `mode` asks for what cannot be.
[[nodiscard]] expected<transport_choice> choose_transport(transport_mode mode, std::span<const worker_place> places);

/// What carries gradients that lie in device memory, beside the transport that all else goes by.
enum class device_transport : std::uint8_t {
  /// One worker: kernels alone.
  self,
  /// Through pinned memory of the host and the generation's communicator.
  staged,
  /// From device to device.
  nccl,
};

struct device_transport_choice {
  device_transport transport = device_transport::self;
  /// For people: "the host's memory: workers 0 and 1 share a GPU".
  std::string reason;

  bool operator==(const device_transport_choice&) const = default;
};

/// Chooses from the devices that the ranks have: NCCL where each has one to itself and all have the library in one
/// version, else the host. Pure, so that all ranks come to the same. Fails with `errc::unsatisfiable` where NCCL was
/// asked for by name and cannot be.
[[nodiscard]] expected<device_transport_choice>
choose_device_transport(gpu_gradients mode, std::span<const collectives::device_offer> ranks);

} // namespace troupe::actors
