#pragma once

#include <troupe/collectives/device.hpp>

#include <host_mapping.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::collectives::testing {

/// The memory of a fake device is the host's.
template <class T>
std::span<T> on_host(device_span<T> values) {
  return {values.address(), values.size()};
}
template <class T>
std::span<T> on_host(std::span<T> values) {
  return values;
}

/// Stands in for a GPU: device memory is host memory, kernels are loops on the host, and each stream is a thread with
/// random pauses. Code that forgets to wait for an event, or reuses memory too early, usually fails with it. It tests
/// nothing about CUDA; tests labelled `gpu` do.
class fake_device final : public device {
 public:
  struct options {
    std::uint64_t total_bytes = std::uint64_t{1} << 32;
    /// The seed of the pauses between two pieces of work. 0: none.
    std::uint32_t seed = 0;
    std::string uuid = "GPU-fake";
  };

  fake_device() : fake_device(options{}) {}
  explicit fake_device(options x) : options_(std::move(x)) {
    info_ = {0, "fake", options_.uuid, options_.total_bytes, 0, 0};
  }

  const device_info& info() const noexcept override { return info_; }

  expected<std::uint64_t> free_bytes() override {
    const std::lock_guard lock{mutex_};
    return options_.total_bytes - allocated_bytes_;
  }

  expected<void> make_current() override { return {}; }

  expected<void> synchronize() override {
    std::vector<stream*> all;
    {
      const std::lock_guard lock{mutex_};
      for (const auto& [handle, x] : streams_)
        all.push_back(x.get());
    }
    for (auto* x : all)
      x->wait_until_idle();
    return {};
  }

  expected<std::byte*> allocate(std::uint64_t size_bytes) override {
    const std::lock_guard lock{mutex_};
    if (size_bytes > options_.total_bytes - allocated_bytes_)
      return fail(errc::unsatisfiable, to_string(info_) + " is out of memory: " + std::to_string(size_bytes) +
                                           " bytes were asked for and " +
                                           std::to_string(options_.total_bytes - allocated_bytes_) + " are free");
    auto* data = take(size_bytes);
    allocated_bytes_ += size_bytes;
    blocks_[data] = size_bytes;
    return data;
  }

  void release(std::byte* data) noexcept override {
    const std::lock_guard lock{mutex_};
    if (auto block = blocks_.extract(data); !block.empty())
      allocated_bytes_ -= block.mapped();
    std::free(data);
  }

  expected<std::byte*> allocate_pinned(std::uint64_t size_bytes) override { return take(size_bytes); }
  void release_pinned(std::byte* data) noexcept override { std::free(data); }

  expected<void> pin(const std::byte* data, std::uint64_t size_bytes, host_access access) override {
    const std::lock_guard lock{mutex_};
    if (access == host_access::read_only ? !pins_read_only : !troupe::testing::may_write(data, size_bytes)) {
      ++refused_pins;
      return fail(errc::device_error, to_string(info_) + ": cudaHostRegister: operation not supported");
    }
    pinned_[data] = size_bytes;
    return {};
  }

  void unpin(const std::byte* data) noexcept override {
    const std::lock_guard lock{mutex_};
    pinned_.erase(data);
  }

  expected<stream_handle> make_stream(stream_priority) override {
    const std::lock_guard lock{mutex_};
    auto made = std::make_unique<stream>(options_.seed == 0 ? 0 : options_.seed + ++made_streams_);
    auto* handle = made.get();
    streams_[handle] = std::move(made);
    return static_cast<stream_handle>(handle);
  }

  void destroy_stream(stream_handle handle) noexcept override {
    std::unique_ptr<stream> last;
    const std::lock_guard lock{mutex_};
    if (auto found = streams_.extract(handle); !found.empty())
      last = std::move(found.mapped());
  }

  expected<event_handle> make_event() override {
    return static_cast<event_handle>(new std::shared_ptr<event>{new event});
  }
  void destroy_event(event_handle handle) noexcept override { delete static_cast<std::shared_ptr<event>*>(handle); }

  expected<void> record(event_handle handle, stream_handle stream) override {
    auto x = as_event(handle);
    const auto number = x->add();
    return run_on(stream, [x, number] { x->complete(number); });
  }

  expected<void> wait_for(stream_handle stream, event_handle handle) override {
    auto x = as_event(handle);
    return run_on(stream, [x, number = x->last()] { x->wait(number); });
  }

  expected<bool> has_completed(event_handle handle) override {
    auto x = as_event(handle);
    return x->is_complete(x->last());
  }

  expected<void> synchronize_event(event_handle handle) override {
    auto x = as_event(handle);
    x->wait(x->last());
    return {};
  }

  expected<void> synchronize_stream(stream_handle handle) override {
    as_stream(handle).wait_until_idle();
    return {};
  }

  expected<void> copy(std::byte* to, const std::byte* from, std::uint64_t size_bytes, stream_handle stream) override {
    if (size_bytes == 0)
      return {};
    return run_on(stream, [=] { std::memcpy(to, from, size_bytes); });
  }

  expected<void> clear(std::byte* data, std::uint64_t size_bytes, stream_handle stream) override {
    return run_on(stream, [=] { std::fill_n(data, size_bytes, std::byte{0}); });
  }

  expected<void> widen(dtype type, std::byte* out, const std::byte* in, std::uint64_t elements,
                       stream_handle stream) override {
    return run_on(stream, [=] { collectives::widen(type, out, in, elements); });
  }

  expected<void> reduce(const device_reduction& what, stream_handle stream) override {
    std::vector<const std::byte*> operands(what.operands.begin(), what.operands.end());
    if (operands.size() != 1 && operands.size() != 2 && operands.size() != 4 && operands.size() != 8)
      return fail(errc::invalid_argument, "a pass accepts 1, 2, 4 or 8 operands");
    return run_on(stream, [what, operands] { reduce_now(what, operands); });
  }

  /// Enqueues arbitrary work on a stream.
  static expected<void> run_on(stream_handle stream, std::function<void()> work) {
    as_stream(stream).add(std::move(work));
    return {};
  }

  /// Whether read-only memory can be pinned; some hosts cannot.
  std::atomic<bool> pins_read_only = true;
  /// How often memory was not pinned for that reason.
  std::atomic<int> refused_pins = 0;

 private:
  class stream {
   public:
    explicit stream(std::uint32_t seed) : random_(seed), pauses_(seed != 0), thread_([this] { run(); }) {}
    ~stream() {
      {
        const std::lock_guard lock{mutex_};
        is_ending_ = true;
      }
      changed_.notify_all();
      thread_.join();
    }

    void add(std::function<void()> work) {
      {
        const std::lock_guard lock{mutex_};
        waiting_.push_back(std::move(work));
      }
      changed_.notify_all();
    }

    void wait_until_idle() {
      std::unique_lock lock{mutex_};
      changed_.wait(lock, [this] { return waiting_.empty() && !is_busy_; });
    }

   private:
    void run() {
      std::unique_lock lock{mutex_};
      for (;;) {
        changed_.wait(lock, [this] { return !waiting_.empty() || is_ending_; });
        if (waiting_.empty())
          return;
        auto work = std::move(waiting_.front());
        waiting_.pop_front();
        is_busy_ = true;
        lock.unlock();
        if (pauses_ && random_() % 4 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds{random_() % 200});
        work();
        lock.lock();
        is_busy_ = false;
        changed_.notify_all();
      }
    }

    std::mt19937 random_;
    const bool pauses_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> waiting_;
    bool is_busy_ = false;
    bool is_ending_ = false;
    std::thread thread_;
  };

  class event {
   public:
    std::uint64_t add() {
      const std::lock_guard lock{mutex_};
      return ++recorded_;
    }
    std::uint64_t last() {
      const std::lock_guard lock{mutex_};
      return recorded_;
    }
    void complete(std::uint64_t number) {
      {
        const std::lock_guard lock{mutex_};
        completed_ = std::max(completed_, number);
      }
      changed_.notify_all();
    }
    bool is_complete(std::uint64_t number) {
      const std::lock_guard lock{mutex_};
      return completed_ >= number;
    }
    void wait(std::uint64_t number) {
      std::unique_lock lock{mutex_};
      changed_.wait(lock, [&] { return completed_ >= number; });
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t recorded_ = 0;
    std::uint64_t completed_ = 0;
  };

  static stream& as_stream(stream_handle handle) { return *static_cast<stream*>(handle); }
  static std::shared_ptr<event> as_event(event_handle handle) { return *static_cast<std::shared_ptr<event>*>(handle); }

  /// Filled with nonzero bytes, as memory of a device is.
  static std::byte* take(std::uint64_t size_bytes) {
    auto* data = static_cast<std::byte*>(std::aligned_alloc(256, (size_bytes + 255) / 256 * 256));
    std::fill_n(data, size_bytes, std::byte{0xa5});
    return data;
  }

  static void reduce_now(const device_reduction& what, const std::vector<const std::byte*>& operands) {
    const auto sum = sum_type(what.type);
    const auto bytes = what.elements * size_of(sum);
    std::vector<std::vector<std::byte>> level;
    level.reserve(operands.size());
    for (const auto* operand : operands)
      level.emplace_back(operand, operand + bytes);
    while (level.size() > 1) {
      for (std::size_t i = 0; i < level.size() / 2; ++i) {
        combine(sum, what.op, level[2 * i].data(), level[2 * i].data(), level[2 * i + 1].data(), what.elements);
        level[i] = level[2 * i];
      }
      level.resize(level.size() / 2);
    }
    auto* result = level[0].data();
    if (!what.is_final) {
      std::memcpy(what.out, result, bytes);
      return;
    }
    divide(sum, result, what.elements, what.divisor);
    narrow(what.type, what.out, result, what.elements);
  }

  options options_;
  device_info info_;
  std::mutex mutex_;
  std::uint64_t allocated_bytes_ = 0;
  std::map<std::byte*, std::uint64_t> blocks_;
  std::map<const std::byte*, std::uint64_t> pinned_;
  std::map<stream_handle, std::unique_ptr<stream>> streams_;
  std::uint32_t made_streams_ = 0;
};

} // namespace troupe::collectives::testing
