#include "transport/mixed_transport.hpp"

#include <utility>

namespace troupe::collectives {

mixed_transport::mixed_transport(std::unique_ptr<transport> remote, std::unique_ptr<shm_transport> local,
                                 const std::vector<std::uint32_t>& local_ranks)
    : remote_(std::move(remote)), local_(std::move(local)), local_of_(remote_->world_size(), not_here) {
  for (std::uint32_t i = 0; i < local_ranks.size(); ++i)
    local_of_[local_ranks[i]] = i;
}

flight_record mixed_transport::record() const {
  auto result = local_->record();
  auto of_remote = remote_->record();
  result.transport = "shm+tcp";
  result.world_size = world_size();
  for (auto& peer : of_remote.peers)
    if (local_of_[peer.rank.value] == not_here)
      result.peers.push_back(std::move(peer));
  return result;
}

void mixed_transport::set_deadline(std::chrono::milliseconds deadline) noexcept {
  remote_->set_deadline(deadline);
  local_->set_deadline(deadline);
}

expected<void> mixed_transport::begin(const call_record& call) {
  posted_.clear();
  auto result = checked(local_->begin(call));
  return result ? checked(remote_->begin(call)) : result;
}

transport::ticket mixed_transport::send(std::uint32_t peer, std::uint64_t tag, const std::byte* data,
                                        std::size_t size_bytes) {
  const auto is_here = local_of_[peer] != not_here;
  auto* by = is_here ? static_cast<transport*>(local_.get()) : remote_.get();
  posted_.push_back({by, by->send(is_here ? local_of_[peer] : peer, tag, data, size_bytes)});
  return posted_.size() - 1;
}

transport::ticket mixed_transport::receive(std::uint32_t peer, std::uint64_t tag, std::byte* data,
                                           std::size_t size_bytes) {
  const auto is_here = local_of_[peer] != not_here;
  auto* by = is_here ? static_cast<transport*>(local_.get()) : remote_.get();
  posted_.push_back({by, by->receive(is_here ? local_of_[peer] : peer, tag, data, size_bytes)});
  return posted_.size() - 1;
}

expected<void> mixed_transport::wait(ticket message) {
  return checked(posted_[message].by->wait(posted_[message].message));
}

expected<void> mixed_transport::finish() {
  posted_.clear();
  TROUPE_TRY(checked(local_->finish()));
  return checked(remote_->finish());
}

void mixed_transport::abort(error reason) noexcept {
  local_->abort(reason);
  remote_->abort(std::move(reason));
}

expected<void> mixed_transport::checked(expected<void> result) {
  if (!result && result.error().code != errc::invalid_argument)
    abort(result.error());
  return result;
}

} // namespace troupe::collectives
