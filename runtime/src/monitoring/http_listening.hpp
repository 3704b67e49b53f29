#pragma once

#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>

#include <httplib.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

/// How our HTTP servers listen, for those who include cpp-httplib anyway.
namespace troupe::runtime {

/// A few threads. The one that accepts connections waits while too many wait for these.
class bounded_queue : public httplib::TaskQueue {
 public:
  explicit bounded_queue(std::size_t threads);

  /// cpp-httplib 0.11 wants no answer, later versions whether the task was taken.
  using answer = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));

  answer enqueue(std::function<void()> task) override;
  void shutdown() override;

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

/// Unlike the library's own choice, which lets two processes have one port.
void set_listening_options(socket_t socket);

/// `code` is the system's.
[[nodiscard]] error cannot_listen(const endpoint& where, int code);

} // namespace troupe::runtime
