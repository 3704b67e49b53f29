#include "worker/state/snapshot_writer.hpp"

#include <algorithm>
#include <sys/resource.h>
#include <utility>

namespace troupe::runtime {

namespace {

/// Lets the training threads of this machine go first. Not SCHED_IDLE: behind busy processors that never gets on.
void give_way() noexcept {
  constexpr auto niceness = 10;
  // Of the calling thread, on Linux. Refused, it is as it was.
  ::setpriority(PRIO_PROCESS, 0, niceness);
}

error abandoned() {
  return {errc::aborted, "the generation of this checkpoint is over: it is taken again"};
}

} // namespace

std::size_t share_bytes(const serialization::chunk_plan& plan, std::uint32_t part) {
  std::size_t result = 0;
  for (const auto& chunk : plan.chunks_of(part))
    result += chunk.length_bytes;
  return result;
}

void copy_share(const serialization::chunk_plan& plan, std::uint32_t part, const tracked_state& state,
                std::span<std::byte> target) {
  // Merge neighbouring chunks of one tensor: the C library bypasses the caches only for copies far longer than a chunk,
  // and is then 1.5 times as fast.
  auto chunks = plan.chunks_of(part);
  for (auto first = chunks.begin(); first != chunks.end();) {
    auto length = first->length_bytes;
    auto next = first + 1;
    for (; next != chunks.end() && next->tensor == first->tensor &&
           next->tensor_offset_bytes == first->tensor_offset_bytes + length;
         ++next)
      length += next->length_bytes;
    state.copy_out(first->tensor, first->tensor_offset_bytes, target.first(length));
    target = target.subspan(length);
    first = next;
  }
}

snapshot_writer::snapshot_writer(destination where, std::uint32_t copies) : where_(std::move(where)) {
  free_.resize(std::max(copies, std::uint32_t{1}));
  thread_ = std::thread{[this] { loop(); }};
}

snapshot_writer::~snapshot_writer() {
  abandon();
  {
    auto lock = std::lock_guard{mutex_};
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void snapshot_writer::prepare(std::size_t size_bytes, std::shared_ptr<tensor_memory> from) {
  {
    auto lock = std::lock_guard{mutex_};
    wanted_bytes_ = size_bytes;
    wanted_for_ = std::move(from);
  }
  changed_.notify_all();
}

void snapshot_writer::begin(checkpoint_part head, serialization::chunk_plan plan, const tracked_state& state) {
  auto next = job{};
  {
    auto lock = std::unique_lock{mutex_};
    changed_.wait(lock, [this] { return !free_.empty(); });
    next.memory = std::move(free_.back());
    free_.pop_back();
  }
  next.size_bytes = share_bytes(plan, head.rank.value);
  try {
    value_or_throw(next.memory.reserve(next.size_bytes, state.distant_memory()));
    copy_share(plan, head.rank.value, state, next.memory.bytes());
  } catch (const exception& x) {
    head.reason = x.reason();
  }
  next.head = std::move(head);
  next.plan = std::move(plan);
  {
    auto lock = std::lock_guard{mutex_};
    jobs_.push_back(std::move(next));
    last_.reset();
  }
  changed_.notify_all();
}

std::uint32_t snapshot_writer::in_flight() const {
  auto lock = std::lock_guard{mutex_};
  return static_cast<std::uint32_t>(jobs_.size());
}

bool snapshot_writer::all_abandoned() const {
  return std::ranges::all_of(jobs_, [](const job& x) { return x.stop.stop_requested(); });
}

expected<checkpoint_outcome> snapshot_writer::wait() {
  auto lock = std::unique_lock{mutex_};
  changed_.wait(lock, [this] { return all_abandoned(); });
  if (jobs_.empty() && last_)
    return *last_;
  return fail(abandoned());
}

void snapshot_writer::abandon() {
  {
    auto lock = std::lock_guard{mutex_};
    for (auto& each : jobs_)
      if (!each.delivering)
        each.stop.request_stop();
  }
  changed_.notify_all();
}

bool snapshot_writer::take_lost() {
  auto lock = std::lock_guard{mutex_};
  return std::exchange(lost_, false);
}

void snapshot_writer::run(job& which, std::unique_lock<std::mutex>& lock) {
  auto stop = which.stop.get_token();
  if (!stop.stop_requested() && which.head.reason.code == errc::none) {
    lock.unlock();
    auto written = where_.write({which.head, which.plan, which.memory.bytes().first(which.size_bytes)}, stop);
    lock.lock();
    if (written)
      which.head.report = std::move(*written);
    else
      which.head.reason = std::move(written.error());
  }
  auto outcome = expected<checkpoint_outcome>{fail(abandoned())};
  if (!stop.stop_requested()) {
    which.delivering = true;
    lock.unlock();
    outcome = where_.deliver(which.head);
    lock.lock();
  }
  lost_ = lost_ || !outcome;
  last_ = std::move(outcome);
}

void snapshot_writer::loop() {
  give_way();
  auto lock = std::unique_lock{mutex_};
  for (;;) {
    auto too_small = [this](const staging_memory& x) { return x.bytes().size() < wanted_bytes_; };
    auto small = free_.end();
    changed_.wait(lock, [&] {
      small = std::ranges::find_if(free_, too_small);
      return stop_ || !jobs_.empty() || small != free_.end();
    });
    if (!jobs_.empty()) {
      run(jobs_.front(), lock);
      free_.push_back(std::move(jobs_.front().memory));
      jobs_.pop_front();
    } else if (stop_) {
      return;
    } else {
      auto memory = std::move(*small);
      free_.erase(small);
      auto wanted = wanted_bytes_;
      auto from = wanted_for_;
      lock.unlock();
      auto ready = memory.reserve(wanted, from);
      lock.lock();
      // The copy that needs the memory tries again and reports the failure.
      if (!ready)
        wanted_bytes_ = 0;
      free_.push_back(std::move(memory));
    }
    changed_.notify_all();
  }
}

} // namespace troupe::runtime
