#pragma once

#include "library.hpp"

#include <troupe/train_context.hpp>

#include <cstddef>
#include <exception>
#include <vector>

namespace troupe::lightgbm {

/// What LightGBM's workers tell each other, over the run's own collectives: while it lives, what is trained in this
/// thread is trained with the other ranks. One in a thread at a time; every rank makes one. LightGBM's functions have
/// no room for an object, so the thread knows it.
class exchange {
 public:
  /// Throws `exception` for what LightGBM refuses.
  exchange(train_context& ctx, library_ptr functions);
  ~exchange();
  exchange(const exchange&) = delete;
  exchange& operator=(const exchange&) = delete;

  /// As `library::check`; where a collective has failed meanwhile, throws what it threw.
  void check(int result);

 private:
  static void reduce_scatter(char* input, transfer_size input_size, int type_size, const transfer_size* block_start,
                             const transfer_size* block_size, int blocks, char* output, transfer_size output_size,
                             const reduce_function& reduce);
  static void all_gather(char* input, transfer_size input_size, const transfer_size* block_start,
                         const transfer_size* block_size, int blocks, char* output, transfer_size output_size);

  /// Calls are passed on to it; an exception is kept, and goes through LightGBM as one of its own.
  template <class Call>
  static void with_current(Call call);

  static thread_local exchange* current_;

  train_context& ctx_;
  library_ptr library_;
  std::exception_ptr failed_;
  std::vector<std::uint8_t> sent_;
  std::vector<std::uint8_t> received_;
};

} // namespace troupe::lightgbm
