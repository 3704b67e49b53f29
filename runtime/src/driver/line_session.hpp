#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// What one connection may do, so that it takes no memory and little time from the run.
struct line_limits {
  std::size_t line_bytes = std::size_t{64} << 10;
  /// What waits for a reader.
  std::size_t output_bytes = std::size_t{4} << 20;
  /// Until the first whole line.
  std::chrono::milliseconds silence{30'000};
  /// Between two lines of one connection.
  std::chrono::milliseconds pace{5};
};

/// One connection that sends lines and gets lines: of its lines one is answered at a time. A plain class without a
/// socket; time is an argument.
class line_session {
 public:
  using time = std::chrono::steady_clock::time_point;

  line_session(const line_limits& limits, time now) : limits_(limits), began_(now) {}

  /// Whether more input may be taken in. The rest waits in the socket.
  [[nodiscard]] bool wants_input() const noexcept { return !is_over_ && in_.find('\n') == std::string::npos; }
  /// Takes in what was received. A line that is too long ends the session.
  void receive(std::string_view bytes);
  /// The next line to answer, unless the last one is not answered yet or it comes too soon.
  [[nodiscard]] std::optional<std::string> next_line(time now);
  /// When to ask for it again; nothing if there is none to come.
  [[nodiscard]] std::optional<time> next_line_at() const;

  void answer(std::string_view line);
  void subscribe() noexcept { is_subscribed_ = true; }
  [[nodiscard]] bool is_subscribed() const noexcept { return is_subscribed_; }
  /// A line for subscribers.
  void publish(std::string_view line);
  /// The last line, and the end.
  void end_with(std::string_view line);

  /// What is to be sent.
  [[nodiscard]] std::string_view output() const noexcept { return std::string_view{out_}.substr(sent_); }
  void on_sent(std::size_t bytes);

  /// Whether it has been silent for too long.
  [[nodiscard]] bool is_overdue(time now) const noexcept { return !has_asked_ && now - began_ > limits_.silence; }
  /// Whether nothing is to be answered, and nothing published.
  [[nodiscard]] bool is_idle() const noexcept {
    return !awaits_answer_ && !is_subscribed_ && in_.find('\n') == std::string::npos;
  }
  [[nodiscard]] bool has_asked() const noexcept { return has_asked_; }
  /// Whether nothing more is taken in: the connection is closed when the output is sent.
  [[nodiscard]] bool is_over() const noexcept { return is_over_; }
  /// Whether its reader is too slow: the connection is closed at once.
  [[nodiscard]] bool is_clogged() const noexcept { return is_clogged_; }

 private:
  void put(std::string_view line);

  line_limits limits_;
  time began_;
  std::string in_;
  std::string out_;
  std::size_t sent_ = 0;
  time next_at_{};
  bool has_asked_ = false;
  bool awaits_answer_ = false;
  bool is_subscribed_ = false;
  bool is_over_ = false;
  bool is_clogged_ = false;
};

} // namespace troupe::runtime
