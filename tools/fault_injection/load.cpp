#include "load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace troupe::chaos {

namespace {

/// A line of a flood; of the length of log lines.
constexpr std::size_t line_bytes = 100;

/// The size of one write: a pipe's capacity.
constexpr std::size_t block_bytes = 64'000;

/// In a new child of this program, which must not outlive it, and whose signals are this program's affair.
void become_helper() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);
}

void end(pid_t pid) {
  if (pid <= 0)
    return;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

} // namespace

cpu_storm::cpu_storm(std::size_t processes) {
  for (std::size_t i = 0; i < processes; ++i) {
    const auto pid = ::fork();
    if (pid == 0) {
      become_helper();
      for (auto spin = std::atomic<std::uint64_t>{0};;)
        spin.fetch_add(1, std::memory_order_relaxed);
    }
    processes_.push_back(pid);
  }
}

cpu_storm::~cpu_storm() {
  for (auto pid : processes_)
    end(pid);
}

struct output_flood::shared {
  std::atomic<std::uint64_t> written{0};
};

output_flood::output_flood(pid_t pid, std::uint64_t bytes) {
  auto* memory = ::mmap(nullptr, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw std::runtime_error{"cannot share memory with a process that writes"};
  shared_ = new (memory) shared;
  // Everything that allocates comes before fork: this program has threads.
  const auto pipe = fmt::format("/proc/{}/fd/1", pid);
  std::string block;
  while (block.size() < block_bytes)
    block += "flood " + std::string(line_bytes - 7, '.') + "\n";
  writer_ = ::fork();
  if (writer_ != 0)
    return;
  become_helper();
  ::signal(SIGPIPE, SIG_IGN);
  const auto fd = ::open(pipe.c_str(), O_WRONLY | O_CLOEXEC);
  for (auto left = bytes; fd >= 0 && left > 0;) {
    const auto size = ::write(fd, block.data(), std::min<std::uint64_t>(left, block.size()));
    if (size <= 0)
      break;
    left -= static_cast<std::uint64_t>(size);
    shared_->written.fetch_add(static_cast<std::uint64_t>(size), std::memory_order_relaxed);
  }
  ::_exit(0);
}

output_flood::~output_flood() {
  end(writer_);
  ::munmap(shared_, sizeof(shared));
}

bool output_flood::over() {
  if (writer_ > 0 && ::waitpid(writer_, nullptr, WNOHANG) == 0)
    return false;
  writer_ = -1;
  return true;
}

std::uint64_t output_flood::written_bytes() const {
  return shared_->written.load(std::memory_order_relaxed);
}

} // namespace troupe::chaos
