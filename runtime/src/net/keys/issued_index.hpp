#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/keys.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// The certificates that an authority has signed: a file with a line of JSON for each, so that replaced ones can be
/// revoked as well. Lines are added and marked, never removed.
class issued_index {
 public:
  /// Empty if there is no file yet. Fails with `errc::damaged` for a file in another format.
  [[nodiscard]] static expected<issued_index> read(std::filesystem::path path);

  /// Does nothing for a certificate that it has.
  void add(issued_certificate made);
  /// Marks all certificates of a host; returns how many it has.
  std::size_t revoke(std::string_view host);
  /// Replaces the file, durably.
  [[nodiscard]] expected<void> write() const;

  [[nodiscard]] std::vector<std::string> revoked_serials() const;
  [[nodiscard]] const std::vector<issued_certificate>& all() const noexcept { return all_; }

 private:
  explicit issued_index(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
  std::vector<issued_certificate> all_;
};

} // namespace troupe::runtime
