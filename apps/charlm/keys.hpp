#pragma once

#include <troupe/result.hpp>
#include <troupe/trainer.hpp>

#include <atomic>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace charlm {

/// Controls a run by single keys from standard input: kills and freezes workers, changes their number, pauses. Reads
/// the keys in its own thread until standard input ends, and restores the terminal's settings then.
class run_keys {
 public:
  /// Never asks for more than `most_workers`. `say` shows a line and must be callable from any thread.
  run_keys(troupe::trainer& trainer, std::uint64_t seed, std::uint32_t most_workers,
           std::function<void(const std::string&)> say);
  ~run_keys();
  run_keys(const run_keys&) = delete;
  run_keys& operator=(const run_keys&) = delete;

  /// Sets the present workers. Call it from the trainer's callbacks.
  void set_members(std::vector<troupe::worker_info> members);

  static constexpr const char* help =
      "keys: k kill a worker, f freeze one, + - one more or less, p pause or resume, c checkpoint, q stop, ? this line";

 private:
  class raw_terminal;

  void loop();
  void press(char key);
  /// Sends a signal to a random worker on this host.
  void hit(int signal, const char* what);
  void resize(int change);

  troupe::trainer& trainer_;
  std::function<void(const std::string&)> say_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::vector<troupe::worker_info> members_;
  std::uint32_t wanted_ = 0;
  std::uint32_t most_;
  bool paused_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

} // namespace charlm
