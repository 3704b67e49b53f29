#include <troupe/actors/decisions/refusal_log.hpp>

#include <fmt/format.h>

#include <utility>

namespace troupe::actors {

std::optional<std::string> refusal_log::add(std::string line, time_point now) {
  if (!minute_ || now - *minute_ >= std::chrono::minutes{1}) {
    minute_ = now;
    written_ = 0;
  }
  if (written_ == lines_per_minute) {
    ++dropped_;
    return std::nullopt;
  }
  ++written_;
  if (const auto dropped = std::exchange(dropped_, 0); dropped > 0)
    line = fmt::format("{} (and {} more refusals before)", line, dropped);
  return line;
}

} // namespace troupe::actors
