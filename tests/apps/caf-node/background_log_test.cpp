#include <background_log.hpp>

#include <fmt/format.h>

#include <array>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <optional>
#include <string>
#include <unistd.h>

namespace {

/// A pipe that nobody reads until the test does.
class unread_pipe {
 public:
  unread_pipe() {
    REQUIRE(::pipe2(ends_.data(), O_CLOEXEC) == 0);
    ::fcntl(ends_[1], F_SETPIPE_SZ, 8192);
  }
  unread_pipe(const unread_pipe&) = delete;
  unread_pipe& operator=(const unread_pipe&) = delete;
  ~unread_pipe() {
    close_writer();
    ::close(ends_[0]);
  }

  [[nodiscard]] int writer() const { return ends_[1]; }
  void close_writer() {
    if (ends_[1] >= 0)
      ::close(ends_[1]);
    ends_[1] = -1;
  }

  /// The next line; nothing at the end.
  std::optional<std::string> read_line() const {
    std::string result;
    for (auto c = char{}; ::read(ends_[0], &c, 1) == 1; result += c)
      if (c == '\n')
        return result;
    return std::nullopt;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

} // namespace

TEST_CASE("lines wait for a reader, and those beyond a limit are dropped and counted") {
  unread_pipe pipe;
  background_log log{pipe.writer()};
  // More than fit into the pipe and the log. Nothing is read meanwhile.
  constexpr auto number = 3 * background_log::most_waiting_lines;
  for (std::size_t i = 0; i < number; ++i)
    log.add(fmt::format("line {}", i));
  // What is missing is missed where it would be. The log may find room in between, and say it several times.
  auto missing = std::size_t{0};
  for (std::size_t next = 0; next < number;) {
    const auto line = pipe.read_line();
    REQUIRE(line);
    if (line->starts_with("(")) {
      const auto here = std::stoul(line->substr(1));
      REQUIRE(*line == fmt::format("({} lines are missing here, because nobody read this log)", here));
      missing += here;
      next += here;
    } else {
      REQUIRE(*line == fmt::format("line {}", next++));
    }
  }
  CHECK(missing > 0);
  CHECK(number - missing >= background_log::most_waiting_lines);
  log.add("afterwards");
  CHECK(pipe.read_line() == "afterwards");
}

TEST_CASE("a log ends although nobody reads it") {
  unread_pipe pipe;
  {
    background_log log{pipe.writer()};
    for (std::size_t i = 0; i < 2 * background_log::most_waiting_lines; ++i)
      log.add(fmt::format("line {}", i));
  }
  CHECK(pipe.read_line() == "line 0");
}

TEST_CASE("what was added is written before a log ends that is read") {
  unread_pipe pipe;
  {
    background_log log{pipe.writer()};
    log.add("one");
    log.add("two");
  }
  pipe.close_writer();
  CHECK(pipe.read_line() == "one");
  CHECK(pipe.read_line() == "two");
  CHECK_FALSE(pipe.read_line());
}
