#pragma once

#include "net/tls_session.hpp"

#include <troupe/error.hpp>
#include <troupe/runtime/keys.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace troupe::runtime {

/// The current keys of one end, read from its files: a renewed certificate and new revocations take effect at the next
/// connection. Unusable or missing files are logged once, and the previous keys stay in use. Thread-safe.
class key_source {
 public:
  using log_function = std::function<void(const std::string&)>;

  /// Fails as `tls_context::make` does.
  [[nodiscard]] static expected<std::shared_ptr<key_source>> make(tls_files files, log_function log = {});

  /// Looks at the files, and reads them if they have changed.
  [[nodiscard]] std::shared_ptr<const tls_context> current();

  [[nodiscard]] const tls_files& files() const noexcept { return files_; }

  /// Logs for the users of these keys.
  void log(const std::string& line) const {
    if (log_)
      log_(line);
  }

  /// Use `make`.
  key_source(tls_files files, log_function log) : files_(std::move(files)), log_(std::move(log)) {}

 private:
  /// Identifies a version of a file; zeros if the file does not exist.
  struct file_version {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::int64_t size_bytes = 0;
    std::int64_t seconds = 0;
    std::int64_t nanoseconds = 0;

    bool operator==(const file_version&) const = default;
  };
  using versions = std::array<file_version, 4>;

  [[nodiscard]] versions look() const;

  const tls_files files_;
  const log_function log_;
  std::mutex mutex_;
  versions seen_;
  std::shared_ptr<const tls_context> context_;
};

} // namespace troupe::runtime
