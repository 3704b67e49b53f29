#include "exchange.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace troupe::lightgbm {

thread_local exchange* exchange::current_ = nullptr;

exchange::exchange(train_context& ctx, library_ptr functions) : ctx_(ctx), library_(std::move(functions)) {
  if (ctx_.world_size() == 1)
    return;
  current_ = this;
  // LightGBM takes the functions as pointers to data, and converts them back.
  library_->check(library_->functions().LGBM_NetworkInitWithFunctions(
      static_cast<int>(ctx_.world_size()), static_cast<int>(ctx_.rank()), reinterpret_cast<void*>(&reduce_scatter),
      reinterpret_cast<void*>(&all_gather)));
}

exchange::~exchange() {
  if (current_ != this)
    return;
  (void)library_->functions().LGBM_NetworkFree();
  current_ = nullptr;
}

void exchange::check(int result) {
  if (result != 0 && failed_)
    std::rethrow_exception(std::exchange(failed_, nullptr));
  library_->check(result);
}

template <class Call>
void exchange::with_current(Call call) {
  try {
    call(*current_);
  } catch (...) {
    current_->failed_ = std::current_exception();
    throw std::runtime_error{"a collective operation failed"};
  }
}

void exchange::reduce_scatter(char* input, transfer_size, int type_size, const transfer_size* block_start,
                              const transfer_size* block_size, int blocks, char* output, transfer_size,
                              const reduce_function& reduce) {
  with_current([&](exchange& self) {
    // Each rank receives its block from all others, and adds them in the order of ranks: the same bits in every run.
    auto ranks = static_cast<std::size_t>(blocks);
    auto room = static_cast<std::size_t>(*std::max_element(block_size, block_size + blocks));
    self.sent_.assign(room * ranks, 0);
    self.received_.resize(room * ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      std::memcpy(self.sent_.data() + rank * room, input + block_start[rank],
                  static_cast<std::size_t>(block_size[rank]));
    self.ctx_.all_to_all(std::span<const std::uint8_t>{self.sent_}, std::span{self.received_});
    auto mine = block_size[self.ctx_.rank()];
    std::memcpy(output, self.received_.data(), static_cast<std::size_t>(mine));
    for (std::size_t rank = 1; rank < ranks; ++rank)
      reduce(reinterpret_cast<const char*>(self.received_.data() + rank * room), output, type_size, mine);
  });
}

void exchange::all_gather(char* input, transfer_size input_size, const transfer_size* block_start,
                          const transfer_size* block_size, int blocks, char* output, transfer_size) {
  with_current([&](exchange& self) {
    auto ranks = static_cast<std::size_t>(blocks);
    auto room = static_cast<std::size_t>(*std::max_element(block_size, block_size + blocks));
    self.sent_.assign(room, 0);
    self.received_.resize(room * ranks);
    std::memcpy(self.sent_.data(), input, static_cast<std::size_t>(input_size));
    self.ctx_.all_gather(std::span<const std::uint8_t>{self.sent_}, std::span{self.received_});
    for (std::size_t rank = 0; rank < ranks; ++rank)
      std::memcpy(output + block_start[rank], self.received_.data() + rank * room,
                  static_cast<std::size_t>(block_size[rank]));
  });
}

} // namespace troupe::lightgbm
