#include "device/basic_group.hpp"

#include "transport/call_checks.hpp"
#include "transport/helper_threads.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/staged_device_group.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fmt/format.h>
#include <thread>
#include <vector>

namespace troupe::collectives {

namespace {

/// For results that the device cannot read in place: the size of one copy, and the limit of copying threads.
constexpr std::uint64_t chunk_bytes = 2 << 20;
constexpr std::size_t most_lanes = 4;

/// A device bucket with its host side: the stage for partial sums on their way down, and the result on its way up.
class staged_bucket final : public own_device_bucket {
 public:
  staged_bucket(device_memory memory, std::uint64_t size_bytes, std::vector<byte_range> parts,
                std::unique_ptr<reduced_bucket> reduced, std::shared_ptr<device> where,
                std::pmr::memory_resource& memory_of_group)
      : own_device_bucket(std::move(memory), size_bytes, std::move(parts)),
        reduced_(std::move(reduced)),
        where_(std::move(where)),
        memory_of_group_(memory_of_group),
        views_(reduced_->parts().size()) {}

  [[nodiscard]] reduced_bucket& reduced() noexcept { return *reduced_; }

  /// Pinned memory for partial sum `i`. On the caller's thread.
  [[nodiscard]] expected<std::byte*> stage(std::size_t i, std::uint64_t size_bytes) {
    while (stages_.size() <= i) {
      TROUPE_TRY(auto made, make_stage(std::max<std::uint64_t>(size_bytes, alignment_bytes)));
      stages_.push_back(std::move(made));
    }
    return stages_[i].data;
  }
  [[nodiscard]] const std::byte* stage(std::size_t i) const noexcept { return stages_[i].data; }

  /// Whether the device can read `part` of the result in place. Parts of it are peers' memory, mapped by the first
  /// reduction, so call this after that; the mapping stays. On the group's thread.
  [[nodiscard]] bool pin(std::size_t part) {
    auto& view = views_[part];
    if (view.is_tried)
      return view.is_pinned;
    view.is_tried = true;
    const auto range = reduced_->parts()[part];
    const auto memory = reduced_->bytes().subspan(range.first, range.size_bytes());
    auto pinned = pinned_registration::make(where_, memory);
    // Some drivers also pin memory that this process may only read.
    if (!pinned)
      pinned = pinned_registration::make(where_, memory, device::host_access::read_only);
    view.is_pinned = pinned.has_value();
    if (pinned)
      view.registration = std::move(*pinned);
    return view.is_pinned;
  }

 private:
  struct stage_memory {
    std::byte* data = nullptr;
    std::unique_ptr<aligned_buffer> shared;
    /// Declared after `shared`, so that it is released first.
    pinned_registration pinned;
    pinned_memory own;
  };

  /// The group's memory, which peers can read; pages from the driver if that cannot be pinned.
  [[nodiscard]] expected<stage_memory> make_stage(std::uint64_t size_bytes) {
    if (memory_of_group_ == *std::pmr::new_delete_resource())
      return make_own_stage(size_bytes);
    stage_memory result;
    result.shared = std::make_unique<aligned_buffer>(size_bytes, memory_of_group_);
    auto pinned = pinned_registration::make(where_, result.shared->bytes());
    // The group copies what lies outside its own memory.
    if (!pinned) {
      result.shared.reset();
      return make_own_stage(size_bytes);
    }
    result.pinned = std::move(*pinned);
    result.data = result.shared->data();
    return result;
  }

  [[nodiscard]] expected<stage_memory> make_own_stage(std::uint64_t size_bytes) {
    TROUPE_TRY(auto own, pinned_memory::make(where_, size_bytes));
    stage_memory result;
    result.own = std::move(own);
    result.data = result.own.data();
    return result;
  }

  struct view_of_part {
    bool is_tried = false;
    bool is_pinned = false;
    pinned_registration registration;
  };

  std::unique_ptr<reduced_bucket> reduced_;
  std::shared_ptr<device> where_;
  std::pmr::memory_resource& memory_of_group_;
  std::vector<stage_memory> stages_;
  /// Declared after `reduced_`, so that the pins go before the mappings.
  std::vector<view_of_part> views_;
};

class staged_device_group final : public basic_device_group {
 public:
  staged_device_group(std::shared_ptr<device> where, communicator& host, hang_policy on_hang)
      : basic_device_group(std::move(where), host.rank(), host.world_size(), host.generation(), default_deadline,
                           fmt::format("staged ({})", host.record().transport), std::move(on_hang)),
        host_(host) {}

  ~staged_device_group() override { stop(); }

  bool can_be_predecessor() const noexcept override { return false; }

  expected<void> open_streams() {
    TROUPE_TRY(open());
    TROUPE_TRY(auto down, device_stream::make(where_, device::stream_priority::high));
    down_ = std::move(down);
    return {};
  }

  void set_deadline(std::chrono::milliseconds deadline) noexcept override {
    basic_device_group::set_deadline(deadline);
    host_.set_deadline(deadline);
  }

  expected<std::unique_ptr<device_bucket>> make_bucket(const bucket_layout& layout,
                                                       std::vector<byte_range> parts) override {
    TROUPE_TRY(check_parts(layout, parts));
    TROUPE_TRY(auto reduced, host_.make_bucket(layout, parts));
    TROUPE_TRY(auto memory, allocate(std::max<std::uint64_t>(layout.size_bytes(), alignment_bytes)));
    return std::make_unique<staged_bucket>(std::move(memory), layout.size_bytes(), std::move(parts), std::move(reduced),
                                           where_, host_.memory());
  }

 private:
  /// Copies partial sums down on a stream of its own: while the host reduces one part, the next comes down.
  expected<void> prepare(reduction& what) override {
    auto* bucket = dynamic_cast<staged_bucket*>(what.result);
    if (bucket == nullptr)
      return fail(errc::invalid_argument, fmt::format("{}: another kind of group made the bucket", what.call));
    const auto is_exact = what.leaves.finish != nullptr;
    const auto range = what.range();
    const auto size_bytes = what.layout.offset_in_sums(what.layout.size_bytes());
    const auto first = is_exact ? what.layout.offset_in_sums(range.first) : range.first;
    const auto last = is_exact ? what.layout.offset_in_sums(range.last) : range.last;
    TROUPE_TRY(what.ready->hold(down_));
    for (std::size_t i = 0; i < what.operands.size(); ++i) {
      TROUPE_TRY(auto to, bucket->stage(i, size_bytes));
      TROUPE_TRY(down_.copy(to + first, what.operands[i].data + first, last - first));
    }
    TROUPE_TRY(auto copied, record_event(down_.handle()));
    what.ready = copied;
    return {};
  }

  expected<void> reduce_exactly(const reduction& what) override {
    auto& bucket = static_cast<staged_bucket&>(*what.result);
    TROUPE_TRY(wait_for(*what.ready, what.call, what.ends_at));
    std::vector<leaf_partial> partials;
    for (std::size_t i = 0; i < what.operands.size(); ++i)
      partials.push_back({what.operands[i].node, bucket.stage(i)});
    TROUPE_TRY(host_.reduce_leaves(what.layout, what.leaves.shards, what.leaves.ownership, partials, bucket.reduced(),
                                   what.divisor, what.part));
    return bring_up(bucket, what);
  }

  expected<void> reduce_fast(const reduction& what) override {
    auto& bucket = static_cast<staged_bucket&>(*what.result);
    TROUPE_TRY(wait_for(*what.ready, what.call, what.ends_at));
    TROUPE_TRY(host_.all_reduce_fast(what.layout, {bucket.stage(0), what.layout.size_bytes()}, bucket.reduced(),
                                     what.divisor, what.part));
    return bring_up(bucket, what);
  }

  expected<void> bring_up(staged_bucket& bucket, const reduction& what) {
    const auto range = what.range();
    if (range.size_bytes() == 0)
      return {};
    const auto* from = bucket.reduced().bytes().data() + range.first;
    auto* to = bucket.data() + range.first;
    if (bucket.pin(what.part)) {
      TROUPE_TRY(stream_.copy(to, from, range.size_bytes()));
    } else if (auto put = bounce(to, from, range.size_bytes(), what); !put) {
      return put;
    }
    return expect(stream_.handle(), what, waits_for::own_gpu);
  }

  /// Copies through pinned chunks: the host fills some while the device reads others. One thread copies more slowly
  /// than the device, so several share the work.
  expected<void> bounce(std::byte* to, const std::byte* from, std::uint64_t size_bytes, const reduction& what) {
    const auto pieces = (size_bytes + chunk_bytes - 1) / chunk_bytes;
    const auto processors = std::max<std::size_t>(std::thread::hardware_concurrency() / world_size_, 1);
    const auto threads = std::min<std::size_t>({most_lanes, processors, pieces});
    std::atomic<std::uint64_t> next = 0;
    const auto copy_pieces = [&](lane& mine) -> expected<void> {
      for (;;) {
        const auto at = next.fetch_add(chunk_bytes);
        if (at >= size_bytes)
          return {};
        TROUPE_TRY(mine.pass(*this, to + at, from + at, std::min(chunk_bytes, size_bytes - at), what));
      }
    };
    if (!helpers_)
      helpers_ = std::make_unique<helper_threads>(std::min(most_lanes, processors) - 1);
    std::array<expected<void>, most_lanes> ends;
    helpers_->run(threads, [&](std::size_t i) { ends[i] = copy_pieces(lanes_[i]); });
    for (auto& end : ends)
      if (!end)
        return std::move(end);
    return {};
  }

  void let_go() noexcept override { drain({&down_, &stream_}); }

  void wake() noexcept override {
    if (auto reason = state(); !reason)
      host_.abort(std::move(reason.error()));
  }

  pending_call start(std::function<expected<void>()> job) override { return host_.start(std::move(job)); }

  /// One thread's two pinned chunks, used alternately.
  class lane {
   public:
    [[nodiscard]] expected<void> pass(staged_device_group& group, std::byte* to, const std::byte* from,
                                      std::uint64_t size_bytes, const reduction& what) {
      auto& chunk = chunks_[next_++ % chunks_.size()];
      if (chunk.memory.data() == nullptr) {
        TROUPE_TRY(auto memory, pinned_memory::make(group.where_, chunk_bytes));
        TROUPE_TRY(auto event, device_event::make(group.where_));
        chunk.memory = std::move(memory);
        chunk.fetched = std::move(event);
      } else if (auto fetched = group.wait_for(chunk.fetched, what.call, what.ends_at); !fetched) {
        return fetched;
      }
      std::memcpy(chunk.memory.data(), from, size_bytes);
      TROUPE_TRY(group.stream_.copy(to, chunk.memory.data(), size_bytes));
      return chunk.fetched.record(group.stream_);
    }

   private:
    struct chunk {
      pinned_memory memory;
      device_event fetched;
    };
    std::array<chunk, 2> chunks_;
    std::size_t next_ = 0;
  };

  communicator& host_;
  device_stream down_;
  std::array<lane, most_lanes> lanes_;
  /// Started on first use.
  std::unique_ptr<helper_threads> helpers_;
};

} // namespace

expected<std::unique_ptr<device_group>> make_staged_device_group(std::shared_ptr<device> where, communicator& group,
                                                                 hang_policy on_hang) {
  auto made = std::make_unique<staged_device_group>(std::move(where), group, std::move(on_hang));
  TROUPE_TRY(made->open_streams());
  return made;
}

} // namespace troupe::collectives
