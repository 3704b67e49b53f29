#pragma once

#include "http/transport.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <httplib.h>
#include <memory>
#include <string>

namespace troupe::serving {

/// What a request's reader ran into.
enum class reading_trouble : std::uint8_t { none, too_large, late, ended };

/// One connection as cpp-httplib reads and writes it: buffered, with one deadline for all of a request, and bounds for
/// its bytes. Used by one thread.
class connection_stream final : public httplib::Stream {
 public:
  connection_stream(std::unique_ptr<transport> below, std::string peer, std::chrono::milliseconds send_timeout);

  /// A new request begins, with its head; its last byte must come before `deadline`.
  void begin_request(time_point deadline);

  /// The head has been read, and so many bytes may follow.
  void allow_body(std::uint64_t bytes) noexcept {
    allowed_ = bytes;
    is_head_ = false;
  }

  [[nodiscard]] bool is_head() const noexcept { return is_head_; }

  [[nodiscard]] reading_trouble trouble() const noexcept { return trouble_; }

  /// Whether bytes of a request are in memory.
  [[nodiscard]] bool has_buffered() const;

  /// Sends what was written; false if the connection is broken.
  [[nodiscard]] bool flush();

  /// Says that nothing more is sent, and reads on for a moment: a connection that is closed with unread bytes is reset,
  /// and the peer would not see the response.
  void linger();

  [[nodiscard]] transport& below() noexcept { return *below_; }

  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* target, size_t size) override;
  ssize_t write(const char* bytes, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  /// Asked only whether select could wait for it, which this class does not do.
  socket_t socket() const override { return 0; }

 private:
  [[nodiscard]] bool fill();

  std::unique_ptr<transport> below_;
  std::string peer_;
  std::chrono::milliseconds send_timeout_;
  time_point deadline_;
  bool is_head_ = true;
  /// How many bytes of the request may still come.
  std::uint64_t allowed_ = 0;
  reading_trouble trouble_ = reading_trouble::none;
  bool is_broken_ = false;
  std::array<char, 16'384> received_;
  std::size_t next_ = 0;
  std::size_t end_ = 0;
  std::string written_;
};

} // namespace troupe::serving
