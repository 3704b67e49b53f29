#pragma once

#include "rabit_tracker.hpp"

#include <troupe/train_context.hpp>

#include <chrono>
#include <memory>

namespace troupe::xgboost {

/// The workers of a run as a group of XGBoost's own: what is trained in this thread meanwhile is trained together.
/// Every rank makes one and leaves it.
class rabit_group {
 public:
  /// Returns once all have found each other. A process that does not find the others within the deadline is ended, so
  /// that it can be replaced: XGBoost itself would wait for ever. Throws `exception` and `library_error`.
  rabit_group(train_context& ctx, std::chrono::seconds deadline);

  /// Closes the connections, so that nobody waits for this rank.
  ~rabit_group();
  rabit_group(const rabit_group&) = delete;
  rabit_group& operator=(const rabit_group&) = delete;

  /// The same at once. Throws nothing.
  void leave() noexcept;

 private:
  std::unique_ptr<rabit_tracker> tracker_;
  bool member_ = false;
};

} // namespace troupe::xgboost
