#include <charlm/gpu_network.hpp>

#include <charlm/gpu_maths.hpp>
#include <charlm/optimizer.hpp>

#include <algorithm>
#include <utility>

namespace charlm {

namespace {

using troupe::value_or_throw;
using troupe::collectives::device_memory;
using troupe::collectives::pinned_memory;

/// Held-out samples that are evaluated at a time.
constexpr std::size_t evaluation_samples = 2 * device_model::block_samples;

constexpr std::size_t rounded(std::size_t size_bytes) {
  return (size_bytes + 255) / 256 * 256;
}

} // namespace

gpu_network::gpu_network(std::shared_ptr<troupe::collectives::device> where,
                         const troupe::collectives::device_stream& stream, const model_shape& shape, const corpus& text,
                         std::size_t batch)
    : where_(std::move(where)),
      stream_(stream),
      text_(text),
      capacity_(std::max(batch, evaluation_samples)),
      state_(value_or_throw(device_memory::make(where_, 3 * rounded(shape.parameter_elements() * sizeof(float))))),
      bytes_(value_or_throw(device_memory::make(where_, text.bytes().size()))),
      workspace_(value_or_throw(device_memory::make(where_, device_model::workspace_bytes(shape, capacity_)))),
      device_positions_(value_or_throw(device_memory::make(where_, capacity_ * sizeof(std::uint64_t)))),
      evaluated_(value_or_throw(device_memory::make(where_, sizeof(double)))),
      host_positions_(value_or_throw(pinned_memory::make(where_, capacity_ * sizeof(std::uint64_t)))),
      maths_(value_or_throw(open_gpu_maths(where_, stream.handle()))),
      model_(shape, *maths_, workspace_.address(), capacity_) {
  auto part = [&](std::size_t index) {
    const auto offset = index * rounded(shape.parameter_elements() * sizeof(float));
    return state_.bytes().subspan(offset).as<float>().first(shape.parameter_elements());
  };
  parameters_ = part(0);
  moments_ = part(1);
  squares_ = part(2);
  model_.set_corpus(bytes_.bytes().as<const std::uint8_t>().address());
  auto host = std::as_bytes(text.bytes());
  value_or_throw(where_->copy(bytes_.address(), host.data(), host.size(), stream_.handle()));
  value_or_throw(where_->clear(state_.address(), state_.size_bytes(), stream_.handle()));
  value_or_throw(where_->synchronize_stream(stream_.handle()));
}

gpu_network::~gpu_network() {
  static_cast<void>(where_->synchronize_stream(stream_.handle()));
}

void gpu_network::initialise(const model& from) {
  auto host = std::as_bytes(from.parameters());
  value_or_throw(where_->clear(state_.address(), state_.size_bytes(), stream_.handle()));
  value_or_throw(where_->copy(parameters_.as<std::byte>().address(), host.data(), host.size(), stream_.handle()));
  value_or_throw(where_->synchronize_stream(stream_.handle()));
}

troupe::device_span<const std::uint64_t> gpu_network::upload(std::size_t first, std::size_t count) {
  const auto target = device_positions_.bytes().as<std::uint64_t>().subspan(first, count);
  value_or_throw(where_->copy(target.as<std::byte>().address(), host_positions_.data() + first * sizeof(std::uint64_t),
                              target.size_bytes(), stream_.handle()));
  return target;
}

troupe::device_span<const std::uint64_t> gpu_network::take_positions(std::span<const std::uint64_t> samples) {
  if (samples.size() > capacity_ - used_)
    throw troupe::exception{troupe::errc::internal, "charlm: the step has more samples than its batch"};
  auto* host = reinterpret_cast<std::uint64_t*>(host_positions_.data()) + used_;
  for (auto sample : samples)
    *host++ = text_.training_position(sample);
  return upload(std::exchange(used_, used_ + samples.size()), samples.size());
}

void gpu_network::update(troupe::step_id step, troupe::device_span<const float> mean_gradient,
                         const adam_options& options) {
  maths_->adam(factors_of(step, options), parameters_.address(), moments_.address(), squares_.address(),
               mean_gradient.address(), parameters_.size());
}

double gpu_network::held_out_loss(std::span<const std::uint64_t> samples) {
  auto* sum = evaluated_.bytes().as<double>().address();
  auto* host = reinterpret_cast<std::uint64_t*>(host_positions_.data());
  value_or_throw(where_->clear(evaluated_.address(), sizeof(double), stream_.handle()));
  while (!samples.empty()) {
    auto part = samples.first(std::min(samples.size(), evaluation_samples));
    samples = samples.subspan(part.size());
    // Wait until the previous positions have been read.
    value_or_throw(where_->synchronize_stream(stream_.handle()));
    std::ranges::transform(part, host, [this](std::uint64_t i) { return text_.held_out_position(i); });
    model_.loss(parameters_.address(), upload(0, part.size()).address(), part.size(), sum);
  }
  double result = 0.0;
  value_or_throw(
      where_->copy(reinterpret_cast<std::byte*>(&result), evaluated_.address(), sizeof(result), stream_.handle()));
  value_or_throw(where_->synchronize_stream(stream_.handle()));
  return result;
}

} // namespace charlm
