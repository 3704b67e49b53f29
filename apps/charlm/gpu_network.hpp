#pragma once

#include <charlm/corpus.hpp>
#include <charlm/device_model.hpp>
#include <charlm/model.hpp>
#include <charlm/optimizer.hpp>

#include <troupe/collectives/device.hpp>
#include <troupe/device_span.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <memory>
#include <span>

namespace charlm {

/// The language model on a GPU with its parameters, Adam's moments and the text. All operations run on one stream in
/// the order of the calls. Calls are asynchronous unless documented otherwise, and throw `troupe::exception`.
class gpu_network {
 public:
  /// `batch` limits the samples between two calls of `begin_step`. Stream and text must outlive this object.
  gpu_network(std::shared_ptr<troupe::collectives::device> where, const troupe::collectives::device_stream& stream,
              const model_shape& shape, const corpus& text, std::size_t batch);
  /// Waits for the stream.
  ~gpu_network();
  gpu_network(const gpu_network&) = delete;
  gpu_network& operator=(const gpu_network&) = delete;

  /// Copies the parameters and clears the moments. Waits for both.
  void initialise(const model& from);

  /// With the layout of `model`.
  [[nodiscard]] troupe::device_span<float> parameters() const noexcept { return parameters_; }
  [[nodiscard]] troupe::device_span<float> moments() const noexcept { return moments_; }
  [[nodiscard]] troupe::device_span<float> squares() const noexcept { return squares_; }

  /// Call it when earlier operations are complete: the memory of their samples' positions is reused.
  void begin_step() noexcept { used_ = 0; }

  /// `device_model::forward_backward` over training samples, given by index.
  template <class Completed>
  void forward_backward(std::span<const std::uint64_t> samples, troupe::device_span<float> gradient,
                        troupe::device_span<double> loss, Completed completed) {
    const auto positions = take_positions(samples);
    model_.forward_backward(parameters_.address(), positions.address(), positions.size(), gradient.address(),
                            loss.address(), std::move(completed));
  }

  /// One update of Adam by the mean gradient.
  void update(troupe::step_id step, troupe::device_span<const float> mean_gradient, const adam_options& options = {});

  /// Returns the summed loss over held-out samples, given by index. Waits for the result.
  [[nodiscard]] double held_out_loss(std::span<const std::uint64_t> samples);

 private:
  [[nodiscard]] troupe::device_span<const std::uint64_t> take_positions(std::span<const std::uint64_t> samples);
  [[nodiscard]] troupe::device_span<const std::uint64_t> upload(std::size_t first, std::size_t count);

  std::shared_ptr<troupe::collectives::device> where_;
  const troupe::collectives::device_stream& stream_;
  const corpus& text_;
  std::size_t capacity_;
  troupe::collectives::device_memory state_;
  troupe::collectives::device_memory bytes_;
  troupe::collectives::device_memory workspace_;
  troupe::collectives::device_memory device_positions_;
  troupe::collectives::device_memory evaluated_;
  /// Where each sample of a step starts in the text.
  troupe::collectives::pinned_memory host_positions_;
  troupe::device_span<float> parameters_;
  troupe::device_span<float> moments_;
  troupe::device_span<float> squares_;
  std::unique_ptr<device_maths> maths_;
  device_model model_;
  std::size_t used_ = 0;
};

} // namespace charlm
