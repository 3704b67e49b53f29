#pragma once

#include <functional>
#include <memory>

namespace troupe::runtime {

/// Turns SIGINT and SIGTERM into calls, on a thread of its own, for as long as it lives; puts the program's own
/// handling back afterwards. At most one exists at a time.
class signal_watch {
 public:
  /// `react` gets the signal's number and how many have come by now.
  explicit signal_watch(std::function<void(int signal, int count)> react);
  ~signal_watch();
  signal_watch(const signal_watch&) = delete;
  signal_watch& operator=(const signal_watch&) = delete;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::runtime
