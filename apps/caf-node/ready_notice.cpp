#include "ready_notice.hpp"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <tuple>
#include <unistd.h>

void notify_ready() {
  const auto* path = std::getenv("NOTIFY_SOCKET");
  auto address = sockaddr_un{};
  if (path == nullptr || std::strlen(path) >= sizeof(address.sun_path))
    return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path, std::strlen(path));
  // A name that is in no directory begins with a zero byte.
  if (address.sun_path[0] == '@')
    address.sun_path[0] = '\0';
  const auto socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0)
    return;
  constexpr std::string_view state = "READY=1";
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  // systemd notices a service that never says so.
  std::ignore =
      ::sendto(socket, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), size);
  ::close(socket);
}
