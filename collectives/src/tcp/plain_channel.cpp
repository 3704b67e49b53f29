#include "tcp/channel.hpp"
#include "tcp/error_text.hpp"

#include <cerrno>
#include <sys/socket.h>
#include <utility>

namespace troupe::collectives::tcp {

namespace {

std::size_t size_of(std::span<const iovec> buffers) noexcept {
  std::size_t result = 0;
  for (const auto& x : buffers)
    result += x.iov_len;
  return result;
}

class plain_channel final : public channel {
 public:
  explicit plain_channel(unique_fd socket) : socket_(std::move(socket)) {}

  transferred write(std::span<const iovec> buffers) override {
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(buffers.data());
    message.msg_iovlen = buffers.size();
    return result_of(buffers, [&] { return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL); });
  }

  transferred read(std::span<const iovec> buffers) override {
    auto result =
        buffers.size() == 1
            ? result_of(buffers, [&] { return ::recv(socket_.get(), buffers[0].iov_base, buffers[0].iov_len, 0); })
            : result_of(buffers,
                        [&] { return ::readv(socket_.get(), buffers.data(), static_cast<int>(buffers.size())); });
    if (result.bytes == 0 && result.after == transferred::state::open)
      return closed_because("the peer closed the connection");
    return result;
  }

  bool has_unread() const noexcept override { return false; }
  bool has_unsent() const noexcept override { return false; }
  transferred flush() override { return {}; }
  int fd() const noexcept override { return socket_.get(); }

 private:
  /// A socket that moved less than it was asked for has no more: the next call would only say so.
  template <class Call>
  transferred result_of(std::span<const iovec> buffers, const Call& call) {
    for (;;) {
      const auto moved = call();
      if (moved > 0 || (moved == 0 && size_of(buffers) == 0))
        return {static_cast<std::size_t>(moved), static_cast<std::size_t>(moved) < size_of(buffers)
                                                     ? transferred::state::would_block
                                                     : transferred::state::open};
      if (moved == 0)
        return {};
      if (errno == EAGAIN || errno == EWOULDBLOCK)
        return {0, transferred::state::would_block};
      if (errno != EINTR)
        return closed_because(text_of(errno));
    }
  }

  unique_fd socket_;
};

} // namespace

std::unique_ptr<channel> make_plain_channel(unique_fd socket) {
  return std::make_unique<plain_channel>(std::move(socket));
}

} // namespace troupe::collectives::tcp
