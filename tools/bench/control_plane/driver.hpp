#pragma once

#include "events.hpp"

#include <troupe/config.hpp>

namespace troupe::bench {

/// The process that is measured.
struct driver_setup {
  trainer_config config;
  event_writer events;
  /// A byte ends the run.
  int commands = -1;
};

/// Runs a trainer as `trainer::fit` does, until it is told to stop. Throws `exception`.
void run_driver(const driver_setup& setup);

} // namespace troupe::bench
