#include "shm/call_log.hpp"

#include <bit>

namespace troupe::collectives::shm {

namespace {

template <class F>
auto read(const control& theirs, F get) noexcept -> decltype(get(theirs)) {
  for (int tries = 0; tries < 1000; ++tries) {
    const auto before = theirs.call_version.load(std::memory_order_acquire);
    const auto result = get(theirs);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && theirs.call_version.load(std::memory_order_relaxed) == before)
      return result;
  }
  return {};
}

} // namespace

bool is_collective(const call_record& call) noexcept {
  return call.kind != call_kind::send && call.kind != call_kind::receive && call.kind != call_kind::none;
}

bool waits_for_all(const call_record& call) noexcept {
  return is_collective(call) && call.kind != call_kind::broadcast &&
         (call.size_bytes != 0 || call.kind == call_kind::barrier || call.kind == call_kind::all_gather_bytes);
}

void log_call(control& own, const call_record& call) noexcept {
  // Only this rank writes the version.
  const auto version = own.call_version.load(std::memory_order_relaxed);
  own.call_version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  own.call = call;
  if (is_collective(call)) {
    own.collective_calls = call.sequence;
    own.calls[call.sequence % remembered_calls] = call;
  }
  own.is_under_way.store(1, std::memory_order_relaxed);
  own.call_version.store(version + 2, std::memory_order_release);
}

std::uint64_t extend_history(std::uint64_t history, const call_record& call) noexcept {
  for (auto x : {call.sequence, call.size_bytes, call.detail, std::uint64_t{call.peer},
                 std::uint64_t{static_cast<std::uint8_t>(call.kind)} << 16 | std::uint64_t{call.type} << 8 | call.op})
    history = (std::rotl(history, 5) ^ x) * 0x9e3779b97f4a7c15u;
  return history;
}

call_record last_call(const control& theirs) noexcept {
  return read(theirs, [](const control& x) { return x.call; });
}

call_record running_call(const control& theirs) noexcept {
  return read(theirs, [](const control& x) {
    return x.is_under_way.load(std::memory_order_acquire) != 0 ? x.call : call_record{};
  });
}

call_record collective_call(const control& theirs, std::uint64_t sequence) noexcept {
  const auto call = read(theirs, [sequence](const control& x) { return x.calls[sequence % remembered_calls]; });
  return call.sequence == sequence ? call : call_record{};
}

std::uint64_t collective_calls(const control& theirs) noexcept {
  return read(theirs, [](const control& x) { return x.collective_calls; });
}

} // namespace troupe::collectives::shm
