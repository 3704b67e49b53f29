#pragma once

#include "library.hpp"

#include <troupe/train_context.hpp>

#include <exception>
#include <vector>

namespace troupe::lightgbm {

/// LightGBM's communication over the run's own collectives: while this exists, training in this thread is distributed
/// over the ranks. At most one per thread; every rank creates one. LightGBM's callbacks take no user data, so the
/// object is found through a thread-local pointer.
class exchange {
 public:
  /// Throws `exception` for errors of LightGBM.
  exchange(train_context& ctx, library_ptr functions);
  ~exchange();
  exchange(const exchange&) = delete;
  exchange& operator=(const exchange&) = delete;

  /// As `library::check`; if a collective has failed in between, rethrows its exception.
  void check(int result);

 private:
  static void reduce_scatter(char* input, transfer_size input_size, int type_size, const transfer_size* block_start,
                             const transfer_size* block_size, int blocks, char* output, transfer_size output_size,
                             const reduce_function& reduce);
  static void all_gather(char* input, transfer_size input_size, const transfer_size* block_start,
                         const transfer_size* block_size, int blocks, char* output, transfer_size output_size);

  /// Calls `call` with the current object. Keeps an exception, and passes another one through LightGBM.
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
