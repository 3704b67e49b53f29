#include "tcp/connection.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

namespace troupe::collectives::tcp {

namespace {

static_assert(sizeof(frame_header) == 56 && std::has_unique_object_representations_v<frame_header>);

/// Messages that one system call passes on.
constexpr std::size_t messages_per_write = 8;

/// Set in the tag of an acknowledgement that is waited for; no call has it.
constexpr std::uint64_t acknowledgement_bit = std::uint64_t{1} << 63;

bool is_same_message(const frame_header& x, const frame_header& y) noexcept {
  return x.tag == y.tag && x.size_bytes == y.size_bytes;
}

iovec buffer_at(const void* data, std::size_t size_bytes) noexcept {
  return {const_cast<void*>(data), size_bytes};
}

} // namespace

connection::connection(std::uint32_t peer, std::unique_ptr<channel> stream, connection_events& events)
    : peer_(peer), stream_(std::move(stream)), events_(events) {}

// -- sending ---------------------------------------------------------------------------------------------------------

void connection::send(ticket message, const frame_header& header, const std::byte* data) {
  outgoing_.push_back({message, header, data});
}

void connection::send_acknowledgement(std::uint64_t tag) {
  frame_header header;
  header.tag = tag | acknowledgement_bit;
  header.flags = frame_header::acknowledgement;
  outgoing_.push_back({no_ticket, header, nullptr});
}

bool connection::write(std::size_t budget_bytes) {
  std::size_t moved = 0;
  auto after = transferred::state::open;
  while (stage_ != stage::closed && !outgoing_.empty() && moved < budget_bytes && after == transferred::state::open) {
    std::array<iovec, 2 * messages_per_write> buffers;
    std::size_t count = 0;
    auto skipped = written_bytes_;
    auto room = budget_bytes - moved;
    for (std::size_t i = 0; i < std::min(outgoing_.size(), messages_per_write) && room != 0; ++i) {
      const auto& x = outgoing_[i];
      if (skipped < sizeof(frame_header))
        buffers[count++] =
            buffer_at(reinterpret_cast<const std::byte*>(&x.header) + skipped, sizeof(frame_header) - skipped);
      const auto at = skipped < sizeof(frame_header) ? 0 : skipped - sizeof(frame_header);
      const auto part = std::min<std::uint64_t>(x.header.size_bytes - at, room);
      if (part != 0)
        buffers[count++] = buffer_at(x.data + at, part);
      room -= part;
      skipped = 0;
    }
    const auto written = stream_->write({buffers.data(), count});
    after = written.after;
    moved += written.bytes;
    count_written(written.bytes);
  }
  if (after != transferred::state::closed && stream_->has_unsent())
    after = stream_->flush().after;
  if (after == transferred::state::closed)
    close();
  return moved != 0;
}

void connection::count_written(std::size_t bytes) {
  written_bytes_ += bytes;
  while (!outgoing_.empty()) {
    const auto& first = outgoing_.front();
    const auto whole = sizeof(frame_header) + first.header.size_bytes;
    if (written_bytes_ < whole)
      return;
    written_bytes_ -= whole;
    const auto message = first.message;
    outgoing_.pop_front();
    if (message != no_ticket)
      events_.completed(peer_, message);
  }
}

// -- receiving -------------------------------------------------------------------------------------------------------

void connection::receive(ticket message, const frame_header& wanted, std::byte* data) {
  wanted_.push_back({message, wanted, data});
  if (kept_.empty())
    return;
  // It was unknown when it arrived.
  std::erase_if(kept_, [this](kept_message& x) {
    filling place;
    if (!events_.fits(peer_, x.header) || !claim(x.header, place))
      return false;
    std::memcpy(place.at, x.data.get(), place.left_bytes);
    kept_bytes_ -= x.cost_bytes();
    events_.completed(peer_, place.message);
    return true;
  });
}

void connection::receive_acknowledgement(ticket message, std::uint64_t tag) {
  frame_header header;
  header.tag = tag | acknowledgement_bit;
  wanted_.push_back({message, header, nullptr});
}

/// Finds the receive of a message, and sends the acknowledgement that it asks for.
bool connection::claim(const frame_header& header, filling& place) {
  const auto found =
      std::ranges::find_if(wanted_, [&](const wanted_message& x) { return is_same_message(x.header, header); });
  if (found == wanted_.end())
    return false;
  place = {found->data, header.size_bytes, found->message};
  wanted_.erase(found);
  if ((header.flags & frame_header::wants_acknowledgement) != 0)
    send_acknowledgement(header.tag);
  return true;
}

bool connection::read(std::size_t budget_bytes) {
  std::size_t moved = 0;
  auto has_advanced = advance();
  while (stage_ != stage::closed && wants_to_read() && !is_blocked() && moved < budget_bytes) {
    const auto got = read_more();
    moved += got.bytes;
    has_advanced = advance() || has_advanced;
    if (got.after == transferred::state::closed)
      close();
    if (got.after != transferred::state::open)
      break;
  }
  return moved != 0 || has_advanced;
}

/// Reads the rest of a payload to its place, and what follows it into the buffer.
transferred connection::read_more() {
  if (buffer_begin_ == buffer_end_)
    buffer_begin_ = buffer_end_ = 0;
  if (auto* place = std::get_if<filling>(&now_)) {
    const std::array buffers{buffer_at(place->at, place->left_bytes), buffer_at(buffer_.data(), buffer_.size())};
    const auto got = stream_->read(buffers);
    const auto direct = std::min<std::uint64_t>(got.bytes, place->left_bytes);
    place->at += direct;
    place->left_bytes -= direct;
    buffer_end_ = got.bytes - direct;
    return got;
  }
  if (buffer_begin_ != 0) {
    std::memmove(buffer_.data(), buffer_.data() + buffer_begin_, buffer_end_ - buffer_begin_);
    buffer_end_ -= std::exchange(buffer_begin_, 0);
  }
  const std::array buffers{buffer_at(buffer_.data() + buffer_end_, buffer_.size() - buffer_end_)};
  const auto got = stream_->read(buffers);
  buffer_end_ += got.bytes;
  return got;
}

std::size_t connection::take_buffered(std::byte* to, std::uint64_t size_bytes) {
  const auto part = std::min<std::uint64_t>(size_bytes, buffer_end_ - buffer_begin_);
  if (part != 0)
    std::memcpy(to, buffer_.data() + buffer_begin_, part);
  buffer_begin_ += part;
  return part;
}

/// Takes what the buffer holds as far as possible. True if a message was completed or kept.
bool connection::advance() {
  auto has_advanced = false;
  for (;;) {
    if (auto* place = std::get_if<filling>(&now_)) {
      const auto part = take_buffered(place->at, place->left_bytes);
      place->at += part;
      place->left_bytes -= part;
      if (place->left_bytes != 0)
        return has_advanced;
      const auto message = place->message;
      now_ = between_messages{};
      events_.completed(peer_, message);
    } else if (auto* keep = std::get_if<keeping>(&now_)) {
      const auto size = keep->what.header.size_bytes;
      keep->got_bytes += take_buffered(keep->what.data.get() + keep->got_bytes, size - keep->got_bytes);
      if (keep->got_bytes != size)
        return has_advanced;
      // Its receive may have been posted in the meantime.
      auto what = std::move(keep->what);
      now_ = between_messages{};
      if (filling late; claim(what.header, late)) {
        std::memcpy(late.at, what.data.get(), size);
        kept_bytes_ -= what.cost_bytes();
        events_.completed(peer_, late.message);
      } else {
        kept_.push_back(std::move(what));
      }
    } else if (const auto* waiting = std::get_if<parked>(&now_)) {
      filling place;
      if (!events_.fits(peer_, waiting->header) || !claim(waiting->header, place))
        return has_advanced;
      now_ = place;
    } else {
      frame_header header;
      // Read only what a receive waits for; the rest stays with the sender.
      if (wanted_.empty() || buffer_end_ - buffer_begin_ < sizeof(header))
        return has_advanced;
      take_buffered(reinterpret_cast<std::byte*>(&header), sizeof(header));
      begin_message(header);
    }
    has_advanced = true;
  }
}

void connection::begin_message(const frame_header& header) {
  filling place;
  const auto is_answer = (header.flags & frame_header::acknowledgement) != 0;
  const auto fits = is_answer || events_.fits(peer_, header);
  if (fits && claim(header, place)) {
    now_ = place;
  } else if (fits && header.size_bytes <= kept_message_bytes && kept_bytes_ < kept_bytes_limit) {
    keeping begun{{header, std::make_unique<std::byte[]>(header.size_bytes)}, 0};
    kept_bytes_ += begun.what.cost_bytes();
    now_ = std::move(begun);
  } else {
    now_ = parked{header};
  }
}

void connection::drop_all() noexcept {
  outgoing_.clear();
  wanted_.clear();
  kept_.clear();
  now_ = between_messages{};
  close();
}

} // namespace troupe::collectives::tcp
