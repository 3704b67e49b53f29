#pragma once

#include "decisions/batch_queue.hpp"
#include "decisions/input_table.hpp"
#include "decisions/rows.hpp"
#include "metrics.hpp"

#include <troupe/error.hpp>
#include <troupe/serving/served_model.hpp>

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troupe::serving {

/// What clients see of a model: the same for all its replicas.
struct model_face {
  model_label label;
  /// Counts the models of this server, from 1.
  std::uint64_t version = 0;
  std::filesystem::path checkpoint;
  std::string library;
  std::shared_ptr<const input_table> inputs;
  std::vector<std::string> outputs;
};

using model_face_ptr = std::shared_ptr<const model_face>;

/// A request between the thread that answers it and the replica that predicts.
class pending_request {
 public:
  explicit pending_request(row_values rows) : rows_(std::move(rows)) {}

  struct result {
    std::vector<float> outputs;
    model_face_ptr model;
  };

  [[nodiscard]] const row_values& rows() const noexcept { return rows_; }

  void complete(expected<result> outcome);

  /// Nothing if there is no outcome at the deadline.
  [[nodiscard]] std::optional<expected<result>> wait_until(time_point deadline);

 private:
  row_values rows_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::optional<expected<result>> outcome_;
};

using pending_ptr = std::shared_ptr<pending_request>;

/// Joins requests to batches, and hands them to the replicas of the model that is served. Thread-safe.
class dispatcher {
 public:
  explicit dispatcher(const batch_config& config) : queue_(config) {}

  /// Waits for the prediction. Fails with `errc::unsatisfiable` if the queue is full, `errc::timed_out`,
  /// `errc::stopped` and as the predictor does.
  [[nodiscard]] expected<pending_request::result> predict(row_values rows, time_point deadline);

  /// Waits for the next batch of this model's replicas; empty once another model is served, and after `stop`.
  [[nodiscard]] std::vector<pending_ptr> take(std::uint64_t version);

  /// From now on this model's replicas predict; those of the one before finish the batches that they have.
  void serve(model_face_ptr model);

  /// The model that is served; null before the first.
  [[nodiscard]] model_face_ptr model() const;

  /// Fails all requests that wait or come later, and lets the replicas go.
  void stop();

  [[nodiscard]] std::uint64_t queued_rows() const;
  [[nodiscard]] std::size_t queued_requests() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  batch_queue queue_;
  std::map<batch_queue::ticket, pending_ptr> waiting_;
  model_face_ptr model_;
  bool is_stopped_ = false;
};

} // namespace troupe::serving
