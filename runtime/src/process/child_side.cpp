#include "process/signals_blocked.hpp"

#include <troupe/runtime/process.hpp>
#include <troupe/runtime/program.hpp>

#include <cerrno>
#include <fcntl.h>
#include <thread>
#include <unistd.h>

namespace troupe::runtime {

void watch_lifeline(int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  signals_blocked blocked;
  std::thread watcher{[fd] {
    char byte = 0;
    for (;;) {
      auto n = read(fd, &byte, 1);
      if (n == 0 || (n < 0 && errno != EINTR))
        _exit(lifeline_exit_code);
    }
  }};
  pthread_setname_np(watcher.native_handle(), "lifeline");
  watcher.detach();
}

expected<std::string> read_bootstrap(int fd) {
  unique_fd owned{fd};
  constexpr auto what = "cannot read the bootstrap: start this program through Troupe, not by hand";
  std::string result;
  std::string buffer(std::size_t{1} << 16, '\0');
  for (;;) {
    auto n = pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(result.size()));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return fail(system_error(what));
    if (n == 0)
      return result;
    result.append(buffer, 0, static_cast<std::size_t>(n));
  }
}

} // namespace troupe::runtime
