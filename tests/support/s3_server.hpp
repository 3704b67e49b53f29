#pragma once

#include <processes.hpp>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace troupe::testing {

/// Whether a program of this name is in PATH.
inline bool is_in_path(const std::string& name) {
  return std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) == 0;
}

/// An S3 server of one's own on this machine, with an empty bucket "bucket": moto's, from $TROUPE_MOTO or python3's own
/// packages. It ends with this object.
class s3_server {
 public:
  /// Null if there is no rclone or no moto; `why` says which.
  static std::unique_ptr<s3_server> start(const std::filesystem::path& scratch, std::string& why) {
    if (!is_in_path("rclone")) {
      why = "rclone is not installed";
      return nullptr;
    }
    auto environment = std::map<std::string, std::string>{{"PYTHONUNBUFFERED", "1"}};
    if (const auto* moto = std::getenv("TROUPE_MOTO"); moto != nullptr)
      environment["PYTHONPATH"] = moto;
    auto result = std::unique_ptr<s3_server>{new s3_server{scratch, environment}};
    becomes_true([&] { return !result->port().empty() || !result->process_.running(); });
    if (!result->port().empty())
      return result;
    why = "moto's server cannot be started: pip install 'moto[s3]' flask flask-cors, and name its directory in "
          "TROUPE_MOTO";
    return nullptr;
  }

  /// What lets rclone reach it as "s3:".
  [[nodiscard]] std::map<std::string, std::string> environment() const {
    return {{"RCLONE_CONFIG", "/dev/null"},
            {"RCLONE_CONFIG_S3_TYPE", "s3"},
            {"RCLONE_CONFIG_S3_PROVIDER", "Other"},
            {"RCLONE_CONFIG_S3_ACCESS_KEY_ID", "test"},
            {"RCLONE_CONFIG_S3_SECRET_ACCESS_KEY", "test"},
            {"RCLONE_CONFIG_S3_ENDPOINT", "http://127.0.0.1:" + port()},
            // rclone's HTTP client cannot use it.
            {"AWS_CA_BUNDLE", ""},
            {"HTTP_PROXY", ""},
            {"http_proxy", ""}};
  }
  /// The same for this process and its children.
  void set_environment() const {
    for (const auto& [name, value] : environment())
      ::setenv(name.c_str(), value.c_str(), 1);
  }

  [[nodiscard]] child_process& process() noexcept { return process_; }

 private:
  s3_server(const std::filesystem::path& scratch, const std::map<std::string, std::string>& environment)
      : process_({{"/usr/bin/env", "python3", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"}, environment},
                 scratch / "s3-server") {}

  /// Empty until it listens.
  [[nodiscard]] std::string port() const {
    static const auto mark = std::string{"Running on http://127.0.0.1:"};
    const auto text = process_.out() + process_.err();
    const auto begin = text.find(mark);
    if (begin == std::string::npos)
      return {};
    const auto end = text.find('\n', begin);
    return end == std::string::npos ? std::string{} : text.substr(begin + mark.size(), end - begin - mark.size());
  }

  child_process process_;
};

} // namespace troupe::testing
