#pragma once

#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

/// A page about runs, for browsers.
namespace troupe::runtime {

struct dashboard_options {
  /// Port 0: the system chooses one. Beyond loopback a token and a certificate are required.
  endpoint listen = {"127.0.0.1", 0};
  /// The directory in which the runs are, or a run's own.
  std::filesystem::path storage = "runs";
  /// What clients must know; empty for none.
  std::string token = {};
  /// PEM files, for HTTPS; empty for plain HTTP.
  std::filesystem::path certificate = {};
  std::filesystem::path key = {};
};

/// Serves the page, and steers runs over the sockets in their directories. Has a thread that accepts connections and 16
/// others, which wait. Ends with its destructor, which takes less than a second.
class dashboard {
 public:
  /// Fails with `errc::invalid_argument` for options that are refused, and `errc::already_exists` if the port is in
  /// use.
  [[nodiscard]] static expected<std::unique_ptr<dashboard>> open(dashboard_options options);

  dashboard(const dashboard&) = delete;
  dashboard& operator=(const dashboard&) = delete;
  ~dashboard();

  /// "http://127.0.0.1:8265/", without the token.
  [[nodiscard]] std::string url() const;

 private:
  class impl;
  explicit dashboard(std::unique_ptr<impl> state);

  std::unique_ptr<impl> impl_;
};

/// The token in a file, without white space at its ends. Fails with `errc::invalid_argument` if others than its owner
/// may read the file or it is shorter than 16 characters, and with `errc::io_error`.
[[nodiscard]] expected<std::string> read_token_file(const std::filesystem::path& path);

/// The same page as one file without a server, about one run, with this status.
[[nodiscard]] std::string render_report(const std::filesystem::path& run, const nlohmann::ordered_json& status);

} // namespace troupe::runtime
