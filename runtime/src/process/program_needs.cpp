#include "process/read_at.hpp"

#include <troupe/runtime/program.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <span>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

constexpr auto linker_limit = 10s;
/// A program with LibTorch has some 300 libraries.
constexpr std::size_t max_output_bytes = 1 << 20;

std::string name_of_processor(std::uint16_t machine) {
  switch (machine) {
  case EM_X86_64:
    return "x86-64";
  case EM_AARCH64:
    return "AArch64";
  case EM_386:
    return "32-bit x86";
  case EM_ARM:
    return "32-bit Arm";
  case EM_RISCV:
    return "RISC-V";
  case EM_PPC64:
    return "64-bit PowerPC";
  case EM_S390:
    return "S/390";
  default:
    return fmt::format("ELF machine {}", machine);
  }
}

/// The class, the byte order and the machine stand at the same place in all ELF files.
bool read_header(int fd, Elf64_Ehdr& header) {
  return read_object(fd, header, 0) && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0;
}

bool same_processor(const Elf64_Ehdr& a, const Elf64_Ehdr& b) {
  return a.e_ident[EI_CLASS] == b.e_ident[EI_CLASS] && a.e_ident[EI_DATA] == b.e_ident[EI_DATA] &&
         a.e_machine == b.e_machine;
}

/// The dynamic linker that the program names; empty if it names none.
std::string linker_of(int fd) {
  ElfW(Ehdr) header;
  if (!read_object(fd, header, 0) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_phentsize != sizeof(ElfW(Phdr)))
    return {};
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    ElfW(Phdr) segment;
    if (!read_object(fd, segment, header.e_phoff + i * sizeof(segment)))
      return {};
    if (segment.p_type != PT_INTERP)
      continue;
    std::array<char, 4096> name{};
    if (segment.p_filesz >= name.size() ||
        !read_at(fd, std::as_writable_bytes(std::span{name}).first(segment.p_filesz), segment.p_offset))
      return {};
    return name.data();
  }
  return {};
}

/// The real path, as the linker sees it when it replaces $ORIGIN; empty if the file is gone.
std::string real_path(int fd) {
  std::array<char, 4096> path{};
  const auto n = readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), path.data(), path.size());
  if (n <= 0 || static_cast<std::size_t>(n) == path.size())
    return {};
  auto result = std::string{path.data(), static_cast<std::size_t>(n)};
  return access(result.c_str(), X_OK) == 0 ? result : std::string{};
}

/// Until the other end is closed, or the limit is reached.
std::string read_all(int fd) {
  std::string result;
  std::array<char, 4096> buffer{};
  for (const auto until = clock::now() + linker_limit; result.size() < max_output_bytes;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()).count();
    pollfd wanted{fd, POLLIN, 0};
    const auto ready = left > 0 ? poll(&wanted, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR)
      continue;
    if (ready <= 0)
      break;
    const auto n = read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      break;
    result.append(buffer.data(), static_cast<std::size_t>(n));
  }
  return result;
}

/// What the linker prints when it is asked for the program's libraries as ldd(1) asks, since with --list it stops at
/// the first that is absent; empty if it cannot be started.
std::string list_libraries(const std::string& linker, const std::string& program,
                           const std::vector<std::string>& environment) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    return {};
  const auto from = unique_fd{ends[0]};
  auto to = unique_fd{ends[1]};
  std::vector<std::string> words{linker, program};
  std::vector<char*> arguments;
  for (auto& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  auto texts = environment;
  texts.emplace_back("LD_TRACE_LOADED_OBJECTS=1");
  std::vector<char*> variables;
  for (auto& text : texts)
    variables.push_back(text.data());
  variables.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, to.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const auto started = posix_spawn(&child, linker.c_str(), &actions, nullptr, arguments.data(), variables.data()) == 0;
  posix_spawn_file_actions_destroy(&actions);
  to = unique_fd{};
  if (!started)
    return {};
  auto result = read_all(from.get());
  // It has ended, or has had its time.
  ::kill(child, SIGKILL);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return result;
}

} // namespace

expected<void> check_processor(int fd, std::string_view path) {
  Elf64_Ehdr program;
  Elf64_Ehdr own;
  const auto self = unique_fd{::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};
  if (!read_header(fd, program) || !self || !read_header(self.get(), own) || same_processor(program, own))
    return {};
  return fail(errc::program_mismatch,
              fmt::format("{} is a program for {}, and this processor is {}: install the build for this processor",
                          path, name_of_processor(program.e_machine), name_of_processor(own.e_machine)));
}

std::vector<std::string> missing_libraries(int fd, const std::vector<std::string>& environment) {
  const auto linker = linker_of(fd);
  const auto program = real_path(fd);
  if (linker.empty() || program.empty())
    return {};
  constexpr std::string_view mark = " => not found";
  const auto output = list_libraries(linker, program, environment);
  std::vector<std::string> result;
  for (auto rest = std::string_view{output}; !rest.empty();) {
    auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (!line.ends_with(mark))
      continue;
    line.remove_suffix(mark.size());
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(" \t")));
    result.emplace_back(line);
  }
  return result;
}

} // namespace troupe::runtime
