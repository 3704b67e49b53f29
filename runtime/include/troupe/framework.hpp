#pragma once

#include <map>
#include <string>

namespace troupe {

class train_context;

/// Prepares a library in each worker process around a training function: threads, seeds, devices. A function names its
/// frameworks:
///
///     auto train = troupe::function{"train", body, {std::make_shared<my_framework>()}};
///
/// The object is created in every process of the program, like the list of functions. An exception of a member is
/// treated like one of the training function; its text should say what to do.
class framework {
 public:
  framework() = default;
  framework(const framework&) = delete;
  framework& operator=(const framework&) = delete;
  virtual ~framework() = default;

  /// For messages: "libtorch".
  [[nodiscard]] virtual std::string name() const = 0;

  /// Once in each worker process of the program, whichever of its functions will be called, before the process joins a
  /// run. Not in the training thread.
  virtual void on_start() {}

  /// All that determines the bits of the framework's arithmetic: versions, kernels, threads. Called after `on_start`.
  /// Becomes part of the numerics fingerprint, as "NAME.KEY", by which workers are compared before they join.
  [[nodiscard]] virtual std::map<std::string, std::string> numerics() const { return {}; }

  /// The same of its arithmetic on a GPU, beyond what the runtime finds itself (the GPU's model, the driver's CUDA, the
  /// toolkit). Asked in workers that have been given one.
  [[nodiscard]] virtual std::map<std::string, std::string> gpu_numerics() const { return {}; }

  /// In the training thread, right before the training function is called.
  virtual void on_training_start(train_context& ctx);

  /// In the training thread, when the training function has returned or thrown; not where the process is killed. For
  /// each framework whose `on_training_start` has returned, the last one first.
  virtual void on_shutdown() noexcept {}
};

} // namespace troupe
