#pragma once

#include <troupe/actors/error_conversion.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <caf/typed_response_promise.hpp>

#include <map>
#include <optional>
#include <utility>

namespace troupe::actors {

/// The last request of one kind from each worker, and its answer once there is one: a request repeated over another
/// connection gets the same answer.
template <class Request, class Reply>
class pending_replies {
 public:
  using promise = caf::typed_response_promise<Reply>;

  /// Returns whether the request is new. Otherwise it has its answer, or waits for it.
  [[nodiscard]] bool add(worker_id worker, const Request& request, promise where) {
    auto known = last_.find(worker);
    if (known == last_.end() || known->second.request != request) {
      last_.insert_or_assign(worker, entry{request, std::move(where), std::nullopt});
      return true;
    }
    known->second.where = std::move(where);
    if (known->second.answer)
      deliver(known->second);
    return false;
  }

  /// No effect if the worker does not wait.
  void answer(worker_id worker, const Reply& reply) { complete(worker, reply); }
  void refuse(worker_id worker, const error& reason) { complete(worker, fail(reason)); }

  void refuse_all(const error& reason) {
    for (auto& [worker, each] : last_)
      complete(worker, fail(reason));
  }
  /// Answers all workers that ask in this generation.
  void answer_all_of(generation_id generation, const expected<Reply>& reply) {
    for (auto& [worker, each] : last_)
      if (each.request.generation == generation)
        complete(worker, reply);
  }

  /// The worker will not repeat its request.
  void forget(worker_id worker) { last_.erase(worker); }

 private:
  struct entry {
    Request request;
    promise where;
    std::optional<expected<Reply>> answer;
  };

  static void deliver(entry& which) {
    if (*which.answer)
      which.where.deliver(**which.answer);
    else
      which.where.deliver(to_caf(which.answer->error()));
  }

  void complete(worker_id worker, expected<Reply> with) {
    auto known = last_.find(worker);
    if (known == last_.end() || known->second.answer)
      return;
    known->second.answer = std::move(with);
    deliver(known->second);
  }

  std::map<worker_id, entry> last_;
};

} // namespace troupe::actors
