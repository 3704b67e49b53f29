#include "driver/control_port.hpp"

#include <processes.hpp>
#include <scratch_directory.hpp>

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/runtime/control_socket.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

using namespace troupe;
using namespace troupe::runtime;
using troupe::collectives::unique_fd;
using troupe::testing::becomes_true;
using troupe::testing::scratch_directory;

namespace {

/// A port that answers each line with the same line.
std::unique_ptr<actors::control_port> open_echo(const std::filesystem::path& directory,
                                                const control_port_limits& limits = {}) {
  auto port = open_control_port(directory, limits);
  REQUIRE_MESSAGE(port, (port ? "" : port.error().message));
  (*port)->serve([raw = port->get()](actors::control_port::connection from, const std::string& line) {
    if (line.starts_with("subscribe"))
      raw->subscribe(from);
    raw->answer(from, line);
  });
  return std::move(*port);
}

unique_fd connect(const std::filesystem::path& directory) {
  auto made = connect_to_run(directory);
  REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
  return unique_fd{*made};
}

void send_text(const unique_fd& to, const std::string& text) {
  REQUIRE(::send(to.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
}

/// The next line; what came at the end of the connection without one.
std::string read_line(const unique_fd& from) {
  std::string result;
  for (char c = 0; ::recv(from.get(), &c, 1, 0) == 1;) {
    if (c == '\n')
      return result;
    result += c;
  }
  return result + "(end)";
}

} // namespace

TEST_CASE("lines are answered over a socket that is its owner's alone, in a directory of any length") {
  scratch_directory scratch;
  auto directory = scratch.path();
  SUBCASE("short") {}
  SUBCASE("longer than a socket's address") {
    directory /= std::string(120, 'a');
    directory /= std::string(120, 'b');
    std::filesystem::create_directories(directory);
  }
  const auto port = open_echo(directory);
  struct stat status {};
  REQUIRE(::lstat((directory / control_socket_name).c_str(), &status) == 0);
  CHECK(S_ISSOCK(status.st_mode));
  CHECK((status.st_mode & 0777) == 0600);
  const auto client = connect(directory);
  send_text(client, "one\ntwo\n");
  CHECK(read_line(client) == "one");
  CHECK(read_line(client) == "two");
}

TEST_CASE("the end of a port removes its socket, and not that of another driver") {
  scratch_directory scratch;
  const auto path = scratch.path() / control_socket_name;
  auto first = open_echo(scratch.path());
  auto second = open_echo(scratch.path());
  first.reset();
  CHECK(std::filesystem::exists(path));
  const auto client = connect(scratch.path());
  send_text(client, "hello\n");
  CHECK(read_line(client) == "hello");
  second.reset();
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK(read_line(client) == "(end)");
  CHECK(connect_to_run(scratch.path()).error().code == errc::connection_refused);
}

TEST_CASE("the socket of a process that was killed is replaced") {
  scratch_directory scratch;
  const auto child = ::fork();
  if (child == 0) {
    auto port = open_control_port(scratch.path());
    // Nothing is cleaned up.
    ::_exit(port ? 0 : 1);
  }
  auto status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  CHECK(std::filesystem::exists(scratch.path() / control_socket_name));
  CHECK(connect_to_run(scratch.path()).error().code == errc::connection_refused);
  const auto port = open_echo(scratch.path());
  const auto client = connect(scratch.path());
  send_text(client, "hello\n");
  CHECK(read_line(client) == "hello");
}

TEST_CASE("subscribers get what is published, and the last lines before the end") {
  scratch_directory scratch;
  auto port = open_echo(scratch.path());
  const auto watching = connect(scratch.path());
  const auto other = connect(scratch.path());
  CHECK_FALSE(port->has_subscribers());
  send_text(watching, "subscribe\n");
  CHECK(read_line(watching) == "subscribe");
  CHECK(port->has_subscribers());
  port->publish("news");
  port->publish("the last");
  port.reset();
  CHECK(read_line(watching) == "news");
  CHECK(read_line(watching) == "the last");
  CHECK(read_line(watching) == "(end)");
  CHECK(read_line(other) == "(end)");
}

TEST_CASE("a peer that sends and closes is heard, and one that only stops sending is answered") {
  scratch_directory scratch;
  auto port = open_echo(scratch.path());
  {
    const auto hasty = connect(scratch.path());
    send_text(hasty, "subscribe\n");
  }
  // Heard, and forgotten as soon as it is seen to be gone.
  CHECK(becomes_true([&] { return !port->has_subscribers(); }));
  const auto half = connect(scratch.path());
  send_text(half, "hello\n");
  REQUIRE(::shutdown(half.get(), SHUT_WR) == 0);
  CHECK(read_line(half) == "hello");
  CHECK(read_line(half) == "(end)");
}

TEST_CASE("a reader that does not read is closed, and delays nobody") {
  scratch_directory scratch;
  control_port_limits limits;
  limits.line.output_bytes = 100'000;
  auto port = open_echo(scratch.path(), limits);
  const auto stuck = connect(scratch.path());
  send_text(stuck, "subscribe\n");
  CHECK(becomes_true([&] { return port->has_subscribers(); }));
  const auto line = std::string(10'000, 'x');
  for (auto i = 0; i < 1000 && port->has_subscribers(); ++i)
    port->publish(line);
  CHECK(becomes_true([&] { return !port->has_subscribers(); }));
  const auto client = connect(scratch.path());
  send_text(client, "hello\n");
  CHECK(read_line(client) == "hello");
}

TEST_CASE("silent connections make room for one that asks, and a flood ends its own connection alone") {
  scratch_directory scratch;
  control_port_limits limits;
  limits.connections = 4;
  limits.line.line_bytes = 100;
  const auto port = open_echo(scratch.path(), limits);
  std::vector<unique_fd> silent;
  for (auto i = 0; i < 20; ++i)
    silent.push_back(connect(scratch.path()));
  const auto client = connect(scratch.path());
  send_text(client, "hello\n");
  CHECK(read_line(client) == "hello");
  const auto flood = connect(scratch.path());
  send_text(flood, std::string(5'000, 'x'));
  CHECK(read_line(flood).find("too long") != std::string::npos);
  send_text(client, "again\n");
  CHECK(read_line(client) == "again");
  // None of those that have asked gives way.
  std::vector<unique_fd> asking;
  for (auto i = 0; i < 3; ++i) {
    asking.push_back(connect(scratch.path()));
    send_text(asking.back(), "one\n");
    CHECK(read_line(asking.back()) == "one");
  }
  const auto superfluous = connect(scratch.path());
  CHECK(read_line(superfluous).find("too many") != std::string::npos);
}

TEST_CASE("a port answers its user and root, and no other user") {
  if (::geteuid() != 0) {
    CHECK(::geteuid() != 0);
    std::printf("SKIP: another user can be tried by root only\n");
    return;
  }
  scratch_directory scratch;
  // Of the file's mode alone it is not to depend.
  std::filesystem::permissions(scratch.path(), std::filesystem::perms::all);
  const auto port = open_echo(scratch.path());
  const auto answer_to_another = [&] {
    std::array<int, 2> pipe{};
    REQUIRE(::pipe(pipe.data()) == 0);
    const auto child = ::fork();
    if (child == 0) {
      auto text = std::string{"no user"};
      if (::setgid(65534) == 0 && ::setuid(65534) == 0) {
        auto made = connect_to_run(scratch.path());
        text = made ? read_line(unique_fd{*made}) : std::string{to_string(made.error().code)};
      }
      std::ignore = ::write(pipe[1], text.data(), text.size());
      ::_exit(0);
    }
    ::close(pipe[1]);
    std::string result(1000, '\0');
    const auto size = ::read(pipe[0], result.data(), result.size());
    ::close(pipe[0]);
    ::waitpid(child, nullptr, 0);
    result.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    return result;
  };
  CHECK(answer_to_another() == "not_authenticated");
  std::filesystem::permissions(scratch.path() / control_socket_name, std::filesystem::perms::all);
  CHECK(answer_to_another().find("another user") != std::string::npos);
}

TEST_CASE("a directory that cannot hold a socket is an error") {
  const auto port = open_control_port("/proc");
  REQUIRE_FALSE(port);
  CHECK(port.error().code == errc::io_error);
  CHECK_FALSE(open_control_port("/nowhere/at/all"));
}
