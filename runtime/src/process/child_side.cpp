#include "process/descriptor_packets.hpp"
#include "process/signals_blocked.hpp"

#include <troupe/runtime/process.hpp>
#include <troupe/runtime/program.hpp>

#include <array>
#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <poll.h>
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

expected<next_bootstrap> await_next_bootstrap(int fd) {
  const auto no_other = [] { return fail(errc::node_lost, "this process gets no other bootstrap"); };
  constexpr std::array idle{std::byte{1}};
  if (send_packet(fd, idle, {}) != send_outcome::sent)
    return no_other();
  for (;;) {
    auto waiting = pollfd{fd, POLLIN, 0};
    if (poll(&waiting, 1, -1) < 0 && errno != EINTR)
      return no_other();
    auto received = receive_packet(fd);
    if (received.what == received_packet::outcome::none)
      continue;
    if (received.what != received_packet::outcome::packet || received.descriptors.size() != 2)
      return no_other();
    next_bootstrap result;
    TROUPE_TRY(result.text, read_bootstrap(received.descriptors[0].release()));
    result.descriptor_socket = std::move(received.descriptors[1]);
    return result;
  }
}

} // namespace troupe::runtime
