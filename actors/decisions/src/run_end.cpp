#include <troupe/actors/decisions/run_end.hpp>

#include <fmt/format.h>

namespace troupe::actors {

run_end run_end::of(const worker_finished& message) {
  return {message.step, message.state_sha256, message.stopped ? run_status::stopped : run_status::completed};
}

std::optional<error> run_end::compare(const worker_finished& message, const std::string& who) const {
  if (message.state_sha256 == state_sha256 && message.step == step)
    return std::nullopt;
  return error{errc::mismatch,
               fmt::format("{} ends at step {} with state {}, others at step {} with state {}: the training function "
                           "computes differently on different ranks (uninitialised memory, rank-dependent code, "
                           "untracked state)",
                           who, message.step, message.state_sha256, step, state_sha256)};
}

} // namespace troupe::actors
