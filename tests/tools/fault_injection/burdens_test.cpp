#include "load.hpp"
#include "log_pipe.hpp"
#include "small_disk.hpp"

#include <processes.hpp>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>

using namespace troupe::chaos;
using namespace troupe::testing;

namespace {

/// A small disk in its own directory.
struct disk_on_loop_device {
  scratch_directory scratch;
  std::unique_ptr<small_disk> disk;

  disk_on_loop_device() {
    std::string reason;
    std::filesystem::create_directories(where());
    disk = small_disk::on_loop_device(scratch.path() / "image", where(), reason);
    if (!disk) {
      CHECK_FALSE(reason.empty());
      std::printf("SKIP: %s\n", reason.c_str());
    }
  }

  [[nodiscard]] std::filesystem::path where() const { return scratch.path() / "disk"; }

  /// A process that writes to the disk, after a line to its output.
  [[nodiscard]] child_process start_writer() const {
    return {{{"/bin/sh", "-c", "echo begun; echo text > '" + (where() / "file").string() + "'"}},
            scratch.path() / "writer"};
  }
};

bool sleeps_uninterruptibly(pid_t pid) {
  return read_file("/proc/" + std::to_string(pid) + "/status").find("State:\tD") != std::string::npos;
}

/// A program that is being loaded from a busy disk sleeps like this, too, but can be killed.
bool waits_for_disk(const child_process& writer) {
  return !writer.out().empty() && sleeps_uninterruptibly(writer.pid());
}

} // namespace

TEST_CASE("who writes to a log that nobody reads waits until it is read again") {
  scratch_directory scratch;
  log_pipe log{scratch.path() / "pipe", scratch.path() / "log"};
  const auto writer = ::open(log.path().c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(writer >= 0);
  auto write = [writer](std::string_view text) {
    return ::write(writer, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  };
  CHECK(write("before\n"));
  log.drain();
  CHECK(read_file(scratch.path() / "log") == "before\n");

  log.hold();
  CHECK(log.held());
  CHECK_FALSE(write("x"));
  CHECK(errno == EAGAIN);

  log.release();
  log.drain();
  CHECK(write("after\n"));
  log.drain();
  CHECK(read_file(scratch.path() / "log").ends_with("\nafter\n"));
  ::close(writer);
}

TEST_CASE("a flood appears as the output of the process, and ends when nobody takes it") {
  scratch_directory scratch;
  child_process victim{{{"/bin/sleep", "1000"}}, scratch.path() / "victim"};
  // Until it executes its program, its output is this one's.
  REQUIRE(becomes_true([&] {
    auto code = std::error_code{};
    const auto program = std::filesystem::read_symlink("/proc/" + std::to_string(victim.pid()) + "/exe", code);
    return program.filename() == "sleep";
  }));
  output_flood flood{victim.pid(), 1'000'000};
  REQUIRE(becomes_true([&] { return flood.over(); }));
  CHECK(flood.written_bytes() == 1'000'000);
  CHECK(victim.out().size() == 1'000'000);

  victim.signal(SIGKILL);
  victim.wait();
  output_flood nobodys{victim.pid(), 1'000'000};
  REQUIRE(becomes_true([&] { return nobodys.over(); }));
  CHECK(nobodys.written_bytes() == 0);
}

TEST_CASE("who writes to a frozen disk cannot be killed until it thaws") {
  disk_on_loop_device here;
  if (!here.disk)
    return;
  REQUIRE(here.disk->freeze());
  CHECK_FALSE(here.disk->freeze());
  auto writer = here.start_writer();
  CHECK(becomes_true([&] { return waits_for_disk(writer); }));
  writer.signal(SIGKILL);
  CHECK(sleeps_uninterruptibly(writer.pid()));
  CHECK(writer.running());
  here.disk->thaw();
  CHECK(writer.wait() == exit_status{{}, SIGKILL});
}

TEST_CASE("a disk thaws when the process that froze it is killed") {
  disk_on_loop_device here;
  if (!here.disk)
    return;
  std::array<int, 2> report{};
  REQUIRE(::pipe(report.data()) == 0);
  const auto freezer = ::fork();
  if (freezer == 0) {
    const auto frozen = here.disk->freeze() ? 'y' : 'n';
    (void)!::write(report[1], &frozen, 1);
    for (;;)
      ::pause();
  }
  auto frozen = 'n';
  REQUIRE(::read(report[0], &frozen, 1) == 1);
  CHECK(frozen == 'y');
  auto writer = here.start_writer();
  CHECK(becomes_true([&] { return waits_for_disk(writer); }));
  send_signal(freezer, SIGKILL);
  ::waitpid(freezer, nullptr, 0);
  CHECK(writer.wait() == exit_status{0, {}});
  ::close(report[0]);
  ::close(report[1]);
}

TEST_CASE("a disk is full until it is freed") {
  disk_on_loop_device here;
  if (!here.disk)
    return;
  here.disk->fill();
  CHECK(here.start_writer().wait() != exit_status{0, {}});
  here.disk->free();
  CHECK(here.start_writer().wait() == exit_status{0, {}});
}
