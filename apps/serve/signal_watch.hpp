#pragma once

#include <troupe/collectives/unique_fd.hpp>

#include <functional>
#include <thread>

namespace serve {

/// What a program does on signals.
struct signal_reactions {
  /// On SIGHUP. Does not wait.
  std::function<void()> reload;
  /// On the first SIGINT or SIGTERM, with its number. The second one ends the process, whatever this does.
  std::function<void(int signal)> stop;
};

/// Receives signals in a thread of its own, so that they work whatever the others do. By handlers, not by blocking
/// them: a library may have started threads before `main`, which block nothing. One at a time.
class signal_watch {
 public:
  /// Throws `troupe::exception`.
  explicit signal_watch(signal_reactions reactions);
  /// Without a signal, too. Waits for a reaction that is under way.
  ~signal_watch();
  signal_watch(const signal_watch&) = delete;
  signal_watch& operator=(const signal_watch&) = delete;

  /// Returns once the reaction `stop` has.
  void wait();

 private:
  void run();

  signal_reactions reactions_;
  /// Carries the numbers of signals; ends with the watch.
  troupe::collectives::unique_fd from_;
  troupe::collectives::unique_fd to_;
  std::thread thread_;
};

} // namespace serve
