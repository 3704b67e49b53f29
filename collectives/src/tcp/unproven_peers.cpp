#include <troupe/collectives/unproven_peers.hpp>

#include <algorithm>
#include <cstring>
#include <netinet/in.h>

namespace troupe::collectives {

peer_source::peer_source(const sockaddr* from) noexcept {
  if (from->sa_family == AF_INET6) {
    std::memcpy(host_.data(), &reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr, host_.size());
  } else if (from->sa_family == AF_INET) {
    host_[10] = host_[11] = 0xff;
    std::memcpy(&host_[12], &reinterpret_cast<const sockaddr_in*>(from)->sin_addr, sizeof(in_addr));
  }
}

peer_source peer_source::of(int socket) noexcept {
  sockaddr_storage from{};
  socklen_t size = sizeof(from);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&from), &size) != 0)
    return {};
  return peer_source{reinterpret_cast<const sockaddr*>(&from)};
}

unproven_peers::admission unproven_peers::admit(const peer_source& from, time_point now) {
  std::optional<ticket> crowded_out;
  if (const auto found = counts_.find(from); found != counts_.end() && found->second >= limits_.of_source)
    crowded_out = take_oldest_of(from);
  else if (waiting_.size() >= limits_.in_all)
    crowded_out = take_oldest();
  const auto added = ticket{next_++};
  waiting_.emplace(added, entry{from, now + limits_.time});
  ++counts_[from];
  return {added, crowded_out};
}

void unproven_peers::remove(ticket x) {
  const auto found = waiting_.find(x);
  if (found == waiting_.end())
    return;
  const auto count = counts_.find(found->second.from);
  if (--count->second == 0)
    counts_.erase(count);
  waiting_.erase(found);
}

std::optional<unproven_peers::ticket> unproven_peers::take_oldest() {
  std::size_t most = 0;
  for (const auto& [source, count] : counts_)
    most = std::max(most, count);
  const auto found = std::ranges::find_if(waiting_, [&](const auto& x) { return counts_.at(x.second.from) == most; });
  if (found == waiting_.end())
    return std::nullopt;
  const auto result = found->first;
  remove(result);
  return result;
}

std::optional<unproven_peers::ticket> unproven_peers::take_oldest_of(const peer_source& source) {
  const auto found = std::ranges::find_if(waiting_, [&](const auto& x) { return x.second.from == source; });
  if (found == waiting_.end())
    return std::nullopt;
  const auto result = found->first;
  remove(result);
  return result;
}

std::vector<unproven_peers::ticket> unproven_peers::take_late(time_point now) {
  std::vector<ticket> result;
  while (!waiting_.empty() && waiting_.begin()->second.deadline <= now) {
    result.push_back(waiting_.begin()->first);
    remove(result.back());
  }
  return result;
}

std::optional<unproven_peers::time_point> unproven_peers::next_deadline() const {
  if (waiting_.empty())
    return std::nullopt;
  return waiting_.begin()->second.deadline;
}

} // namespace troupe::collectives
