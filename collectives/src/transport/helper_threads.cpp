#include "transport/helper_threads.hpp"

namespace troupe::collectives {

helper_threads::helper_threads(std::size_t count) {
  for (std::size_t lane = 1; lane <= count; ++lane)
    threads_.emplace_back([this, lane] { help(lane); });
}

helper_threads::~helper_threads() {
  {
    const std::lock_guard lock{mutex_};
    is_ending_ = true;
  }
  begun_.notify_all();
  for (auto& thread : threads_)
    thread.join();
}

void helper_threads::run(std::size_t lanes, const std::function<void(std::size_t)>& work) {
  if (lanes > 1) {
    {
      const std::lock_guard lock{mutex_};
      work_ = &work;
      lanes_ = lanes;
      busy_ = lanes - 1;
      ++calls_;
    }
    begun_.notify_all();
  }
  work(0);
  if (lanes > 1) {
    std::unique_lock lock{mutex_};
    done_.wait(lock, [this] { return busy_ == 0; });
  }
}

void helper_threads::help(std::size_t lane) {
  std::unique_lock lock{mutex_};
  for (std::uint64_t seen = 0;;) {
    begun_.wait(lock, [&] { return is_ending_ || (calls_ != seen && lane < lanes_); });
    if (is_ending_)
      return;
    seen = calls_;
    const auto& work = *work_;
    lock.unlock();
    work(lane);
    lock.lock();
    if (--busy_ == 0)
      done_.notify_one();
  }
}

} // namespace troupe::collectives
