#pragma once

#include <filesystem>
#include <mutex>
#include <thread>

namespace troupe::chaos {

/// A pipe to which a process writes its log, and a thread that copies it to a file, as a terminal or a log collector
/// does. The thread can be told to stop reading.
class log_pipe {
 public:
  /// Makes a named pipe. Throws `std::runtime_error` if it cannot.
  log_pipe(std::filesystem::path pipe, const std::filesystem::path& log);
  log_pipe(const log_pipe&) = delete;
  log_pipe& operator=(const log_pipe&) = delete;
  ~log_pipe();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return pipe_; }

  /// Fills the pipe and stops reading, so that its writer blocks until `release`.
  void hold();
  void release();
  [[nodiscard]] bool held();

  /// Returns when all that was written so far is in the file; at once while held.
  void drain();

 private:
  void copy();
  void wake() const;

  std::filesystem::path pipe_;
  int reader_ = -1;
  int log_ = -1;
  int wake_ = -1;
  /// Guards the two below, and is locked while bytes are on their way from the pipe to the file.
  std::mutex mutex_;
  bool held_ = false;
  bool ends_ = false;
  std::thread thread_;
};

} // namespace troupe::chaos
