#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

/// A log whose own thread writes lines to a file descriptor, so that a terminal or collector that stops reading blocks
/// nothing else. The destructor writes what it can without waiting.
class background_log {
 public:
  /// Lines beyond this number that wait are dropped; a line says how many.
  static constexpr std::size_t most_waiting_lines = 1000;

  explicit background_log(int fd) : fd_(fd), thread_([this] { write_lines(); }) {}
  background_log(const background_log&) = delete;
  background_log& operator=(const background_log&) = delete;
  ~background_log();

  /// Never waits. `line` has no end of line. From any thread.
  void add(std::string line);

 private:
  void write_lines();
  /// False if the log ends before all could be written.
  [[nodiscard]] bool write(std::string_view left);
  /// Waits until the descriptor takes bytes; false if the log ends before.
  [[nodiscard]] bool await_room();

  int fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> waiting_;
  std::uint64_t dropped_ = 0;
  bool ends_ = false;
  std::thread thread_;
};
