#pragma once

#include "dispatcher.hpp"
#include "metrics.hpp"

#include <troupe/error.hpp>
#include <troupe/serving/served_model.hpp>

#include <cstdint>
#include <functional>
#include <future>
#include <thread>
#include <vector>

namespace troupe::serving {

/// The replicas of one model: each loads, predicts with and destroys its own copy in a thread of its own.
class replica_group {
 public:
  using make_model = std::function<expected<served_model>()>;

  /// Starts the threads, which load; one that cannot be started fails to load. `queue` and `counts` outlive it.
  /// `make` is called again for a replica that is lost.
  replica_group(std::uint32_t replicas, make_model make, std::uint64_t max_rows, dispatcher& queue, metrics& counts);
  /// Ends replicas that never served; those that do must have been let go by the dispatcher.
  ~replica_group();
  replica_group(const replica_group&) = delete;
  replica_group& operator=(const replica_group&) = delete;

  /// Waits until all have loaded their model and predicted a row of zeros with it. Returns inputs, outputs and library;
  /// fails as the first that failed. Once.
  [[nodiscard]] expected<model_face> await_loaded();

  /// Lets the replicas take batches of this model, which is the dispatcher's by now. Once.
  void start(model_face_ptr model);

 private:
  struct state {
    std::promise<expected<model_face>> loaded;
    std::thread thread;
  };

  void live(state& own) noexcept;
  [[nodiscard]] bool restore(served_model& model, const model_face& served);

  make_model make_;
  std::uint64_t max_rows_;
  dispatcher& queue_;
  metrics& counts_;
  /// The model to serve; null to give up.
  std::promise<model_face_ptr> go_;
  std::shared_future<model_face_ptr> may_go_{go_.get_future()};
  bool has_started_ = false;
  std::vector<state> replicas_;
};

/// Predicts with a model for the requests of a batch, and completes them. Of a batch that fails, each request is
/// predicted alone, so that it fails for its own rows only. Returns those that have no outcome because the replica is
/// lost (`predictor::is_usable`).
[[nodiscard]] std::vector<pending_ptr> predict_batch(served_model& model, const model_face_ptr& face,
                                                     const std::vector<pending_ptr>& batch, std::uint64_t max_rows,
                                                     metrics& counts) noexcept;

} // namespace troupe::serving
