#pragma once

#include <troupe/actors/decisions/placement.hpp>
#include <troupe/collectives/device_offer.hpp>
#include <troupe/config/run.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/begin.hpp>
#include <troupe/messages/regroup.hpp>

#include <cstdint>
#include <span>
#include <string>

namespace troupe::actors {

/// The transport of the gradients, and why it was chosen.
struct transport_choice {
  transport_kind transport = transport_kind::self;
  /// For people: "shared memory: 4 workers on 1 node".
  std::string reason;

  bool operator==(const transport_choice&) const = default;
};

/// Chooses by the places of the workers. Pure. Fails with `errc::invalid_argument` if `mode` is impossible there.
[[nodiscard]] expected<transport_choice> choose_transport(transport_mode mode, std::span<const worker_place> places);

/// The transport of gradients in device memory. Everything else uses the other transport.
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
  /// For people: "the host's memory: ranks 0 and 1 share a GPU".
  std::string reason;

  bool operator==(const device_transport_choice&) const = default;
};

/// Chooses by the devices of the ranks: NCCL if each rank has a GPU to itself and all have the same version of the
/// library, else the host's memory. Pure: all ranks choose the same. Fails with `errc::unsatisfiable` if NCCL is asked
/// for by name and impossible.
[[nodiscard]] expected<device_transport_choice>
choose_device_transport(gpu_gradients mode, std::span<const collectives::device_offer> ranks);

} // namespace troupe::actors
