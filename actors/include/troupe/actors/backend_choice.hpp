#pragma once

#include <troupe/actors/placement.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/messages.hpp>

#include <span>
#include <string>

namespace troupe::actors {

/// What carries the gradients, and why.
struct backend_choice {
  backend_kind backend = backend_kind::self;
  /// For people: "shared memory: all 4 workers are on one node".
  std::string reason;

  bool operator==(const backend_choice&) const = default;
};

/// Chooses from where the workers are. Pure. Fails with `errc::invalid_argument` where `mode` asks for what cannot be.
[[nodiscard]] expected<backend_choice> choose_backend(backend_mode mode, std::span<const worker_place> places);

} // namespace troupe::actors
