#pragma once

#include <troupe/data/data_set.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::data {

/// Columns of equal length, in memory or mapped.
class table final : public data_set {
 public:
  enum class identity : std::uint8_t { by_content, by_name };

  table(std::vector<column> columns, std::string fingerprint, identity identified);

  [[nodiscard]] std::uint64_t size() const noexcept override { return columns_.front().samples(); }
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return specs_; }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }
  [[nodiscard]] identity identified() const noexcept { return identified_; }
  [[nodiscard]] const std::vector<column>& contents() const noexcept { return columns_; }

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override;

 private:
  std::vector<column> columns_;
  std::vector<column_spec> specs_;
  std::string fingerprint_;
  identity identified_;
};

} // namespace troupe::data
