#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <ucontext.h>
#include <vector>

namespace fake_cuda {

thread_local dim3 thread_index;
thread_local dim3 block_index;
thread_local dim3 block_size;
thread_local dim3 grid_size;

namespace {

/// The threads of a block as coroutines: each runs to its next barrier, then the next one runs. `ucontext` creates
/// their stacks. Afterwards the compiler's own jumps switch between them, which takes some nanoseconds. The stacks are
/// kept for the next block.
class block_of_coroutines {
 public:
  explicit block_of_coroutines(unsigned threads) : lanes_(threads) {
    for (auto& lane : lanes_)
      lane.stack = std::make_unique<std::byte[]>(stack_bytes);
  }

  /// Whether any thread has reached a barrier.
  bool run(const std::function<void()>& thread) {
    thread_ = &thread;
    running = this;
    has_synchronized_ = false;
    for (auto& lane : lanes_)
      lane.is_done = false;
    for (auto left = lanes_.size(); left > 0;)
      for (lane_ = 0; lane_ < lanes_.size(); ++lane_) {
        if (lanes_[lane_].is_done)
          continue;
        thread_index = {static_cast<unsigned>(lane_), 0, 0};
        enter_lane();
        if (lanes_[lane_].is_done)
          --left;
      }
    running = nullptr;
    return has_synchronized_;
  }

  static void synchronize() {
    if (running == nullptr) {
      std::fprintf(stderr, "fake CUDA: a kernel has a barrier that its first block did not reach\n");
      std::abort();
    }
    running->has_synchronized_ = true;
    running->leave_lane();
  }

 private:
  /// The state of the compiler's jumps: frame, stack and address.
  using place = void* [5];

  struct lane {
    std::unique_ptr<std::byte[]> stack;
    ucontext_t start;
    place here;
    bool has_begun = false;
    bool is_done = false;
  };

  static constexpr std::size_t stack_bytes = 32 << 10;

  /// Returns when the lane's thread reaches a barrier or ends.
  [[gnu::noipa]] void enter_lane() {
    if (__builtin_setjmp(home_) == 0)
      go_on();
    asm volatile("" ::: "memory"); // No tail call: this frame must exist when another lane jumps into it.
  }

  [[gnu::noipa]] void leave_lane() {
    if (__builtin_setjmp(lanes_[lane_].here) == 0)
      go_home();
    asm volatile("" ::: "memory");
  }

  [[gnu::noipa]] void go_home() { __builtin_longjmp(home_, 1); }

  [[gnu::noipa]] void go_on() {
    auto& lane = lanes_[lane_];
    if (lane.has_begun)
      __builtin_longjmp(lane.here, 1);
    lane.has_begun = true;
    ::getcontext(&lane.start);
    lane.start.uc_stack.ss_sp = lane.stack.get();
    lane.start.uc_stack.ss_size = stack_bytes;
    lane.start.uc_link = nullptr;
    ::makecontext(&lane.start, &live, 0);
    ::setcontext(&lane.start);
  }

  /// Runs in each lane: one thread of each block after another.
  static void live() {
    for (;;) {
      (*running->thread_)();
      running->lanes_[running->lane_].is_done = true;
      running->leave_lane();
    }
  }

  static thread_local block_of_coroutines* running;

  std::vector<lane> lanes_;
  std::size_t lane_ = 0;
  const std::function<void()>* thread_ = nullptr;
  bool has_synchronized_ = false;
  place home_{};
};

thread_local block_of_coroutines* block_of_coroutines::running = nullptr;

/// Kernels whose threads have no barriers.
class plain_kernels {
 public:
  bool has(void (*kernel)()) {
    const std::lock_guard lock{mutex_};
    return known_.contains(kernel);
  }
  void add(void (*kernel)()) {
    const std::lock_guard lock{mutex_};
    known_.insert(kernel);
  }

 private:
  std::mutex mutex_;
  std::set<void (*)()> known_;
};

void run_in_a_loop(const std::function<void()>& thread) {
  for (thread_index = {0, 0, 0}; thread_index.x < block_size.x; ++thread_index.x)
    thread();
}

} // namespace

void run_kernel(void (*kernel)(), dim3 blocks, dim3 threads, const std::function<void()>& thread) {
  static auto& plain = *new plain_kernels;
  grid_size = blocks;
  block_size = threads;
  auto is_plain = plain.has(kernel);
  thread_local std::map<unsigned, block_of_coroutines> coroutines;
  for (block_index = {0, 0, 0}; block_index.x < blocks.x; ++block_index.x) {
    if (is_plain) {
      run_in_a_loop(thread);
    } else if (!coroutines.try_emplace(threads.x, threads.x).first->second.run(thread)) {
      is_plain = true;
      plain.add(kernel);
    }
  }
}

void synchronize_threads() {
  block_of_coroutines::synchronize();
}

} // namespace fake_cuda
