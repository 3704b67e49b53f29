#include "tcp/outgoing_records.hpp"

#include <cerrno>
#include <sys/socket.h>

namespace troupe::collectives::tcp {

namespace {

outgoing_records& records_of(BIO* bio) {
  return *static_cast<outgoing_records*>(::BIO_get_data(bio));
}

int write_record(BIO* bio, const char* data, int size) {
  auto& records = records_of(bio);
  ::BIO_clear_retry_flags(bio);
  const auto size_bytes = static_cast<std::size_t>(size);
  if (!records.has_room(size_bytes)) {
    if (const auto code = records.flush(); code != 0) {
      if (code == EAGAIN)
        ::BIO_set_retry_write(bio);
      return -1;
    }
  }
  records.append(data, size_bytes);
  return size;
}

long control_records(BIO*, int command, long, void*) {
  // The channel flushes.
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

} // namespace

const BIO_METHOD* record_writer() {
  static const auto* method = [] {
    auto* x = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "records");
    ::BIO_meth_set_write(x, &write_record);
    ::BIO_meth_set_ctrl(x, &control_records);
    return x;
  }();
  return method;
}

int outgoing_records::flush() {
  while (begin_ != size_) {
    const auto sent = ::send(socket_, data_.get() + begin_, size_ - begin_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent < 0)
      return errno == EWOULDBLOCK ? EAGAIN : errno;
    begin_ += static_cast<std::size_t>(sent);
  }
  begin_ = size_ = 0;
  return 0;
}

} // namespace troupe::collectives::tcp
