#pragma once

#include "mirror/rclone_program.hpp"

#include <troupe/actors/mirror_storage.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// A mirror in what rclone reaches: object storage, SFTP and others. A checkpoint's manifest is copied last, after the
/// parts have been compared by size and hash, or byte by byte where the storage has no hashes.
class rclone_mirror : public actors::mirror_storage {
 public:
  /// `place` is for people, `remote` what rclone calls it.
  rclone_mirror(std::string place, std::string remote, rclone_program rclone)
      : place_(std::move(place)), remote_(std::move(remote)), rclone_(std::move(rclone)) {}

  [[nodiscard]] const std::string& place() const noexcept override { return place_; }
  [[nodiscard]] expected<actors::mirror_content> list(const std::stop_token& stop) override;
  [[nodiscard]] expected<void> upload(const std::filesystem::path& checkpoint, const std::stop_token& stop) override;
  [[nodiscard]] expected<void> remove(step_id step, const std::stop_token& stop) override;
  [[nodiscard]] expected<void> upload_files(const std::filesystem::path& root, const std::vector<std::string>& names,
                                            const std::stop_token& stop) override;
  [[nodiscard]] expected<void> fetch(step_id step, const std::filesystem::path& checkpoints_directory,
                                     const std::stop_token& stop) override;
  [[nodiscard]] expected<void> fetch_file(const std::string& name, const std::filesystem::path& to,
                                          const std::stop_token& stop) override;
  [[nodiscard]] expected<std::string> move_aside(const std::stop_token& stop) override;

 private:
  /// Files that a comparison, or a copy, is restricted to.
  enum class files : std::uint8_t { parts, manifest };

  [[nodiscard]] std::string at(const std::string& name) const;
  [[nodiscard]] std::string at(step_id step) const;
  /// Calls rclone, which must succeed. `doing` begins the message otherwise.
  [[nodiscard]] expected<rclone_outcome> call(std::string_view doing, std::vector<std::string> arguments,
                                              const std::stop_token& stop);
  /// Copies, then compares.
  [[nodiscard]] expected<void> copy_verified(const std::string& from, const std::string& to, files which,
                                             const std::stop_token& stop);
  /// Whether both have the same content.
  [[nodiscard]] expected<rclone_outcome> compare(const std::string& from, const std::string& to,
                                                 const std::vector<std::string>& filter, const std::stop_token& stop);
  [[nodiscard]] expected<void> hide(step_id step, const std::stop_token& stop);
  /// Whether the storage keeps hashes, which rclone then compares.
  [[nodiscard]] expected<bool> has_hashes(const std::stop_token& stop);

  std::string place_;
  std::string remote_;
  rclone_program rclone_;
  std::optional<bool> has_hashes_;
};

} // namespace troupe::runtime
