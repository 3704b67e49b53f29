#pragma once

#include <string>

namespace troupe::testing {

/// Collects the ThreadSanitizer reports of processes that a test binary starts, directly or indirectly. A process
/// continues after a report, and a run tolerates failing workers, so without this the test would pass and the report
/// would be lost. Does nothing in other builds.
class sanitizer_reports {
 public:
  /// Redirects the reports of processes started from now on to files. Reports of this process still go to standard
  /// error.
  sanitizer_reports();
  sanitizer_reports(const sanitizer_reports&) = delete;
  sanitizer_reports& operator=(const sanitizer_reports&) = delete;
  /// Removes the files.
  ~sanitizer_reports();

  /// All reports so far; empty if there are none.
  [[nodiscard]] std::string text() const;

 private:
  std::string directory_;
};

} // namespace troupe::testing
