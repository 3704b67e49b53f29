#include "ptx_machine.hpp"

#include <algorithm>
#include <cstdlib>
#include <cxxabi.h>
#include <memory>
#include <tuple>

// See README.md.

namespace fake_cuda::ptx {

namespace {

/// Launches with more accesses than this are not checked for races in global memory.
constexpr std::size_t most_accesses = std::size_t{1} << 21;

/// `size_bytes` is a power of two.
void check_alignment(std::uint64_t at, std::size_t size_bytes) {
  if ((at & (size_bytes - 1)) != 0)
    throw violation{"accesses " + std::to_string(size_bytes) + " bytes that are not aligned"};
}

[[noreturn]] void throw_race(std::uint32_t thread, const char* where) {
  throw violation{"accesses the same memory as thread " + std::to_string(thread) +
                  ", and one of them writes: " + where};
}

} // namespace

void memory_watch::begin_block() {
  block_began_ = ++interval_;
}

const std::byte* memory_watch::parameter(std::uint64_t at, std::size_t size_bytes) const {
  check_alignment(at, size_bytes);
  if (at > parameters_.size() || size_bytes > parameters_.size() - at)
    throw violation{"reads beyond the parameters"};
  return parameters_.data() + at;
}

std::byte* memory_watch::shared(std::uint64_t at, std::size_t size_bytes, bool writes) {
  check_alignment(at, size_bytes);
  if (at > shared_.size() || size_bytes > shared_.size() - at)
    throw violation{"accesses shared memory beyond its end"};
  for (auto i = at; i < at + size_bytes; ++i) {
    auto& x = marks_[i];
    if (x.written == interval_ && x.writer != thread_)
      throw_race(x.writer, "shared memory between two barriers");
    if (writes) {
      if (x.read == interval_ && (x.reader != thread_ || x.other_reader))
        throw_race(x.reader != thread_ ? x.reader : *x.other_reader, "shared memory between two barriers");
      x.written = interval_;
      x.writer = thread_;
      continue;
    }
    if (x.written < block_began_)
      throw violation{"reads uninitialised shared memory"};
    if (x.read != interval_)
      x.other_reader.reset();
    else if (x.reader != thread_)
      x.other_reader = x.reader;
    x.read = interval_;
    x.reader = thread_;
  }
  return shared_.data() + at;
}

std::byte* memory_watch::global(std::uint64_t at, std::size_t size_bytes, bool writes) {
  check_alignment(at, size_bytes);
  const auto lies_in = [&](const address_range& x) { return at >= x.first && at < x.end && size_bytes <= x.end - at; };
  if (std::ranges::none_of(known_, lies_in)) {
    const auto found = find_(at);
    if (!found || !lies_in(*found))
      throw violation{(writes ? "writes " : "reads ") + std::to_string(size_bytes) +
                      " bytes outside of all allocations"};
    known_[next_known_++ % known_.size()] = *found;
  }
  if (accesses_.size() <= most_accesses)
    accesses_.push_back({at, thread_, static_cast<std::uint16_t>(size_bytes), writes});
  return reinterpret_cast<std::byte*>(at); // NOLINT(performance-no-int-to-ptr): a register holds it
}

void memory_watch::look_for_races() {
  if (accesses_.size() > most_accesses)
    return;
  const auto place = [](const access& x) { return std::tuple{x.first, x.size_bytes, x.writes}; };
  std::ranges::sort(accesses_, {}, [&](const access& x) { return std::tuple_cat(place(x), std::tuple{x.thread}); });
  // Two different readers are enough to detect a race with any third thread.
  std::size_t kept = 0;
  for (const auto& x : accesses_) {
    const auto is_third = kept >= 2 && place(accesses_[kept - 1]) == place(x) && place(accesses_[kept - 2]) == place(x);
    const auto is_same = kept >= 1 && place(accesses_[kept - 1]) == place(x) && accesses_[kept - 1].thread == x.thread;
    if (!is_third && !is_same)
      accesses_[kept++] = x;
  }
  accesses_.resize(kept);
  for (std::size_t i = 0; i < accesses_.size(); ++i) {
    const auto& x = accesses_[i];
    for (auto k = i + 1; k < accesses_.size() && accesses_[k].first < x.first + x.size_bytes; ++k) {
      const auto& y = accesses_[k];
      if (y.thread != x.thread && (x.writes || y.writes)) {
        thread_ = y.thread;
        throw_race(x.thread, "global memory");
      }
    }
  }
}

namespace {

/// The kernel's name in the source.
std::string name_of(const kernel& what) {
  int failed = 0;
  const auto name = std::unique_ptr<char, decltype(&std::free)>{
      abi::__cxa_demangle(what.name.c_str(), nullptr, nullptr, &failed), &std::free};
  return failed == 0 ? name.get() : what.name;
}

/// The position of a thread.
struct thread_state {
  std::size_t at = 0;
  bool is_done = false;
};

class launch {
 public:
  launch(const kernel& what, unsigned blocks, unsigned threads, std::span<const std::byte> parameters,
         const range_finder& find)
      : what_(what),
        blocks_(blocks),
        threads_(threads),
        memory_(what, parameters, find),
        // Threads without barriers run one after another and share the registers.
        registers_(what.has_barriers ? threads : 1, what.registers),
        states_(registers_.size()) {}

  void run() {
    for (unsigned block = 0; block < blocks_; ++block) {
      memory_.begin_block();
      if (what_.has_barriers)
        run_together(block);
      else
        for (unsigned thread = 0; thread < threads_; ++thread)
          run_one(block, thread, 0);
    }
    try {
      memory_.look_for_races();
    } catch (const violation& x) {
      throw violation{name_of(what_) + ": " + x.what()};
    }
  }

 private:
  void run_one(unsigned block, unsigned thread, std::size_t file) {
    auto& registers = registers_[file];
    auto& state = states_[file];
    if (!what_.has_barriers)
      state = {};
    if (state.at == 0) {
      registers[thread_x] = thread;
      registers[threads_x] = threads_;
      registers[block_x] = block;
      registers[blocks_x] = blocks_;
    }
    const auto number = block * threads_ + thread;
    memory_.set_thread(number);
    auto on = lane{registers.data(), memory_};
    const auto* code = what_.code.data();
    try {
      for (;;) {
        const auto& x = code[state.at];
        if (x.guard >= 0 && (registers[static_cast<std::size_t>(x.guard)] != 0) == x.guard_is_negated) {
          ++state.at;
          continue;
        }
        switch (x.then) {
        case flow::next:
          x.run(on, x);
          ++state.at;
          break;
        case flow::branch:
          state.at = x.target;
          break;
        case flow::barrier:
          ++state.at;
          return;
        case flow::end:
          state.is_done = true;
          return;
        }
      }
    } catch (const violation& x) {
      throw violation{name_of(what_) + ", line " + std::to_string(code[state.at].line) + ", thread " +
                      std::to_string(number) + ": " + x.what()};
    }
  }

  /// Runs all threads of a block from one barrier to the next.
  void run_together(unsigned block) {
    std::ranges::fill(states_, thread_state{});
    while (!states_[0].is_done) {
      for (unsigned thread = 0; thread < threads_; ++thread)
        run_one(block, thread, thread);
      for (const auto& x : states_)
        if (x.is_done != states_[0].is_done || (!x.is_done && x.at != states_[0].at))
          throw violation{name_of(what_) + ", before line " + std::to_string(what_.code[x.at].line) +
                          ": not all threads of a block reach the same barrier"};
      memory_.pass_barrier();
    }
  }

  const kernel& what_;
  const unsigned blocks_;
  /// The threads of a block.
  const unsigned threads_;
  memory_watch memory_;
  std::vector<std::vector<word>> registers_;
  std::vector<thread_state> states_;
};

} // namespace

void run(const kernel& what, unsigned blocks, unsigned threads, std::span<const std::byte> parameters,
         const range_finder& find) {
  if (what.most_threads != 0 && threads > what.most_threads)
    throw violation{name_of(what) + ": " + std::to_string(threads) + " threads in a block, but it was compiled for " +
                    std::to_string(what.most_threads)};
  launch{what, blocks, threads, parameters, find}.run();
}

} // namespace fake_cuda::ptx
