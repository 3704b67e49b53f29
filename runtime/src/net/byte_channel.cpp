#include "net/byte_channel.hpp"

#include <cerrno>
#include <sys/socket.h>

namespace troupe::runtime {

namespace {

/// `count` is what a call for a socket has returned.
tls_status status_of(ssize_t count, tls_status wanted) {
  if (count > 0)
    return tls_status::done;
  return count < 0 && (errno == EAGAIN || errno == EINTR) ? wanted : tls_status::failed;
}

} // namespace

tls_status byte_channel::handshake() {
  if (context_ && !session_)
    session_ = std::make_unique<tls_session>(context_, tls_role::server, fd_);
  if (session_)
    return session_->handshake();
  char first = 0;
  return status_of(::recv(fd_, &first, 1, MSG_PEEK), tls_status::wants_read);
}

tls_status byte_channel::read(void* target, std::size_t size_bytes, std::size_t& read_bytes) {
  if (session_)
    return session_->read(target, size_bytes, read_bytes);
  const auto count = ::recv(fd_, target, size_bytes, 0);
  read_bytes = count > 0 ? static_cast<std::size_t>(count) : 0;
  return status_of(count, tls_status::wants_read);
}

tls_status byte_channel::write(const void* source, std::size_t size_bytes, std::size_t& written_bytes) {
  if (session_)
    return session_->write(source, size_bytes, written_bytes);
  const auto count = ::send(fd_, source, size_bytes, MSG_NOSIGNAL);
  written_bytes = count > 0 ? static_cast<std::size_t>(count) : 0;
  return status_of(count, tls_status::wants_write);
}

void byte_channel::close() {
  if (session_)
    session_->close();
}

} // namespace troupe::runtime
