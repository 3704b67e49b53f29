#pragma once

#include "decisions/batch_queue.hpp"
#include "decisions/input_table.hpp"
#include "decisions/rows.hpp"
#include "metrics.hpp"

#include <troupe/error.hpp>
#include <troupe/serving/served_model.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
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

struct prediction {
  std::vector<float> outputs;
  model_face_ptr model;
};

/// Why a request has no prediction, for reasons that are not the model's.
enum class unanswered : std::uint8_t { queue_full, late, stopped };

/// An error is the predictor's.
using prediction_outcome = std::variant<prediction, error, unanswered>;

/// A request between the thread that answers it and the replica that predicts.
class pending_request {
 public:
  explicit pending_request(row_values rows) : rows_(std::move(rows)) {}

  [[nodiscard]] const row_values& rows() const noexcept { return rows_; }

  /// Its place in the queue, which the dispatcher keeps here: written before anyone else sees the request.
  void admit(batch_queue::ticket number, time_point deadline) noexcept {
    number_ = number;
    deadline_ = deadline;
  }
  [[nodiscard]] batch_queue::ticket number() const noexcept { return number_; }
  [[nodiscard]] time_point deadline() const noexcept { return deadline_; }

  /// The first outcome counts.
  void complete(prediction_outcome outcome) noexcept;

  /// `unanswered::late` if there is no outcome at the deadline. Once.
  [[nodiscard]] prediction_outcome wait_until(time_point deadline);

 private:
  row_values rows_;
  batch_queue::ticket number_ = 0;
  time_point deadline_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::optional<prediction_outcome> outcome_;
};

using pending_ptr = std::shared_ptr<pending_request>;

/// Joins requests to batches, and hands them to the replicas of the model that is served. Thread-safe.
class dispatcher {
 public:
  explicit dispatcher(const batch_config& config) : queue_(config) {}

  /// Waits for the prediction.
  [[nodiscard]] prediction_outcome predict(row_values rows, time_point deadline);

  /// Waits for the next batch of this model's replicas; empty once another model is served, and after `stop`.
  [[nodiscard]] std::vector<pending_ptr> take(std::uint64_t version);

  /// The replica that had this batch is lost. Its requests are predicted next, each in a batch of its own, so that one
  /// that ends whatever predicts it takes no others with it; those for which that has happened before fail.
  void put_back(const std::vector<pending_ptr>& batch);

  /// Waits; false as soon as another model is served, and after `stop`.
  [[nodiscard]] bool await_while_served(std::uint64_t version, std::chrono::milliseconds time);

  /// From now on this model's replicas predict; those of the one before finish the batches that they have.
  void serve(model_face_ptr model);

  /// The model that is served; null before the first.
  [[nodiscard]] model_face_ptr model() const;

  /// Fails all requests, those that are being predicted included, and lets the replicas go.
  void stop();

  [[nodiscard]] std::uint64_t queued_rows() const;
  [[nodiscard]] std::size_t queued_requests() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  batch_queue queue_;
  /// Those that somebody waits for: in the queue, or being predicted.
  std::map<batch_queue::ticket, pending_ptr> requests_;
  /// Those of them that have lost a replica.
  std::set<batch_queue::ticket> retried_;
  model_face_ptr model_;
  bool is_stopped_ = false;
};

} // namespace troupe::serving
