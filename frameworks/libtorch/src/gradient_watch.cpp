#include "gradient_watch.hpp"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <fmt/format.h>
#include <utility>

namespace troupe::libtorch {

void gradient_watch::add(const at::Tensor& parameter, std::string name, std::size_t part) {
  auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  using torch::autograd::variable_list;
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [self = weak_from_this(), index = list_.size()](const variable_list& outputs, const variable_list&) {
        if (auto watch = self.lock())
          watch->note(index);
        return outputs;
      }));
  list_.push_back({std::move(name), part, std::move(accumulator)});
}

void gradient_watch::begin(basic_shard& current) {
  shard_ = &current;
  thread_ = std::this_thread::get_id();
  trouble_ = nullptr;
  for (auto& each : list_)
    each.written = false;
}

void gradient_watch::end() {
  shard_ = nullptr;
  if (auto trouble = std::exchange(trouble_, nullptr))
    std::rethrow_exception(trouble);
}

void gradient_watch::note(std::size_t index) {
  // Ignores backward passes outside of shards.
  if (shard_ == nullptr || trouble_ || (!is_on_gpu_ && std::this_thread::get_id() != thread_))
    return;
  auto& each = list_[index];
  try {
    if (std::exchange(each.written, true))
      throw exception{
          errc::user_error,
          fmt::format("the gradient of '{}' is written a second time in one shard, while its reduction may be "
                      "running: call backward() once per shard, or set replica_options.overlap to false",
                      each.name)};
    // What another stream has written is final once `backward` has returned.
    if (!stream_.is_current())
      return;
    const auto& part = layout_[each.part];
    shard_->mark_ready(part.first, part.padded);
  } catch (...) {
    trouble_ = std::current_exception();
  }
}

} // namespace troupe::libtorch
