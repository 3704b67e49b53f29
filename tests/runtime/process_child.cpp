// The program that process_test starts. Its first argument selects what it does.

#include <troupe/runtime/descriptor_link.hpp>
#include <troupe/runtime/process.hpp>
#include <troupe/runtime/program.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dirent.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <utility>

namespace {

using namespace troupe::runtime;

[[noreturn]] void wait_for_ever() {
  for (;;)
    pause();
}

/// Reports that this process is ready, then waits to be killed.
[[noreturn]] void announce_and_wait() {
  std::printf("ready %d\n", getpid());
  std::fflush(stdout);
  wait_for_ever();
}

int print_and_exit(const char* code) {
  std::printf("to output\n");
  std::fprintf(stderr, "to error\n");
  return std::atoi(code);
}

int print_partial_line() {
  std::printf("whole\npartial");
  return 0;
}

int print_long_line(const char* length) {
  std::printf("%s\nnext\n", std::string(std::stoul(length), 'x').c_str());
  return 0;
}

int print_lines(const char* count) {
  for (int i = 0; i < std::atoi(count); ++i)
    std::printf("line %d\n", i);
  return 0;
}

/// Prints its bootstraps, one after the other, until it is to end.
int print_bootstraps() {
  auto text = read_bootstrap(bootstrap_fd);
  while (text && *text != "end") {
    std::printf("%s\n", text->c_str());
    std::fflush(stdout);
    auto next = await_next_bootstrap(reuse_fd);
    if (!next || !next->descriptor_socket)
      return 1;
    text = std::move(next->text);
  }
  return text ? 0 : 1;
}

int print_bootstrap() {
  auto text = read_bootstrap(bootstrap_fd);
  if (!text)
    return 1;
  std::printf("%zu bytes, %s\n", text->size(), text->substr(0, 5).c_str());
  return 0;
}

/// The open descriptors, except the one used to list them.
int print_descriptors() {
  auto* directory = opendir("/proc/self/fd");
  std::string result;
  while (auto* entry = readdir(directory))
    if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != dirfd(directory))
      result += std::string{entry->d_name} + " ";
  closedir(directory);
  std::printf("%s\n", result.c_str());
  return 0;
}

/// Sends a greeting over the socket.
int greet() {
  if (write(descriptor_fd, "hello", 5) != 5)
    return 1;
  return print_descriptors();
}

/// Shares memory with the other workers of the node and prints the content of theirs.
int exchange_memory(const std::string& rank, const std::string& world) {
  unique_fd memory{memfd_create("exchange", MFD_CLOEXEC)};
  auto text = "memory of rank " + rank;
  if (write(memory.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return 1;
  descriptor_link link{unique_fd{descriptor_fd}};
  auto mine = memory.get();
  auto peers = link.exchange(
      {{{1}}, static_cast<std::uint32_t>(std::stoul(rank)), static_cast<std::uint32_t>(std::stoul(world))}, {&mine, 1},
      std::chrono::minutes{1}, {});
  if (!peers) {
    std::fprintf(stderr, "%s\n", peers.error().message.c_str());
    return 1;
  }
  for (std::size_t i = 0; i < peers->size(); ++i)
    for (const auto& theirs : (*peers)[i]) {
      std::string content(64, '\0');
      content.resize(static_cast<std::size_t>(pread(theirs.get(), content.data(), content.size(), 0)));
      std::printf("rank %zu: %s\n", i, content.c_str());
    }
  return 0;
}

int print_session() {
  sigset_t blocked;
  sigprocmask(SIG_SETMASK, nullptr, &blocked);
  auto own = getpid();
  std::printf("session %s, group %s, SIGTERM %s, SIGPIPE %s, input %zd\n", getsid(0) == own ? "own" : "foreign",
              getpgrp() == own ? "own" : "foreign", sigismember(&blocked, SIGTERM) ? "blocked" : "open",
              std::signal(SIGPIPE, SIG_DFL) == SIG_DFL ? "default" : "changed", read(STDIN_FILENO, &own, 1));
  return 0;
}

int print_surroundings() {
  std::string directory(4096, '\0');
  std::printf("%s\n", getcwd(directory.data(), directory.size()));
  for (char** variable = environ; *variable != nullptr; ++variable)
    std::printf("%s\n", *variable);
  return 0;
}

/// Leaves a process behind that keeps the output pipes open, in our process group or in its "own" session.
int leave_a_process(const std::string& session) {
  int ready[2];
  if (pipe(ready) != 0)
    return 1;
  if (fork() == 0) {
    if (session == "own")
      setsid();
    std::printf("ready %d\n", getpid());
    std::fflush(stdout);
    close(ready[1]);
    wait_for_ever();
  }
  // The other end closes once that process is ready.
  close(ready[1]);
  char byte = 0;
  return static_cast<int>(read(ready[0], &byte, 1));
}

/// Starts a grandchild that only the kernel or only its lifeline can end, and waits to be killed.
int supervise(const char* verb) {
  auto program = program_file::own();
  auto forward = [](pid_t, output_stream, std::string_view line) {
    std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
    std::fflush(stdout);
  };
  auto supervisor = process_supervisor::make({.on_output = forward, .on_exit = {}});
  process_spec spec;
  spec.program_fd = program->fd();
  spec.argv = {"grandchild", verb};
  if (!supervisor->start(spec))
    return 1;
  wait_for_ever();
}

[[noreturn]] void wait_on_lifeline_alone() {
  prctl(PR_SET_PDEATHSIG, 0);
  watch_lifeline(lifeline_fd);
  announce_and_wait();
}

} // namespace

int main(int argc, char** argv) {
  std::string verb = argc > 1 ? argv[1] : "";
  const char* argument = argc > 2 ? argv[2] : "";
  if (verb == "exit")
    return print_and_exit(argument);
  if (verb == "partial")
    return print_partial_line();
  if (verb == "long")
    return print_long_line(argument);
  if (verb == "lines")
    return print_lines(argument);
  if (verb == "bootstraps")
    return print_bootstraps();
  if (verb == "bootstrap")
    return print_bootstrap();
  if (verb == "descriptors")
    return print_descriptors();
  if (verb == "greet")
    return greet();
  if (verb == "exchange")
    return exchange_memory(argument, argc > 3 ? argv[3] : "");
  if (verb == "session")
    return print_session();
  if (verb == "surroundings")
    return print_surroundings();
  if (verb == "leave")
    return leave_a_process(argument);
  if (verb == "supervise")
    return supervise(argument);
  if (verb == "wait")
    announce_and_wait();
  if (verb == "lifeline")
    wait_on_lifeline_alone();
  std::fprintf(stderr, "unknown verb '%s'\n", verb.c_str());
  return 2;
}
