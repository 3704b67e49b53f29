#include "shm/group.hpp"

#include "shm/call_log.hpp"
#include "shm/futex.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fmt/format.h>
#include <sched.h>
#include <string>
#include <string_view>
#include <utility>

namespace troupe::collectives {

namespace {

using namespace std::chrono_literals;

/// How long a rank sleeps before it checks whether its peers are alive.
constexpr auto look_interval = 20ms;

void pause_briefly() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The time of the kernel's last tick, a few milliseconds ago. Reading the exact time takes longer than the rest of a
/// small call's bookkeeping.
std::chrono::steady_clock::time_point recent_time() noexcept {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::chrono::steady_clock::time_point{std::chrono::seconds{now.tv_sec} +
                                               std::chrono::nanoseconds{now.tv_nsec}};
}

/// Makes no system call where the C library keeps the value per thread, as glibc does since 2.35.
std::uint32_t current_core() noexcept {
  return static_cast<std::uint32_t>(::sched_getcpu());
}

std::uint32_t usable_cores() noexcept {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<std::uint32_t>(CPU_COUNT(&set)) : 1;
}

} // namespace

expected<std::shared_ptr<shm_group>> shm_group::connect(const shm_options& options,
                                                        const descriptor_exchange& exchange) {
  return shm_members::connect(options, exchange).map([&](std::unique_ptr<shm_members>&& members) {
    return std::shared_ptr<shm_group>{new shm_group{options, std::move(members)}};
  });
}

shm_group::shm_group(const shm_options& options, std::unique_ptr<shm_members> members)
    : members_(std::move(members)),
      own_(members_->own_control()),
      cores_per_rank_(usable_cores() / options.world_size),
      has_results_for_devices_(options.results_for_devices),
      deadline_(options.deadline) {}

expected<void> shm_group::begin(const call_record& call) {
  // Do not record calls after the failure, so that the record keeps the call that failed.
  if (has_failed())
    return state();
  const auto now = recent_time();
  ends_at_ = now + deadline_;
  shm::log_call(own_, call);
  if (shm::is_collective(call))
    history_ = shm::extend_history(history_, call);
  const std::lock_guard lock{mutex_};
  call_ = call;
  is_under_way_ = true;
  began_ = now;
  return {};
}

void shm_group::end() {
  own_.is_under_way.store(0, std::memory_order_release);
  const std::lock_guard lock{mutex_};
  if (!std::exchange(is_under_way_, false))
    return;
  took_ = recent_time() - began_;
}

shm::posting& shm_group::next_posting() noexcept {
  return own_.postings[postings_ % shm::slots];
}

std::byte* shm_group::next_slot() noexcept {
  return own_.data[postings_ % shm::slots];
}

const shm::posting& shm_group::posting_of(std::uint32_t rank) const noexcept {
  return members_->control_of(rank).postings[(postings_ - 1) % shm::slots];
}

const std::byte* shm_group::slot_of(std::uint32_t rank) const noexcept {
  return members_->control_of(rank).data[(postings_ - 1) % shm::slots];
}

void shm_group::arrive() {
  if (const auto core = current_core(); own_.core.load(std::memory_order_relaxed) != core)
    own_.core.store(core, std::memory_order_relaxed);
  own_.rendezvous.store(++rendezvous_count_, std::memory_order_seq_cst);
  // Read after the count is written, because a peer that is about to sleep announces it first and then reads the count.
  auto has_sleepers = false;
  for (std::uint32_t r = 0; r < size(); ++r)
    has_sleepers = has_sleepers || (r != rank() && members_->control_of(r).sleeps_on[rank()].load() != 0);
  if (has_sleepers)
    shm::futex_wake_all(own_.rendezvous);
}

bool shm_group::has_met(std::uint32_t peer) const noexcept {
  const auto theirs = members_->control_of(peer).rendezvous.load(std::memory_order_acquire);
  return static_cast<std::int32_t>(theirs - rendezvous_count_) >= 0;
}

expected<void> shm_group::wait_for(std::uint32_t peer) {
  const auto& word = members_->control_of(peer).rendezvous;
  for (std::uint32_t looks = 0; !has_met(peer);) {
    if (has_failed())
      return state();
    if (spin(peer, looks))
      continue;
    const auto seen = word.load();
    if (has_met(peer))
      break;
    TROUPE_TRY(sleep_on(peer, word, seen));
  }
  return {};
}

expected<void> shm_group::wait_for_all() {
  for (std::uint32_t i = 1; i < size(); ++i)
    TROUPE_TRY(wait_for((rank() + i) % size()));
  return {};
}

expected<void> shm_group::post(const call_record& call) {
  next_posting().call = call;
  next_posting().history = history_;
  ++postings_;
  arrive();
  for (std::uint32_t i = 1; i < size(); ++i) {
    const auto peer = (rank() + i) % size();
    TROUPE_TRY(wait_for(peer));
    const auto& theirs = posting_of(peer).call;
    // An earlier call may have ended on both sides without a rendezvous.
    if (posting_of(peer).history != history_)
      TROUPE_TRY(check_calls_of(peer));
    if (theirs.sequence != call.sequence || !fit_together(call, theirs))
      return fail_with(mismatch_with(peer, theirs, call));
  }
  return {};
}

expected<void> shm_group::post_maximum(const call_record& call, std::span<std::uint64_t> words) {
  std::ranges::copy(words, next_posting().words);
  TROUPE_TRY(post(call));
  for (std::uint32_t r = 0; r < size(); ++r)
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = std::max(words[i], posting_of(r).words[i]);
  return {};
}

bool shm_group::spin(std::uint32_t peer, std::uint32_t& looks) const noexcept {
  // With a core per rank, the peer is likely to arrive while this rank spins; otherwise spinning takes a core from
  // another rank. The kernel also places two ranks on one core while others are free, and leaves them there for a long
  // time.
  const auto spins = cores_per_rank_ > 0 ? 2000u : 100u;
  const auto yields = cores_per_rank_ > 0 ? 4u : 8u;
  const auto takes_its_core = members_->control_of(peer).core.load(std::memory_order_relaxed) == current_core();
  looks = takes_its_core ? std::max(looks + 1, spins + 1) : looks + 1;
  if (looks > spins + yields)
    return false;
  if (looks <= spins)
    pause_briefly();
  else
    ::sched_yield();
  return true;
}

expected<void> shm_group::sleep_on(std::uint32_t peer, const std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  own_.sleeps_on[peer].store(1);
  auto in_time = true;
  if (word.load() == seen && !has_failed())
    in_time = shm::futex_wait(word, seen, look_interval);
  own_.sleeps_on[peer].store(0, std::memory_order_release);
  if (word.load() != seen)
    return {};
  if (has_failed())
    return state();
  TROUPE_TRY(check_peers(peer, word, seen));
  if (in_time)
    return {};
  TROUPE_TRY(check_calls());
  TROUPE_TRY(check_crossing(peer, word, seen));
  return check_deadline(peer);
}

void shm_group::wake(std::uint32_t peer, const std::atomic<std::uint32_t>& word) noexcept {
  if (members_->control_of(peer).sleeps_on[rank()].load() != 0)
    shm::futex_wake_all(word);
}

/// Checks whether a peer has given up or the awaited one has ended. Its end is no loss if its last word has arrived:
/// `word` then differs from `seen`.
expected<void> shm_group::check_peers(std::uint32_t waits_for, const std::atomic<std::uint32_t>& word,
                                      std::uint32_t seen) {
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (r == rank() || members_->control_of(r).state.load(std::memory_order_acquire) != shm::standing::failed)
      continue;
    if (word.load() != seen)
      return {};
    // This rank's own check may find more than the peer reports.
    TROUPE_TRY(check_calls());
    const auto& theirs = members_->control_of(r);
    const auto code = theirs.code == static_cast<std::uint32_t>(errc::mismatch) ? errc::mismatch : errc::aborted;
    const auto length = ::strnlen(theirs.reason, sizeof(theirs.reason));
    return fail_with({code, fmt::format("{}: rank {} gave up: {}", where(), members_->name_of(r),
                                        std::string_view{theirs.reason, length})});
  }
  const auto has_left = members_->control_of(waits_for).state.load(std::memory_order_acquire) == shm::standing::left;
  if ((!has_left && !members_->is_gone(waits_for)) || word.load() != seen)
    return {};
  return fail_with({errc::aborted, fmt::format("{}: lost rank {}{}: form a new communicator without it", where(),
                                               members_->name_of(waits_for),
                                               has_left ? " (it has left the group)" : " (its process has ended)")});
}

/// Whether a peer has begun another call under the same number.
expected<void> shm_group::check_calls() {
  for (std::uint32_t r = 0; r < size(); ++r)
    if (r != rank())
      TROUPE_TRY(check_calls_of(r));
  return {};
}

expected<void> shm_group::check_calls_of(std::uint32_t peer) {
  const auto last = own_.collective_calls;
  for (auto i = last < shm::remembered_calls ? 1 : last - shm::remembered_calls + 1; i <= last; ++i) {
    const auto mine = shm::collective_call(own_, i);
    const auto theirs = shm::collective_call(members_->control_of(peer), i);
    if (mine.kind != call_kind::none && theirs.kind != call_kind::none && !fit_together(mine, theirs))
      return fail_with(mismatch_with(peer, theirs, mine));
  }
  return {};
}

/// Whether this rank waits for a peer (to send or take a message) that waits for this rank in a collective call.
expected<void> shm_group::check_crossing(std::uint32_t peer, const std::atomic<std::uint32_t>& word,
                                         std::uint32_t seen) {
  if (shm::is_collective(call_))
    return {};
  const auto theirs = shm::running_call(members_->control_of(peer));
  // Messages that it sent earlier have arrived by now.
  if (!shm::waits_for_all(theirs) || theirs.sequence <= own_.collective_calls || word.load() != seen)
    return {};
  return fail_with(mismatch_with(peer, theirs, call_));
}

expected<void> shm_group::check_deadline(std::uint32_t peer) {
  if (std::chrono::steady_clock::now() < ends_at_)
    return {};
  // The ranks that are furthest behind block all others, so report only them. If all have begun this call, report the
  // ranks that make no progress in it.
  auto least = shm::is_collective(call_) ? call_.sequence : 0;
  for (std::uint32_t r = 0; r < size(); ++r)
    if (r != rank())
      least = std::min(least, shm::collective_calls(members_->control_of(r)));
  const auto is_behind = shm::is_collective(call_) && least < call_.sequence;
  auto missing = std::string{};
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (r == rank() || (is_behind ? shm::collective_calls(members_->control_of(r)) != least : r != peer && has_met(r)))
      continue;
    const auto theirs = shm::last_call(members_->control_of(r));
    missing += fmt::format("{}rank {} ({})", missing.empty() ? "" : ", ", members_->name_of(r),
                           theirs.kind == call_kind::none ? "no call yet" : "last in " + to_string(theirs));
  }
  return fail_with({errc::timed_out, fmt::format("{}: nothing came from {} within {} ms; frozen, slow, or in another "
                                                 "call: check those ranks, or raise the deadline",
                                                 where(), missing, deadline_.count())});
}

std::string shm_group::where() const {
  return fmt::format("{} on {}", to_string(call_), members_->describe());
}

error shm_group::mismatch_with(std::uint32_t peer, const call_record& theirs, const call_record& mine) const {
  return {errc::mismatch, describe_mismatch(members_->name_of(peer), theirs, members_->name_of(rank()), mine)};
}

void shm_group::abort(error reason) noexcept {
  {
    const std::lock_guard lock{mutex_};
    if (failure_.code != errc::none)
      return;
    failure_ = std::move(reason);
    if (failure_.code == errc::none)
      failure_.code = errc::aborted;
    own_.code = static_cast<std::uint32_t>(failure_.code);
    const auto length = std::min(failure_.message.size(), sizeof(own_.reason) - 1);
    std::memcpy(own_.reason, failure_.message.data(), length);
    own_.state.store(shm::standing::failed, std::memory_order_release);
    has_failed_.store(true);
  }
  members_->wake_everybody();
}

expected<void> shm_group::fail_with(error reason) {
  abort(std::move(reason));
  return state();
}

expected<void> shm_group::state() const {
  const std::lock_guard lock{mutex_};
  if (failure_.code == errc::none)
    return {};
  return fail(failure_);
}

flight_record shm_group::record() const {
  const std::lock_guard lock{mutex_};
  flight_record result;
  result.transport = "shm";
  result.rank = members_->name_of(rank());
  result.world_size = size();
  result.generation = members_->generation();
  result.call = call_;
  result.is_under_way = is_under_way_;
  result.duration = is_under_way_ ? std::chrono::steady_clock::now() - began_ : took_;
  if (!is_under_way_)
    return result;
  const auto mine = own_.rendezvous.load();
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (r == rank())
      continue;
    const auto theirs = shm::last_call(members_->control_of(r));
    const auto has_come = static_cast<std::int32_t>(members_->control_of(r).rendezvous.load() - mine) >= 0;
    result.peers.push_back({members_->name_of(r), has_come && theirs.sequence >= call_.sequence, theirs});
  }
  return result;
}

} // namespace troupe::collectives
