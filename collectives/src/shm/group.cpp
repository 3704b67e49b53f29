#include "shm/group.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <new>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace troupe::collectives {

namespace {

using namespace std::chrono_literals;

/// How long a rank sleeps before it checks whether its peers are alive.
constexpr auto look_interval = 20ms;

enum descriptor : std::size_t { generation_file, process_file, process, descriptor_count };

/// The shared variants, because other processes map the word at other addresses.
long futex(const std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) noexcept {
  return ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

/// False if the timeout expired first.
bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds limit) noexcept {
  const auto timeout = timespec{static_cast<time_t>(limit / 1s), static_cast<long>((limit % 1s).count())};
  return futex(word, FUTEX_WAIT, seen, &timeout) == 0 || errno != ETIMEDOUT;
}

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

std::string describe(const shm_options& options) {
  return fmt::format("rank {} of {} of this host, generation {}", options.rank, options.world_size, options.generation);
}

bool is_collective(const call_record& call) noexcept {
  return call.kind != call_kind::send && call.kind != call_kind::receive && call.kind != call_kind::none;
}

/// A call in which no rank ends before all have begun it.
bool waits_for_all(const call_record& call) noexcept {
  return is_collective(call) && call.kind != call_kind::broadcast &&
         (call.size_bytes != 0 || call.kind == call_kind::barrier || call.kind == call_kind::all_gather_bytes);
}

/// Reads what a peer may be writing; returns a default value if it never gets a consistent copy.
template <class F>
auto read_calls(const shm::control& theirs, F read) noexcept -> decltype(read(theirs)) {
  for (int tries = 0; tries < 1000; ++tries) {
    const auto before = theirs.call_version.load(std::memory_order_acquire);
    const auto result = read(theirs);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && theirs.call_version.load(std::memory_order_relaxed) == before)
      return result;
  }
  return {};
}

expected<void> check_options(const shm_options& options) {
  if (options.world_size == 0 || options.world_size > shm::max_ranks || options.rank.value >= options.world_size)
    return fail(errc::invalid_argument, fmt::format("{}: a rank must be below the group's size, which is at most {}",
                                                    describe(options), shm::max_ranks));
  if (!options.names.empty() && options.names.size() != options.world_size)
    return fail(errc::invalid_argument, fmt::format("{}: pass a name for each rank, or none", describe(options)));
  if (options.deadline <= 0ms || !options.pool)
    return fail(errc::invalid_argument,
                fmt::format("{}: a group needs a positive deadline and a pool", describe(options)));
  return {};
}

} // namespace

// -- mapped_file -----------------------------------------------------------------------------------------------------

expected<mapped_file> mapped_file::make(unique_fd fd) {
  struct stat status = {};
  const auto seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.get(), &status) != 0 || status.st_size <= 0)
    return fail(
        errc::mismatch,
        "a peer's descriptor is not a memory file, or the file can shrink: the peer is not a member of this group");
  mapped_file result;
  result.size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  auto* data = ::mmap(nullptr, result.size_bytes_, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED)
    return fail(system_error("mapping a peer's memory"));
  ::madvise(data, result.size_bytes_, MADV_DONTDUMP);
  result.data_ = static_cast<const std::byte*>(data);
  result.fd_ = std::move(fd);
  return result;
}

mapped_file::mapped_file(mapped_file&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

mapped_file& mapped_file::operator=(mapped_file&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

mapped_file::~mapped_file() {
  if (data_ != nullptr)
    ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

// -- forming ---------------------------------------------------------------------------------------------------------

expected<std::shared_ptr<shm_group>> shm_group::connect(const shm_options& options,
                                                        const descriptor_exchange& exchange) {
  if (auto valid = check_options(options); !valid)
    return fail(std::move(valid.error()));
  // As large as the process's own pool.
  auto pool = shared_pool::make(options.pool->capacity_bytes(), options.results_for_devices
                                                                    ? shared_pool::peer_access::pinnable
                                                                    : shared_pool::peer_access::read_only);
  if (!pool)
    return fail(std::move(pool.error()));
  shm::control* own = nullptr;
  try {
    own = new ((*pool)->allocate(sizeof(shm::control), alignof(shm::control))) shm::control{};
  } catch (const std::bad_alloc&) {
    return fail(errc::io_error,
                fmt::format("{}: there is no memory left to share with the peers of this host", describe(options)));
  }
  own->magic_number = shm::magic;
  own->generation = options.generation.value;
  own->rank = options.rank.value;
  own->world_size = options.world_size;
  const auto process = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))};
  if (!process)
    return fail(system_error("pidfd_open of this process"));
  const int mine[descriptor_count] = {(*pool)->fd(), options.pool->fd(), process.get()};
  auto descriptors = exchange(mine);
  if (!descriptors)
    return fail(std::move(descriptors.error()));
  auto group = std::shared_ptr<shm_group>{new shm_group{options, std::move(*pool), own}};
  if (auto mapped = group->map_members(std::move(*descriptors)); !mapped)
    return fail(std::move(mapped.error()));
  return group;
}

shm_group::shm_group(const shm_options& options, std::shared_ptr<shared_pool> generation_pool, shm::control* own)
    : rank_(options.rank.value),
      generation_(options.generation),
      deadline_(options.deadline),
      cores_per_rank_(usable_cores() / options.world_size),
      names_(options.names),
      has_results_for_devices_(options.results_for_devices),
      process_pool_(options.pool),
      generation_pool_(std::move(generation_pool)),
      own_(own),
      members_(options.world_size) {
  members_[rank_].control = own_;
}

expected<void> shm_group::map_members(std::vector<std::vector<unique_fd>> descriptors) {
  if (descriptors.size() != size())
    return fail(errc::mismatch, fmt::format("the exchange returned the descriptors of {} ranks; the group has {}",
                                            descriptors.size(), size()));
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (r == rank_)
      continue;
    auto& theirs = descriptors[r];
    const auto wrong = [r] {
      return fail(errc::mismatch, fmt::format("the descriptors of rank {} are not from this generation and group; "
                                              "exchange among exactly its members, in rank order",
                                              r));
    };
    if (theirs.size() != descriptor_count)
      return wrong();
    auto of_generation = mapped_file::make(std::move(theirs[generation_file]));
    if (!of_generation)
      return fail(std::move(of_generation.error()));
    auto of_process = mapped_file::make(std::move(theirs[process_file]));
    if (!of_process)
      return fail(std::move(of_process.error()));
    if (of_generation->size_bytes() < sizeof(shm::control))
      return wrong();
    const auto* control = reinterpret_cast<const shm::control*>(of_generation->data());
    if (control->magic_number != shm::magic || control->generation != generation_.value || control->rank != r ||
        control->world_size != size())
      return wrong();
    members_[r] = {std::move(*of_generation), std::move(*of_process), std::move(theirs[process]), control};
  }
  return {};
}

shm_group::~shm_group() {
  leave();
}

void shm_group::leave() noexcept {
  auto present = shm::standing::present;
  own_->state.compare_exchange_strong(present, shm::standing::left);
  wake_everybody();
}

const std::byte* shm_group::process_memory(std::uint32_t rank) const noexcept {
  return rank == rank_ ? nullptr : members_[rank].process_file.data();
}

const std::byte* shm_group::generation_memory(std::uint32_t rank) const noexcept {
  return rank == rank_ ? reinterpret_cast<const std::byte*>(own_) : members_[rank].generation_file.data();
}

int shm_group::generation_fd(std::uint32_t rank) const noexcept {
  return rank == rank_ ? generation_pool_->fd() : members_[rank].generation_file.fd();
}

// -- calls -----------------------------------------------------------------------------------------------------------

expected<void> shm_group::begin(const call_record& call) {
  // A call after the group has failed is not recorded: the record keeps the one that failed.
  if (has_failed())
    return state();
  const auto now = recent_time();
  ends_at_ = now + deadline_;
  // Only this rank writes the version.
  const auto version = own_->call_version.load(std::memory_order_relaxed);
  own_->call_version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  own_->call = call;
  if (is_collective(call)) {
    own_->collective_calls = call.sequence;
    own_->calls[call.sequence % shm::remembered_calls] = call;
  }
  own_->is_under_way.store(1, std::memory_order_relaxed);
  own_->call_version.store(version + 2, std::memory_order_release);
  if (is_collective(call))
    for (auto x : {call.sequence, call.size_bytes, call.detail, std::uint64_t{call.peer},
                   std::uint64_t{static_cast<std::uint8_t>(call.kind)} << 16 | std::uint64_t{call.type} << 8 | call.op})
      history_ = (std::rotl(history_, 5) ^ x) * 0x9e3779b97f4a7c15u;
  const std::lock_guard lock{mutex_};
  call_ = call;
  is_under_way_ = true;
  began_ = now;
  return {};
}

void shm_group::end() {
  own_->is_under_way.store(0, std::memory_order_release);
  const std::lock_guard lock{mutex_};
  if (!std::exchange(is_under_way_, false))
    return;
  took_ = recent_time() - began_;
}

shm::posting& shm_group::next_posting() noexcept {
  return own_->postings[postings_ % shm::slots];
}

std::byte* shm_group::next_slot() noexcept {
  return own_->data[postings_ % shm::slots];
}

const shm::posting& shm_group::posting_of(std::uint32_t rank) const noexcept {
  return members_[rank].control->postings[(postings_ - 1) % shm::slots];
}

const std::byte* shm_group::slot_of(std::uint32_t rank) const noexcept {
  return members_[rank].control->data[(postings_ - 1) % shm::slots];
}

void shm_group::arrive() {
  if (const auto core = current_core(); own_->core.load(std::memory_order_relaxed) != core)
    own_->core.store(core, std::memory_order_relaxed);
  own_->rendezvous.store(++rendezvous_count_, std::memory_order_seq_cst);
  // Read after the count is written, because a peer that is about to sleep announces it first and then reads the count.
  auto has_sleepers = false;
  for (std::uint32_t r = 0; r < size(); ++r)
    has_sleepers = has_sleepers || (r != rank_ && members_[r].control->sleeps_on[rank_].load() != 0);
  if (has_sleepers)
    futex_wake_all(own_->rendezvous);
}

bool shm_group::has_met(std::uint32_t peer) const noexcept {
  const auto theirs = members_[peer].control->rendezvous.load(std::memory_order_acquire);
  return static_cast<std::int32_t>(theirs - rendezvous_count_) >= 0;
}

expected<void> shm_group::wait_for(std::uint32_t peer) {
  const auto& word = members_[peer].control->rendezvous;
  for (std::uint32_t looks = 0; !has_met(peer);) {
    if (has_failed())
      return state();
    if (spin(peer, looks))
      continue;
    const auto seen = word.load();
    if (has_met(peer))
      break;
    if (auto slept = sleep_on(peer, word, seen); !slept)
      return slept;
  }
  return {};
}

expected<void> shm_group::wait_for_all() {
  for (std::uint32_t i = 1; i < size(); ++i)
    if (auto there = wait_for((rank_ + i) % size()); !there)
      return there;
  return {};
}

expected<void> shm_group::post(const call_record& call) {
  next_posting().call = call;
  next_posting().history = history_;
  ++postings_;
  arrive();
  for (std::uint32_t i = 1; i < size(); ++i) {
    const auto peer = (rank_ + i) % size();
    if (auto there = wait_for(peer); !there)
      return there;
    const auto& theirs = posting_of(peer).call;
    // An earlier call may have ended on both sides without a rendezvous.
    if (posting_of(peer).history != history_)
      if (auto fine = check_calls_of(peer); !fine)
        return fine;
    if (theirs.sequence != call.sequence || !fit_together(call, theirs))
      return fail_with({errc::mismatch, describe_mismatch(name_of(peer), theirs, name_of(rank_), call)});
  }
  return {};
}

bool shm_group::spin(std::uint32_t peer, std::uint32_t& looks) const noexcept {
  // With a core per rank, the peer is likely to arrive while this rank spins; otherwise spinning takes a core from
  // another rank. The kernel also places two ranks on one core while others are free, and leaves them there for a long
  // time.
  const auto spins = cores_per_rank_ > 0 ? 2000u : 100u;
  const auto yields = cores_per_rank_ > 0 ? 4u : 8u;
  const auto takes_its_core = members_[peer].control->core.load(std::memory_order_relaxed) == current_core();
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
  own_->sleeps_on[peer].store(1);
  auto in_time = true;
  if (word.load() == seen && !has_failed())
    in_time = futex_wait(word, seen, look_interval);
  own_->sleeps_on[peer].store(0, std::memory_order_release);
  if (word.load() != seen)
    return {};
  if (has_failed())
    return state();
  if (auto fine = check_peers(peer, word, seen); !fine)
    return fine;
  if (in_time)
    return {};
  if (auto fine = check_calls(); !fine)
    return fine;
  if (auto fine = check_crossing(peer, word, seen); !fine)
    return fine;
  return check_deadline(peer);
}

void shm_group::wake(std::uint32_t peer, const std::atomic<std::uint32_t>& word) noexcept {
  if (members_[peer].control->sleeps_on[rank_].load() != 0)
    futex_wake_all(word);
}

void shm_group::wake_everybody() noexcept {
  // Also ranks that sleep on a word of another rank, and this rank's own thread.
  for (const auto& x : members_) {
    if (x.control == nullptr)
      continue;
    futex_wake_all(x.control->rendezvous);
    futex_wake_all(x.control->channels[rank_].posted);
  }
  for (const auto& channel : own_->channels)
    futex_wake_all(channel.posted);
}

// -- failure ---------------------------------------------------------------------------------------------------------

/// Whether a peer has given up, or the awaited one is gone. It does not count as a loss if what it did before has
/// arrived: `word` is then no longer `seen`.
expected<void> shm_group::check_peers(std::uint32_t waits_for, const std::atomic<std::uint32_t>& word,
                                      std::uint32_t seen) {
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (r == rank_ || members_[r].control->state.load(std::memory_order_acquire) != shm::standing::failed)
      continue;
    if (word.load() != seen)
      return {};
    // This rank's own check may find more than the peer reports.
    if (auto fine = check_calls(); !fine)
      return fine;
    const auto& theirs = *members_[r].control;
    const auto code = theirs.code == static_cast<std::uint32_t>(errc::mismatch) ? errc::mismatch : errc::aborted;
    const auto length = ::strnlen(theirs.reason, sizeof(theirs.reason));
    return fail_with(
        {code, fmt::format("{}: {} gave up: {}", where(), named(r), std::string_view{theirs.reason, length})});
  }
  const auto has_left = members_[waits_for].control->state.load(std::memory_order_acquire) == shm::standing::left;
  if ((!has_left && !is_gone(waits_for)) || word.load() != seen)
    return {};
  return fail_with(
      {errc::aborted, fmt::format("{}: lost {}{}: form a new communicator without it", where(), named(waits_for),
                                  has_left ? " (it has left the group)" : " (its process has ended)")});
}

bool shm_group::is_gone(std::uint32_t peer) const {
  auto look = pollfd{members_[peer].process.get(), POLLIN, 0};
  return look.fd >= 0 && ::poll(&look, 1, 0) > 0;
}

call_record shm_group::call_of(std::uint32_t peer) const noexcept {
  return read_calls(*members_[peer].control, [](const shm::control& x) { return x.call; });
}

/// The collective call with this number; its kind is `none` if the peer has not begun it or no longer remembers it.
call_record shm_group::call_of(std::uint32_t peer, std::uint64_t sequence) const noexcept {
  const auto call = read_calls(*members_[peer].control,
                               [sequence](const shm::control& x) { return x.calls[sequence % shm::remembered_calls]; });
  return call.sequence == sequence ? call : call_record{};
}

std::uint64_t shm_group::collective_calls(std::uint32_t peer) const noexcept {
  return read_calls(*members_[peer].control, [](const shm::control& x) { return x.collective_calls; });
}

/// Whether a peer has begun another call under the same number.
expected<void> shm_group::check_calls() {
  for (std::uint32_t r = 0; r < size(); ++r)
    if (r != rank_)
      if (auto fine = check_calls_of(r); !fine)
        return fine;
  return {};
}

expected<void> shm_group::check_calls_of(std::uint32_t peer) {
  const auto last = own_->collective_calls;
  for (auto i = last < shm::remembered_calls ? 1 : last - shm::remembered_calls + 1; i <= last; ++i) {
    const auto mine = call_of(rank_, i);
    const auto theirs = call_of(peer, i);
    if (mine.kind != call_kind::none && theirs.kind != call_kind::none && !fit_together(mine, theirs))
      return fail_with({errc::mismatch, describe_mismatch(name_of(peer), theirs, name_of(rank_), mine)});
  }
  return {};
}

/// Whether this rank waits for a peer (to send or take a message) that waits for this rank in a collective call.
expected<void> shm_group::check_crossing(std::uint32_t peer, const std::atomic<std::uint32_t>& word,
                                         std::uint32_t seen) {
  if (is_collective(call_))
    return {};
  const auto theirs = read_calls(*members_[peer].control, [](const shm::control& x) {
    return x.is_under_way.load(std::memory_order_acquire) != 0 ? x.call : call_record{};
  });
  // Messages that it sent earlier have arrived by now.
  if (!waits_for_all(theirs) || theirs.sequence <= own_->collective_calls || word.load() != seen)
    return {};
  return fail_with({errc::mismatch, describe_mismatch(name_of(peer), theirs, name_of(rank_), call_)});
}

expected<void> shm_group::check_deadline(std::uint32_t peer) {
  if (std::chrono::steady_clock::now() < ends_at_)
    return {};
  // The ranks that are furthest behind block all others, so only they are blamed. If all have begun this call, blame
  // those that make no progress in it.
  auto least = is_collective(call_) ? call_.sequence : 0;
  for (std::uint32_t r = 0; r < size(); ++r)
    if (r != rank_)
      least = std::min(least, collective_calls(r));
  const auto is_behind = is_collective(call_) && least < call_.sequence;
  auto missing = std::string{};
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (r == rank_ || (is_behind ? collective_calls(r) != least : r != peer && has_met(r)))
      continue;
    const auto theirs = call_of(r);
    missing += fmt::format("{}{} ({})", missing.empty() ? "" : ", ", named(r),
                           theirs.kind == call_kind::none ? "no call yet" : "last in " + to_string(theirs));
  }
  return fail_with({errc::timed_out, fmt::format("{}: nothing came from {} within {} ms; frozen, slow, or in another "
                                                 "call: check those ranks, or raise the deadline",
                                                 where(), missing, deadline_.count())});
}

std::string shm_group::where() const {
  return fmt::format("{} on {}{}, generation {}", to_string(call_), named(rank_),
                     names_.empty() ? fmt::format(" of {}", size()) : "", generation_);
}

rank_id shm_group::name_of(std::uint32_t rank) const noexcept {
  return names_.empty() ? rank_id{rank} : names_[rank];
}

std::string shm_group::named(std::uint32_t rank) const {
  return fmt::format("rank {}", name_of(rank));
}

void shm_group::abort(error reason) noexcept {
  {
    const std::lock_guard lock{mutex_};
    if (failure_.code != errc::none)
      return;
    failure_ = std::move(reason);
    if (failure_.code == errc::none)
      failure_.code = errc::aborted;
    own_->code = static_cast<std::uint32_t>(failure_.code);
    const auto length = std::min(failure_.message.size(), sizeof(own_->reason) - 1);
    std::memcpy(own_->reason, failure_.message.data(), length);
    own_->state.store(shm::standing::failed, std::memory_order_release);
    has_failed_.store(true);
  }
  wake_everybody();
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
  result.rank = name_of(rank_);
  result.world_size = size();
  result.generation = generation_;
  result.call = call_;
  result.is_under_way = is_under_way_;
  result.duration = is_under_way_ ? std::chrono::steady_clock::now() - began_ : took_;
  if (!is_under_way_)
    return result;
  const auto mine = own_->rendezvous.load();
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (r == rank_)
      continue;
    const auto theirs = call_of(r);
    const auto has_come = static_cast<std::int32_t>(members_[r].control->rendezvous.load() - mine) >= 0;
    result.peers.push_back({name_of(r), has_come && theirs.sequence >= call_.sequence, theirs});
  }
  return result;
}

} // namespace troupe::collectives
