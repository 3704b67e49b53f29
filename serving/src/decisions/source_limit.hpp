#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace troupe::serving {

/// Counts the connections of each source, and lets none have more than it may. Without socket and thread.
class source_limit {
 public:
  explicit source_limit(std::size_t most) : most_(most) {}

  /// Counts a connection; false if the source has as many as it may.
  [[nodiscard]] bool enter(const std::string& source) {
    auto& count = counts_[source];
    if (count == most_)
      return false;
    ++count;
    return true;
  }

  /// One that entered has ended.
  void leave(const std::string& source) {
    if (const auto found = counts_.find(source); found != counts_.end() && --found->second == 0)
      counts_.erase(found);
  }

  [[nodiscard]] std::size_t sources() const noexcept { return counts_.size(); }

 private:
  std::size_t most_;
  std::map<std::string, std::size_t> counts_;
};

} // namespace troupe::serving
