#include "transport/call_messages.hpp"

#include <utility>

namespace troupe::collectives {

call_messages::call_messages(std::unique_ptr<transport> underlying)
    : transport_(std::move(underlying)), sent_to_(transport_->world_size()), received_from_(transport_->world_size()) {}

expected<void> call_messages::begin(const call_record& call) {
  call_ = call;
  call_.sequence = call.kind == call_kind::send      ? ++sent_to_[call.peer]
                   : call.kind == call_kind::receive ? ++received_from_[call.peer]
                                                     : ++sequence_;
  return transport_->begin(call_);
}

/// The tag contains what must be equal on all ranks. Ranks that disagree wait for each other until the mismatch is
/// found, instead of taking each other's bytes.
std::uint64_t call_messages::tag(std::uint64_t size_bytes, std::uint32_t phase) const noexcept {
  const auto what = call_.kind == call_kind::receive ? call_kind::send : call_.kind;
  auto size_hash = size_bytes * 0x9e3779b97f4a7c15u;
  if (const auto root = call_.kind == call_kind::broadcast ? call_.peer : 0; what != call_kind::send)
    size_hash =
        (size_hash ^ call_.detail ^ (std::uint64_t{root} << 16 | call_.type << 8 | call_.op)) * 0x9e3779b97f4a7c15u;
  size_hash >>= 50;
  return std::uint64_t{static_cast<std::uint8_t>(what)} << tag_kind_shift | std::uint64_t{phase & 63} << 50 |
         size_hash << 36 | (call_.sequence & 0xfffffffffu);
}

void call_messages::send(std::uint32_t peer, const std::byte* data, std::uint64_t size_bytes, std::uint32_t phase) {
  if (size_bytes == 0)
    return;
  transport_->send(peer, tag(size_bytes, phase), data, size_bytes);
  sent_.sent_bytes += size_bytes;
  ++sent_.sent_messages;
}

transport::ticket call_messages::receive(std::uint32_t peer, std::byte* data, std::uint64_t size_bytes,
                                         std::uint32_t phase) {
  return transport_->receive(peer, tag(size_bytes, phase), data, size_bytes);
}

} // namespace troupe::collectives
