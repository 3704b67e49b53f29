#include "device/basic_group.hpp"

#include "device/giving_up.hpp"
#include "transport/call_checks.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <thread>

namespace troupe::collectives {

namespace {

/// Most conditions become true within microseconds, or not for a long time.
constexpr int looks_without_sleep = 200;
constexpr auto pause_between_looks = std::chrono::microseconds{50};
constexpr int looks_between_looks_at_gpu = 1000;

/// The kernel's timer slack lengthens a sleep by 50 us, as long as the pause itself.
void pause() {
  thread_local const auto is_precise = ::prctl(PR_SET_TIMERSLACK, 1000UL) == 0;
  static_cast<void>(is_precise);
  std::this_thread::sleep_for(pause_between_looks);
}

} // namespace

basic_device_group::basic_device_group(std::shared_ptr<device> where, rank_id rank, std::uint32_t world_size,
                                       generation_id generation, std::chrono::milliseconds deadline, std::string name,
                                       hang_policy on_hang)
    : where_(where),
      rank_(rank),
      world_size_(world_size),
      generation_(generation),
      on_hang_(std::move(on_hang)),
      deadline_(deadline),
      name_(std::move(name)),
      arithmetic_(where),
      events_(std::move(where)) {}

expected<void> basic_device_group::open() {
  // Communication takes priority over the rest of backward: peers wait for it.
  TROUPE_TRY(auto stream, device_stream::make(where_, device::stream_priority::high));
  TROUPE_TRY(auto gate, device_stream::make(where_, device::stream_priority::high));
  stream_ = std::move(stream);
  gate_ = std::move(gate);
  return {};
}

std::string basic_device_group::named() const {
  return fmt::format("rank {} of {}, generation {}, {}", rank_, world_size_, generation_, to_string(where_->info()));
}

expected<std::unique_ptr<device_bucket>> basic_device_group::make_bucket(const bucket_layout& layout,
                                                                         std::vector<byte_range> parts) {
  TROUPE_TRY(check_parts(layout, parts));
  TROUPE_TRY(auto memory, allocate(std::max<std::uint64_t>(layout.size_bytes(), alignment_bytes)));
  return std::make_unique<own_device_bucket>(std::move(memory), layout.size_bytes(), std::move(parts));
}

expected<void> basic_device_group::reduce_leaves(const bucket_layout& layout, std::uint32_t shards,
                                                 std::span<const shard_range> ownership,
                                                 std::span<const leaf_partial> partials, device_bucket& result,
                                                 const device_event& ready, std::uint64_t divisor, std::size_t part) {
  TROUPE_TRY(leaves_.refresh(shards, ownership, world_size_));
  TROUPE_TRY(check_partials(layout, *leaves_.finish, rank_.value, partials, divisor));
  TROUPE_TRY(check_made_here<own_device_bucket>(result, layout, part));
  reduction what;
  what.call = fmt::format("reduce_leaves #{} (part {})", ++sequence_, part);
  what.layout = layout;
  what.leaves = leaves_;
  what.operands.assign(partials.begin(), partials.end());
  what.result = static_cast<own_device_bucket*>(&result);
  what.divisor = divisor;
  what.part = part;
  return begin(std::move(what), ready, &basic_device_group::reduce_exactly);
}

expected<void> basic_device_group::all_reduce_fast(const bucket_layout& layout,
                                                   device_span<const std::byte> contribution, device_bucket& result,
                                                   const device_event& ready, std::uint64_t divisor, std::size_t part) {
  TROUPE_TRY(check_contribution(layout, {contribution.address(), contribution.size()}, divisor));
  TROUPE_TRY(check_made_here<own_device_bucket>(result, layout, part));
  reduction what;
  what.call = fmt::format("all_reduce_fast #{} (part {})", ++sequence_, part);
  what.layout = layout;
  what.operands = {{tree_node{}, contribution.address()}};
  what.result = static_cast<own_device_bucket*>(&result);
  what.divisor = divisor;
  what.part = part;
  return begin(std::move(what), ready, &basic_device_group::reduce_fast);
}

expected<void> basic_device_group::begin(reduction what, const device_event& ready,
                                         expected<void> (basic_device_group::*job)(const reduction&)) {
  TROUPE_TRY(state());
  what.ends_at = clock::now() + deadline_.load();
  // The caller may record its event again as soon as this returns.
  if (auto held = ready.hold(gate_); !held)
    return fail_with(std::move(held.error()));
  auto own = record_event(gate_.handle());
  if (!own)
    return fail_with(std::move(own.error()));
  what.ready = *own;
  if (auto prepared = prepare(what); !prepared)
    return fail_with(std::move(prepared.error()));
  is_begun_ = true;
  static_cast<void>(start([this, job, what = std::move(what)] { return run(job, what); }));
  return {};
}

expected<void> basic_device_group::run(expected<void> (basic_device_group::*job)(const reduction&),
                                       const reduction& what) {
  TROUPE_TRY(state());
  progress_.expect(what.ready, waits_for::own_gpu);
  progress_.begin(what.call);
  if (auto done = (this->*job)(what); !done)
    return fail_with({done.error().code, fmt::format("{}, {}: {}", named(), what.call, done.error().message)});
  return {};
}

expected<void> basic_device_group::finish() {
  if (std::exchange(is_begun_, false))
    static_cast<void>(start([this] { return end_all(); }).wait());
  events_.recycle();
  return state();
}

/// On the group's thread: all reductions started before are on streams or have failed.
expected<void> basic_device_group::end_all() {
  for (const auto& x : expected_) {
    if (has_failed())
      break;
    static_cast<void>(wait_for(*x.event, x.call, x.ends_at));
  }
  expected_.clear();
  progress_.clear();
  if (has_failed())
    let_go();
  return state();
}

std::string basic_device_group::describe() const {
  return fmt::format("{}, {}", name_, progress_.describe());
}

expected<void> basic_device_group::poll(const std::function<expected<bool>()>& is_done, const std::string& what,
                                        clock::time_point ends_at) {
  auto done = look_until(is_done, what, ends_at);
  progress_.forget();
  return done;
}

expected<void> basic_device_group::look_until(const std::function<expected<bool>()>& is_done, const std::string& what,
                                              clock::time_point ends_at) {
  for (int looks = 0;; ++looks) {
    auto done = is_done();
    if (!done)
      return fail_with({done.error().code, fmt::format("{}, {}: {}", named(), what, done.error().message)});
    if (*done)
      return {};
    if (looks > 0 && looks % looks_between_looks_at_gpu == 0)
      progress_.look();
    if (auto fine = look_around(); !fine)
      return fail_with(std::move(fine.error()));
    if (clock::now() > ends_at) {
      progress_.look();
      return fail_with(
          {errc::timed_out,
           fmt::format("{}: {} did not end within {} ms: {}", named(), what, deadline_.load().count(),
                       awaits_own_gpu() ? "this worker's own GPU has not reached it"
                                        : "a peer is late or lost, or the device hangs; check the other ranks")});
    }
    if (looks < looks_without_sleep)
      std::this_thread::yield();
    else
      pause();
  }
}

expected<void> basic_device_group::wait_for(const device_event& event, const std::string& what,
                                            clock::time_point ends_at) {
  return poll([&event] { return event.has_completed(); }, what, ends_at);
}

expected<void> basic_device_group::expect(stream_handle stream, const reduction& what, waits_for whom) {
  TROUPE_TRY(auto event, record_event(stream));
  expected_.push_back({event, what.call, what.ends_at});
  progress_.expect(event, whom);
  return {};
}

expected<void> basic_device_group::mark(stream_handle stream, waits_for whom) {
  return record_event(stream).map([&](const device_event* event) { progress_.expect(event, whom); });
}

expected<void> basic_device_group::fail_with(error reason) {
  failure_.set(std::move(reason));
  wake();
  return state();
}

void basic_device_group::abort(error reason) noexcept {
  static_cast<void>(fail_with(std::move(reason)));
}

void basic_device_group::drain(std::initializer_list<const device_stream*> streams) noexcept {
  if (is_process_ending_)
    return;
  std::vector<const device_event*> ends;
  for (const auto* stream : streams)
    // A device that has failed for good records no events and does no more work.
    if (auto end = record_event(stream->handle()))
      ends.push_back(*end);
  const auto is_done = [&ends] {
    return std::ranges::all_of(ends, [](const auto* end) { return end->has_completed().value_or(true); });
  };
  for (const auto ends_at = clock::now() + on_hang_.drain_deadline;;) {
    // Read before the look: a thread that was not scheduled looks once more.
    const auto is_late = clock::now() >= ends_at;
    if (is_done())
      return;
    if (is_late)
      break;
    std::this_thread::sleep_for(pause_between_looks);
  }
  // Our own kernels and copies should end by themselves. These may still write, so this worker must not report the
  // loss.
  abort_escalation escalation{false, limits_of(on_hang_)};
  const auto why = fmt::format("work on the device has not ended within {} ms after the group was given up",
                               on_hang_.drain_deadline.count());
  is_process_ending_ = escalate(escalation, escalation.begin_with_permit(why, clock::now()), on_hang_, named(),
                                {{}, {}, is_done}) == escalation_end::ends_process;
}

void basic_device_group::stop() noexcept {
  static_cast<void>(finish());
  jobs_.stop();
}

} // namespace troupe::collectives
