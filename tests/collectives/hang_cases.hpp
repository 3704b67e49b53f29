#pragma once

#include "fake_device.hpp"

#include <troupe/collectives/device_group.hpp>
#include <troupe/error.hpp>

#include <atomic>
#include <condition_variable>
#include <doctest/doctest.h>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

/// How a group handles a device that does not end its work.
namespace troupe::collectives::testing {

/// Records the requests to a hang policy, in order.
class hang_diary {
 public:
  void add(std::string step) {
    {
      const std::lock_guard lock{mutex_};
      steps_.push_back(std::move(step));
    }
    changed_.notify_all();
  }

  std::vector<std::string> steps() {
    const std::lock_guard lock{mutex_};
    return steps_;
  }

  void wait_for(std::size_t steps) {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return steps_.size() >= steps; });
  }

  /// A policy with short limits that does not end this process. `answer` answers exit requests.
  hang_policy policy(std::function<expected<hang_policy::permit>()> answer) {
    hang_policy result;
    result.abort_deadline = std::chrono::milliseconds{20};
    result.drain_deadline = std::chrono::milliseconds{20};
    result.request_exit = [this, answer = std::move(answer)] {
      add("leave");
      return answer();
    };
    result.withdraw_exit = [this] { add("withdraw"); };
    result.copy_out = [this]() -> expected<void> {
      add("copy");
      return {};
    };
    result.end_process = [this](const error& why) { add("end: " + why.message); };
    return result;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> steps_;
};

/// A reduction is started and aborted while the device is stopped: first for ever, as far as the group can tell, then
/// until the exit permit is requested. A group that starts on its own thread allocates device memory there; the abort
/// comes after that.
enum class begins_on { callers_thread, own_thread };

inline void check_hanging_device(const std::shared_ptr<device>& where, begins_on begins,
                                 const std::function<std::unique_ptr<device_group>(hang_policy)>& make) {
  const bucket_layout layout{{{dtype::f32, 40000}}};
  const auto give_up = [&](device_group& group, std::latch& goes_on, const std::function<void()>& meanwhile) {
    auto stream = value_or_throw(device_stream::make(where));
    auto ready = value_or_throw(device_event::make(where));
    auto bucket = value_or_throw(group.make_bucket(layout));
    auto memory = value_or_throw(group.allocate(layout.size_bytes()));
    value_or_throw(fake_device::run_on(stream.handle(), [&goes_on] { goes_on.wait(); }));
    value_or_throw(ready.record(stream));
    const auto free = value_or_throw(where->free_bytes());
    value_or_throw(group.all_reduce_fast(layout, memory.bytes(), *bucket, ready));
    while (begins == begins_on::own_thread && value_or_throw(where->free_bytes()) == free)
      std::this_thread::yield();
    group.abort({errc::aborted, "worker 1 is lost"});
    std::thread beside{meanwhile};
    CHECK(group.finish().error() == error{errc::aborted, "worker 1 is lost"});
    beside.join();
    // The process has not ended, so nothing may write to this memory when it is freed.
    value_or_throw(where->synchronize());
  };
  {
    hang_diary diary;
    std::latch goes_on{1};
    auto group = make(diary.policy([] { return hang_policy::permit{true}; }));
    // A real process would have ended by then.
    give_up(*group, goes_on, [&] {
      diary.wait_for(3);
      goes_on.count_down();
    });
    const auto steps = diary.steps();
    REQUIRE(steps.size() == 3);
    CHECK(steps[0] == "leave");
    CHECK(steps[1] == "copy");
    INFO(steps[2]);
    for (const char* part : {"end: ", "work on the device has not ended within 20 ms", "GPU 0 (fake, GPU-"})
      CHECK(steps[2].find(part) != std::string::npos);
  }
  {
    hang_diary diary;
    std::latch goes_on{1};
    // The requesting thread may be the last to use it.
    const auto is_over = std::make_shared<std::latch>(1);
    auto policy = diary.policy([is_over]() -> expected<hang_policy::permit> {
      is_over->wait();
      return fail(errc::aborted, "the question was withdrawn");
    });
    // As if this thread had not run until it was over: work that has ended is seen all the same.
    policy.drain_deadline = std::chrono::milliseconds{0};
    auto group = make(std::move(policy));
    give_up(*group, goes_on, [&] {
      diary.wait_for(1);
      goes_on.count_down();
      diary.wait_for(2);
      is_over->count_down();
    });
    CHECK(diary.steps() == std::vector<std::string>{"leave", "withdraw"});
  }
}

/// One rank of a group of two whose peer does not come: first it waits for its own device, then for the peer.
inline void check_who_is_waited_for(device_group& group) {
  const bucket_layout layout{{{dtype::f32, 40000}}};
  auto stream = value_or_throw(device_stream::make(group.where()));
  auto ready = value_or_throw(device_event::make(group.where()));
  auto bucket = value_or_throw(group.make_bucket(layout));
  auto memory = value_or_throw(group.allocate(layout.size_bytes()));
  std::atomic<bool> may_end = false;
  value_or_throw(fake_device::run_on(stream.handle(), [&] { may_end.wait(false); }));
  value_or_throw(ready.record(stream));
  CHECK_FALSE(group.awaits_own_gpu());
  value_or_throw(group.all_reduce_fast(layout, memory.bytes(), *bucket, ready));
  std::thread late{[&] {
    while (!group.awaits_own_gpu())
      std::this_thread::yield();
    CHECK(group.describe().find("in all_reduce_fast #1 (part 0), which waits for this worker's own GPU") !=
          std::string::npos);
    may_end = true;
    may_end.notify_all();
    while (group.awaits_own_gpu())
      std::this_thread::yield();
    group.abort({errc::aborted, "enough"});
  }};
  CHECK(group.finish().error() == error{errc::aborted, "enough"});
  late.join();
  CHECK(group.describe().ends_with("outside a reduction"));
}

} // namespace troupe::collectives::testing
