#include "decisions/rate_limiter.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <netinet/in.h>

namespace troupe::serving {

std::string source_of(std::string_view address) {
  // A local address of IPv6 names its link: fe80::1%eth0.
  auto text = std::string{address.substr(0, address.find('%'))};
  in6_addr parsed{};
  if (::inet_pton(AF_INET6, text.c_str(), &parsed) != 1)
    return text;
  std::array<char, INET6_ADDRSTRLEN> written{};
  // An IPv4 client of a socket for both.
  if (IN6_IS_ADDR_V4MAPPED(&parsed))
    return ::inet_ntop(AF_INET, parsed.s6_addr + 12, written.data(), written.size());
  std::fill(parsed.s6_addr + 8, parsed.s6_addr + 16, std::uint8_t{0});
  return ::inet_ntop(AF_INET6, &parsed, written.data(), written.size()) + std::string{"/64"};
}

rate_limiter::rate_limiter(double per_second, double burst, std::size_t max_sources)
    : per_second_(per_second), burst_(burst), max_sources_(max_sources) {}

std::optional<std::chrono::duration<double>> rate_limiter::refuse(std::string_view source, time_point now) {
  auto& own = bucket_of(source, now);
  const auto passed = std::chrono::duration<double>{now - own.filled}.count();
  own.tokens = std::min(burst_, own.tokens + std::max(passed, 0.0) * per_second_);
  own.filled = std::max(now, own.filled);
  if (own.tokens < 1)
    return std::chrono::duration<double>{(1 - own.tokens) / per_second_};
  own.tokens -= 1;
  return std::nullopt;
}

rate_limiter::bucket& rate_limiter::bucket_of(std::string_view source, time_point now) {
  if (auto found = by_source_.find(source); found != by_source_.end()) {
    buckets_.splice(buckets_.begin(), buckets_, found->second);
    return buckets_.front();
  }
  if (buckets_.size() == max_sources_) {
    by_source_.erase(buckets_.back().source);
    buckets_.pop_back();
  }
  buckets_.push_front({std::string{source}, burst_, now});
  by_source_.emplace(buckets_.front().source, buckets_.begin());
  return buckets_.front();
}

} // namespace troupe::serving
