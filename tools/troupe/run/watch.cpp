#include "run/control_commands.hpp"
#include "run/run_curves.hpp"
#include "run/status_text.hpp"

#include "checkpoint/text.hpp"

#include <troupe/runtime/control_client.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sys/ioctl.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::tool {

namespace {

using runtime::absence;
using runtime::absent_driver;
using runtime::control_client;
using ordered = nlohmann::ordered_json;
using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// Between two lines of progress where nothing is redrawn.
constexpr auto line_interval = 5s;
/// Between two looks at the run's files.
constexpr auto watch_interval = 2s;
/// How long a run without a driver may wait for another.
constexpr auto takeover_patience = 5s;

std::size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col - 1U : 99U;
}

/// Shows a run on standard output: on a terminal a block that is drawn again in place, else lines; or lines of JSON.
class run_display {
 public:
  /// `run` outlives it.
  run_display(const runtime::run_access& run, output_format output)
      : run_(run), output_(output), redraws_(output == output_format::text && ::isatty(STDOUT_FILENO) != 0) {}
  run_display(const run_display&) = delete;
  run_display& operator=(const run_display&) = delete;
  ~run_display() { std::fflush(stdout); }

  void show(const ordered& event) {
    if (output_ == output_format::json)
      return print(event.dump(-1, ' ', false, ordered::error_handler_t::replace));
    const auto kind = event.value("event", std::string{});
    if (kind == "status" || kind == "ended")
      return show_status(event.value("status", ordered::object()), kind == "ended");
    if (const auto line = event_line(event); !line.empty())
      say(line);
  }

  /// A line that stays.
  void say(const std::string& line) {
    if (output_ == output_format::json)
      return;
    erase();
    print(line);
    draw();
  }

  /// The last line.
  void finish(const std::string& line) const {
    if (output_ == output_format::text)
      print(line);
  }

  /// The run's last status.
  [[nodiscard]] const ordered& status() const noexcept { return status_; }

 private:
  void show_status(ordered status, bool is_last) {
    const auto is_other = status.value("state", std::string{}) != status_.value("state", std::string{});
    status_ = std::move(status);
    if (redraws_) {
      look_at_files();
      erase();
      draw();
    } else if (is_other || is_last || clock::now() > next_line_) {
      next_line_ = clock::now() + line_interval;
      print(status_line(status_));
    }
  }

  void look_at_files() {
    if (clock::now() < next_look_)
      return;
    next_look_ = clock::now() + watch_interval;
    // A copy that is old is shown as it is.
    extras_ = {read_curve(run_.directory(), main_metric(status_)), read_slowest(run_.directory())};
  }

  void erase() {
    if (drawn_ > 0)
      fmt::print("\x1b[{}F\x1b[J", std::exchange(drawn_, 0));
  }

  void draw() {
    if (!redraws_ || status_.empty())
      return;
    const auto lines = describe_status(status_, extras_, terminal_width());
    for (const auto& line : lines)
      fmt::print("{}\n", line);
    drawn_ = lines.size();
    std::fflush(stdout);
  }

  static void print(const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  const runtime::run_access& run_;
  output_format output_;
  bool redraws_;
  ordered status_ = ordered::object();
  status_extras extras_;
  std::size_t drawn_ = 0;
  clock::time_point next_line_{};
  clock::time_point next_look_{};
};

int trouble(const std::string& text, int code) {
  fmt::print(stderr, "troupe watch: {}\n", printable(text));
  return code;
}

int end(run_display& display, const ordered& status) {
  display.finish(end_text(status));
  return status.value("exit_code", 0);
}

/// Shows events until the run ends or its driver is gone. Returns the exit code, or nothing in the second case.
std::optional<int> follow(control_client& driver, run_display& display) {
  const auto status = driver.ask(actors::watch_request{});
  if (!status && status.error().code != errc::unreachable)
    return trouble(status.error().message, exit_trouble);
  if (!status)
    return std::nullopt;
  display.show({{"event", "status"}, {"status", *status}});
  for (;;) {
    const auto event = driver.next_event(60s);
    if (!event)
      return std::nullopt;
    if (!*event)
      continue;
    display.show(**event);
    if ((**event).value("event", std::string{}) == "ended")
      return end(display, display.status());
  }
}

} // namespace

int watch(const run_choice& given) {
  const auto run = open_run(given);
  if (!run)
    return trouble(run.error().message, exit_trouble);
  auto display = run_display{*run, given.output};
  auto announced = std::string{};
  std::optional<clock::time_point> gone;
  for (;; std::this_thread::sleep_for(50ms)) {
    auto found = run->find_driver();
    if (auto* driver = std::get_if<control_client>(&found)) {
      gone.reset();
      if (const auto code = follow(*driver, display))
        return *code;
      continue;
    }
    const auto& absent = std::get<absent_driver>(found);
    if (absent.why == absence::ended) {
      const auto status = run->stored_status(absent.why);
      display.show({{"event", "ended"}, {"status", status}});
      return end(display, status);
    }
    // Another driver may take the run over, and one that waits for nodes begins some time.
    gone = gone.value_or(clock::now());
    if (absent.why == absence::lost && clock::now() - *gone > takeover_patience)
      return trouble(absent.text, exit_found);
    if (absent.why == absence::elsewhere || absent.why == absence::deaf)
      return trouble(absent.text, exit_trouble);
    if (std::exchange(announced, absent.text) != absent.text)
      display.say(printable(absent.text));
  }
}

} // namespace troupe::tool
