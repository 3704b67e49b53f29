#pragma once

#include "decisions/time_point.hpp"

#include <chrono>
#include <cstddef>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace troupe::serving {

/// What requests of an address are counted under: an IPv4 address itself, and the first 64 bits of an IPv6 one, since
/// one subscriber has all that begin with them (and one host all of a link's). Other texts are returned unchanged.
[[nodiscard]] std::string source_of(std::string_view address);

/// Token buckets, one for each source. Remembers a bounded number of sources; who has been silent the longest is
/// forgotten, and begins with a full bucket. Without clock and thread.
class rate_limiter {
 public:
  /// `per_second` above 0; `burst` at least 1.
  rate_limiter(double per_second, double burst, std::size_t max_sources = 10'000);

  /// Nothing if the request may pass, else the time after which one may.
  [[nodiscard]] std::optional<std::chrono::duration<double>> refuse(std::string_view source, time_point now);

  [[nodiscard]] std::size_t sources() const noexcept { return buckets_.size(); }

 private:
  struct bucket {
    std::string source;
    double tokens;
    time_point filled;
  };

  [[nodiscard]] bucket& bucket_of(std::string_view source, time_point now);

  double per_second_;
  double burst_;
  std::size_t max_sources_;
  /// The latest first.
  std::list<bucket> buckets_;
  std::unordered_map<std::string_view, std::list<bucket>::iterator> by_source_;
};

} // namespace troupe::serving
