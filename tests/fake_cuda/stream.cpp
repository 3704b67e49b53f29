#include "stream.hpp"

#include "memory.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace fake_cuda {

std::shared_ptr<stream> stream::start(int device, std::uint32_t seed) {
  std::shared_ptr<stream> made{new stream{device, seed}};
  // Not joined, because a process may end while its device works or hangs.
  std::thread{[made] { made->run(); }}.detach();
  return made;
}

void stream::add(std::function<void()> work) {
  {
    const std::lock_guard lock{mutex_};
    waiting_.push_back(std::move(work));
  }
  changed_.notify_all();
  if (is_synchronous_)
    wait_until_idle();
}

void stream::wait_until_idle() {
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [this] { return waiting_.empty() && !is_busy_; });
}

void stream::end() {
  {
    const std::lock_guard lock{mutex_};
    is_ending_ = true;
  }
  changed_.notify_all();
}

void stream::run() {
  open_device_memory();
  std::unique_lock lock{mutex_};
  for (;;) {
    changed_.wait(lock, [this] { return !waiting_.empty() || is_ending_; });
    if (waiting_.empty())
      return;
    auto work = std::move(waiting_.front());
    waiting_.pop_front();
    is_busy_ = true;
    lock.unlock();
    if (pauses_ && random_() % 8 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds{random_() % 200});
    work();
    work = nullptr;
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

std::uint64_t event::add() {
  const std::lock_guard lock{mutex_};
  return ++recorded_;
}

std::uint64_t event::last() {
  const std::lock_guard lock{mutex_};
  return recorded_;
}

void event::complete(std::uint64_t record) {
  {
    const std::lock_guard lock{mutex_};
    completed_ = std::max(completed_, record);
  }
  changed_.notify_all();
}

bool event::is_complete(std::uint64_t record) {
  const std::lock_guard lock{mutex_};
  return completed_ >= record;
}

void event::wait(std::uint64_t record) {
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return completed_ >= record; });
}

} // namespace fake_cuda
