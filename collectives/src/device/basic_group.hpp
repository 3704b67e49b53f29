#pragma once

#include "device/event_pool.hpp"
#include "device/progress.hpp"
#include "device/tree.hpp"
#include "transport/call_checks.hpp"
#include "transport/first_failure.hpp"

#include <troupe/collectives/call_queue.hpp>
#include <troupe/collectives/device_group.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe::collectives {

/// How long a call of a device group may take, unless set_deadline says otherwise.
inline constexpr auto default_deadline = std::chrono::seconds{300};

/// A bucket with its own device memory.
class own_device_bucket : public device_bucket {
 public:
  own_device_bucket(device_memory memory, std::uint64_t size_bytes, std::vector<byte_range> parts)
      : memory_(std::move(memory)), size_bytes_(size_bytes), parts_(std::move(parts)) {}

  device_span<const std::byte> bytes() const noexcept override { return memory_.bytes().first(size_bytes_); }
  std::span<const byte_range> parts() const noexcept override { return parts_; }
  [[nodiscard]] std::byte* data() const noexcept { return memory_.address(); }

 private:
  device_memory memory_;
  std::uint64_t size_bytes_;
  std::vector<byte_range> parts_;
};

/// The common part of the device groups: argument checks, plans, the first failure, and waiting for events with a
/// deadline. The caller's thread starts a reduction; a job on the group's thread continues it, in order.
class basic_device_group : public device_group {
 public:
  rank_id rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return world_size_; }
  generation_id generation() const noexcept override { return generation_; }
  const std::shared_ptr<device>& where() const noexcept override { return where_; }
  void set_deadline(std::chrono::milliseconds deadline) noexcept override { deadline_ = deadline; }
  std::string_view name() const noexcept override { return name_; }

  expected<device_memory> allocate(std::uint64_t size_bytes) override {
    return device_memory::make(where_, size_bytes);
  }
  expected<std::unique_ptr<device_bucket>> make_bucket(const bucket_layout& layout,
                                                       std::vector<byte_range> parts) override;
  expected<void> reduce_leaves(const bucket_layout& layout, std::uint32_t shards,
                               std::span<const shard_range> ownership, std::span<const leaf_partial> partials,
                               device_bucket& result, const device_event& ready, std::uint64_t divisor,
                               std::size_t part) override;
  expected<void> all_reduce_fast(const bucket_layout& layout, device_span<const std::byte> contribution,
                                 device_bucket& result, const device_event& ready, std::uint64_t divisor,
                                 std::size_t part) override;
  expected<void> finish() override;
  void abort(error reason) noexcept override;
  bool awaits_own_gpu() const noexcept override { return progress_.awaits_own_gpu(); }
  std::string describe() const override;

 protected:
  using clock = std::chrono::steady_clock;

  basic_device_group(std::shared_ptr<device> where, rank_id rank, std::uint32_t world_size, generation_id generation,
                     std::chrono::milliseconds deadline, std::string name, hang_policy on_hang);

  /// Creates the group's streams. Called once, by the factory.
  [[nodiscard]] expected<void> open();

  /// A running reduction. Its pointers stay valid until `finish` has returned; the rest are copies.
  struct reduction {
    /// "reduce_leaves #12 (part 3)".
    std::string call;
    bucket_layout layout;
    leaves_plan leaves;
    /// Bucket starts in device memory: of sums or, in the fast mode, of contributions.
    std::vector<leaf_partial> operands;
    own_device_bucket* result = nullptr;
    std::uint64_t divisor = 1;
    std::size_t part = 0;
    /// Completes when the operands do.
    device_event* ready = nullptr;
    clock::time_point ends_at;

    [[nodiscard]] byte_range range() const noexcept { return result->parts()[part]; }
  };

  // -- implemented by each group

  /// On the caller's thread, before the job is started.
  [[nodiscard]] virtual expected<void> prepare(reduction&) { return {}; }
  /// On the group's thread. Return once the work is on streams; pass its last event to `expect`.
  [[nodiscard]] virtual expected<void> reduce_exactly(const reduction& what) = 0;
  [[nodiscard]] virtual expected<void> reduce_fast(const reduction& what) = 0;
  /// On the group's thread, repeatedly while it waits: reports other failures.
  [[nodiscard]] virtual expected<void> look_around() { return state(); }
  /// On the group's thread, after a failure: returns once the work on the streams has ended or hangs.
  virtual void let_go() noexcept { drain({&stream_}); }
  /// After the first failure: wakes threads that do not check `state`.
  virtual void wake() noexcept {}
  [[nodiscard]] virtual pending_call start(std::function<expected<void>()> job) { return jobs_.start(std::move(job)); }

  // -- for the implementations

  [[nodiscard]] expected<void> state() const { return failure_.state(); }
  [[nodiscard]] bool has_failed() const noexcept { return failure_.is_set(); }
  /// Records the reason unless there is one already; returns the first one.
  [[nodiscard]] expected<void> fail_with(error reason);
  /// Polls until `is_done` returns true. Fails as `look_around` does, and at the deadline.
  [[nodiscard]] expected<void> poll(const std::function<expected<bool>()>& is_done, const std::string& what,
                                    clock::time_point ends_at);
  [[nodiscard]] expected<void> wait_for(const device_event& event, const std::string& what, clock::time_point ends_at);
  /// Records an event of the group on `stream`; `finish` waits for it.
  [[nodiscard]] expected<void> expect(stream_handle stream, const reduction& what, waits_for whom);
  /// The same for an intermediate point: it only tells what the stream waits for.
  [[nodiscard]] expected<void> mark(stream_handle stream, waits_for whom);
  [[nodiscard]] expected<device_event*> record_event(stream_handle stream) { return events_.record(stream); }
  /// Returns once all work on `streams` is done. If it hangs, requests once that this process ends.
  void drain(std::initializer_list<const device_stream*> streams) noexcept;
  /// Ends the jobs. The first call in a destructor.
  void stop() noexcept;
  [[nodiscard]] std::string named() const;

  const std::shared_ptr<device> where_;
  const rank_id rank_;
  const std::uint32_t world_size_;
  const generation_id generation_;
  const hang_policy on_hang_;
  /// On the group's thread: the process is ending, so waits are skipped.
  bool is_process_ending_ = false;
  std::atomic<std::chrono::milliseconds> deadline_;
  std::string name_;
  device_stream stream_;
  device_tree arithmetic_;

 private:
  [[nodiscard]] expected<void> begin(reduction what, const device_event& ready,
                                     expected<void> (basic_device_group::*job)(const reduction&));
  [[nodiscard]] expected<void> end_all();
  [[nodiscard]] expected<void> run(expected<void> (basic_device_group::*job)(const reduction&), const reduction& what);
  [[nodiscard]] expected<void> look_until(const std::function<expected<bool>()>& is_done, const std::string& what,
                                          clock::time_point ends_at);

  /// Transfers the caller's events to events of the group, in order.
  device_stream gate_;
  event_pool events_;

  struct expectation {
    device_event* event;
    std::string call;
    clock::time_point ends_at;
  };
  /// Used on the group's thread.
  std::vector<expectation> expected_;

  device_progress progress_;
  first_failure failure_;

  std::uint64_t sequence_ = 0;
  leaves_plan leaves_;

  call_queue jobs_;
  bool is_begun_ = false;
};

} // namespace troupe::collectives
