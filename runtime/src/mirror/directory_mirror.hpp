#pragma once

#include <troupe/actors/mirror_storage.hpp>

namespace troupe::runtime {

/// A mirror in a directory. Copies are read back from the device before a rename makes them visible.
class directory_mirror : public actors::mirror_storage {
 public:
  /// `place` is made absolute.
  explicit directory_mirror(const std::filesystem::path& place);

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
  [[nodiscard]] std::filesystem::path root() const { return place_; }
  [[nodiscard]] std::filesystem::path checkpoints() const { return root() / "checkpoints"; }

  std::string place_;
};

} // namespace troupe::runtime
