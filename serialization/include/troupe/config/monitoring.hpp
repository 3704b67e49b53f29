#pragma once

#include <string>

namespace troupe {

/// Where a run's metrics go, besides the files in its directory. None of it takes time from a step, and none of it can
/// fail a run once that has begun.
struct monitoring_config {
  /// Writes TensorBoard's event files into the run's directory, in `tensorboard/`.
  bool tensorboard = false;
  /// `HOST:PORT` of the driver's HTTP endpoint, with `/metrics` for Prometheus, `/healthz` and `/readyz`; port 0: the
  /// system chooses one, and a notice names it. Empty: nothing listens. Whoever reaches it can read, and only read.
  std::string metrics_address = {};
};

} // namespace troupe
