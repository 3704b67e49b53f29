#include "worker/state/device_copier.hpp"

#include <algorithm>
#include <utility>

namespace troupe::runtime {

namespace {

constexpr std::size_t half_bytes = std::size_t{4} << 20;

/// Some of a GPU's memory, behind the copier.
class gpu_tensor : public tensor_memory {
 public:
  gpu_tensor(std::shared_ptr<device_copier> copier, device_span<std::byte> memory)
      : copier_(std::move(copier)), memory_(memory) {}

  std::uint64_t size_bytes() const noexcept override { return memory_.size(); }
  expected<void> read(std::uint64_t offset_bytes, std::span<std::byte> target) override {
    return copier_->read(memory_.subspan(offset_bytes), target);
  }
  expected<void> write(std::uint64_t offset_bytes, std::span<const std::byte> source) override {
    return copier_->write(memory_.subspan(offset_bytes), source);
  }
  std::shared_ptr<const void> prepare(std::span<std::byte> memory) override { return copier_->prepare(memory); }

 private:
  std::shared_ptr<device_copier> copier_;
  device_span<std::byte> memory_;
};

} // namespace

expected<std::shared_ptr<device_copier>> device_copier::open(const std::shared_ptr<collectives::device>& where,
                                                             collectives::stream_handle written_on) {
  auto result = std::shared_ptr<device_copier>{new device_copier};
  result->where_ = where;
  result->written_on_ = written_on;
  try {
    result->stream_ = value_or_throw(collectives::device_stream::make(where));
    result->written_ = value_or_throw(collectives::device_event::make(where));
    for (auto& each : result->halves_) {
      each.memory = value_or_throw(collectives::pinned_memory::make(where, half_bytes));
      each.done = value_or_throw(collectives::device_event::make(where));
    }
  } catch (const exception& x) {
    return fail(x.reason());
  }
  return result;
}

std::shared_ptr<tensor_memory> device_copier::tensor(device_span<std::byte> memory) {
  return std::make_shared<gpu_tensor>(shared_from_this(), memory);
}

expected<void> device_copier::follow() {
  TROUPE_TRY(written_.record(written_on_));
  return written_.hold(stream_);
}

bool device_copier::is_prepared(std::span<const std::byte> memory) {
  auto lock = std::lock_guard{mutex_};
  auto after = prepared_.upper_bound(memory.data());
  if (after == prepared_.begin())
    return false;
  const auto& [begin, size] = *std::prev(after);
  return memory.data() + memory.size() <= begin + size;
}

expected<void> device_copier::read(device_span<const std::byte> from, std::span<std::byte> target) {
  if (target.empty())
    return {};
  TROUPE_TRY(follow());
  if (is_prepared(target)) {
    TROUPE_TRY(stream_.copy(target.data(), from.address(), target.size()));
    return stream_.synchronize();
  }
  auto begin = [&](std::size_t piece) -> expected<void> {
    auto& half = halves_[piece % 2];
    auto first = piece * half_bytes;
    auto size = std::min(target.size() - first, half_bytes);
    TROUPE_TRY(stream_.copy(half.memory.data(), from.subspan(first).address(), size));
    return half.done.record(stream_);
  };
  const auto pieces = (target.size() + half_bytes - 1) / half_bytes;
  TROUPE_TRY(begin(0));
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    // The other half is empty: it was copied on the turn before.
    if (piece + 1 < pieces)
      TROUPE_TRY(begin(piece + 1));
    auto& half = halves_[piece % 2];
    TROUPE_TRY(half.done.synchronize());
    auto part = target.subspan(piece * half_bytes);
    part = part.first(std::min(part.size(), half_bytes));
    std::ranges::copy(half.memory.bytes().first(part.size()), part.begin());
  }
  return {};
}

expected<void> device_copier::write(device_span<std::byte> to, std::span<const std::byte> source) {
  if (source.empty())
    return {};
  TROUPE_TRY(follow());
  for (std::size_t piece = 0; piece * half_bytes < source.size(); ++piece) {
    auto& half = halves_[piece % 2];
    auto part = source.subspan(piece * half_bytes);
    part = part.first(std::min(part.size(), half_bytes));
    // Wait until the GPU has read this half's previous content. An event that was never recorded counts as completed.
    TROUPE_TRY(half.done.synchronize());
    std::ranges::copy(part, half.memory.bytes().begin());
    TROUPE_TRY(stream_.copy(to.subspan(piece * half_bytes).address(), half.memory.data(), part.size()));
    TROUPE_TRY(half.done.record(stream_));
  }
  return stream_.synchronize();
}

std::shared_ptr<const void> device_copier::prepare(std::span<std::byte> memory) {
  auto pinned = collectives::pinned_registration::make(where_, memory);
  // It goes through the halves then, which is slower and no error.
  if (!pinned)
    return nullptr;
  {
    auto lock = std::lock_guard{mutex_};
    prepared_.insert_or_assign(memory.data(), memory.size());
  }
  auto held = std::make_shared<collectives::pinned_registration>(std::move(*pinned));
  return {static_cast<const void*>(memory.data()), [copier = shared_from_this(), held](const void* begin) mutable {
            {
              auto lock = std::lock_guard{copier->mutex_};
              copier->prepared_.erase(static_cast<const std::byte*>(begin));
            }
            held.reset();
          }};
}

} // namespace troupe::runtime
