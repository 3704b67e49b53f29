#pragma once

#include <string>

namespace troupe::testing {

/// What ThreadSanitizer reports in the processes that a test binary starts, and in those that they start. Such a
/// process goes on after a report, and a run outlives the end of its workers: the test would pass and nobody would read
/// it. In other builds this does nothing.
class sanitizer_reports {
 public:
  /// Sends the reports of processes that are started from now on to files of ours. Our own still go to standard error.
  sanitizer_reports();
  sanitizer_reports(const sanitizer_reports&) = delete;
  sanitizer_reports& operator=(const sanitizer_reports&) = delete;
  /// Removes the files.
  ~sanitizer_reports();

  /// All reports until now; empty when there are none.
  [[nodiscard]] std::string text() const;

 private:
  std::string directory_;
};

} // namespace troupe::testing
