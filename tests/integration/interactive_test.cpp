#include "scratch_runs.hpp"

#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <termios.h>

using namespace troupe::testing;

namespace {

/// A pseudo-terminal whose keys the test presses.
class terminal {
 public:
  terminal() : fd_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    if (fd_ < 0 || ::grantpt(fd_) != 0 || ::unlockpt(fd_) != 0)
      return;
    path_ = ::ptsname(fd_);
    // The settings last while a process has it open.
    other_ = ::open(path_.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  }
  terminal(const terminal&) = delete;
  terminal& operator=(const terminal&) = delete;
  ~terminal() {
    ::close(other_);
    ::close(fd_);
  }

  /// Prints a message if there is none, as in a bare root directory without /dev/pts.
  [[nodiscard]] bool is_there() const {
    CHECK((other_ >= 0 || path_.empty() || !std::filesystem::exists(path_)));
    if (other_ < 0)
      std::printf("SKIP: no terminal to be had (is /dev/pts mounted?)\n");
    return other_ >= 0;
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  void press(char key) const { REQUIRE(::write(fd_, &key, 1) == 1); }

  [[nodiscard]] bool echoes() const {
    termios now{};
    REQUIRE(::tcgetattr(other_, &now) == 0);
    return (now.c_lflag & ECHO) != 0;
  }

 private:
  int fd_;
  int other_ = -1;
  std::filesystem::path path_;
};

} // namespace

TEST_CASE("keys kill, freeze, pause and resize while charlm trains, and change no bit") {
  terminal keys;
  if (!keys.is_there())
    return;
  scratch_runs here;
  auto undisturbed = here.run(here.charlm("undisturbed", {"--workers", "1", "--steps", "4000"}));
  REQUIRE(undisturbed.status == exit_status{0, {}});

  CHECK(keys.echoes());
  auto driver =
      here.start(here.charlm("disturbed", {"--workers", "3", "--steps", "4000", "--interactive"}), {}, keys.path());
  auto says = [&](const std::string& text) {
    scratch_runs::await(driver, [&] { return contains(driver.err() + driver.out(), text); });
  };
  auto await_more_steps = [&] { here.await_step(driver, "disturbed", here.last_step("disturbed") + 50); };
  here.await_step(driver, "disturbed", 20);
  CHECK_FALSE(keys.echoes());
  keys.press('k');
  says("is killed");
  says("the others go on");
  await_more_steps();
  keys.press('f');
  says("is frozen");
  await_more_steps();
  keys.press('-');
  says("worker");
  keys.press('p');
  says("pausing the run");
  keys.press('p');
  says("resuming the run");
  keys.press('x');
  keys.press('c');
  await_more_steps();
  auto status = driver.wait();
  INFO(driver.err());
  REQUIRE(status == exit_status{0, {}});
  CHECK(keys.echoes());
  CHECK(here.result("disturbed")["state_sha256"] == here.result("undisturbed")["state_sha256"]);
  CHECK(here.result("disturbed")["failures"].size() >= 2);
}

TEST_CASE("a key stops a run after a step, and the run can be resumed") {
  terminal keys;
  if (!keys.is_there())
    return;
  scratch_runs here;
  auto driver =
      here.start(here.charlm("stopped", {"--workers", "2", "--steps", "1000000", "--interactive"}), {}, keys.path());
  here.await_step(driver, "stopped", 20);
  keys.press('q');
  auto status = driver.wait();
  INFO(driver.err());
  CHECK(status == exit_status{0, {}});
  CHECK(keys.echoes());
  CHECK(here.result("stopped")["status"] == "stopped");
}
