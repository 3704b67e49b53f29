#pragma once

#include <troupe/actors/process_launcher.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/messages/type_ids.hpp>
#include <troupe/types.hpp>

#include <caf/typed_response_promise.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace troupe::actors {

/// A `start_workers` whose processes are being started: it is answered once the outcome of each is known.
class start_order {
 public:
  using promise = caf::typed_response_promise<workers_started>;

  explicit start_order(std::vector<launch_request> launches)
      : launches_(std::move(launches)), left_(launches_.size()) {}

  /// The driver may ask again after a lost connection: all promises get the same answer.
  void add(promise answer) { answers_.push_back(std::move(answer)); }
  /// Notes the outcome of one of its workers, and answers after the last.
  void note(const launch_outcome& outcome);

  [[nodiscard]] const launch_request& launch_of(worker_id worker) const;

 private:
  void answer();

  std::vector<promise> answers_;
  std::vector<launch_request> launches_;
  /// Process ids of the workers that execute the program.
  std::map<worker_id, std::uint32_t> pids_;
  /// Number of workers whose outcome is unknown.
  std::size_t left_;
  /// Why the first of them that failed did.
  error reason_;
};

} // namespace troupe::actors
