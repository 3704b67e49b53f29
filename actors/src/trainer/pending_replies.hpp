#pragma once

#include <troupe/actors/error_conversion.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <caf/typed_response_promise.hpp>

#include <map>
#include <utility>

namespace troupe::actors {

/// The workers whose requests of one kind are not answered yet. A later request of a worker replaces its earlier one.
template <class Reply>
class pending_replies {
 public:
  using promise = caf::typed_response_promise<Reply>;

  void add(worker_id worker, promise request) { waiting_.insert_or_assign(worker, std::move(request)); }

  /// Nothing happens if the worker does not wait.
  void answer(worker_id worker, const Reply& reply) {
    if (auto found = waiting_.extract(worker); !found.empty())
      found.mapped().deliver(reply);
  }
  void refuse(worker_id worker, const error& reason) {
    if (auto found = waiting_.extract(worker); !found.empty())
      found.mapped().deliver(to_caf(reason));
  }

  void answer_all(const Reply& reply) {
    for (auto& [worker, request] : std::exchange(waiting_, {}))
      request.deliver(reply);
  }
  void refuse_all(const error& reason) {
    for (auto& [worker, request] : std::exchange(waiting_, {}))
      request.deliver(to_caf(reason));
  }

 private:
  std::map<worker_id, promise> waiting_;
};

} // namespace troupe::actors
