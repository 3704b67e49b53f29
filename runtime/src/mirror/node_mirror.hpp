#pragma once

#include "net/members/ticket_client.hpp"

#include <troupe/actors/mirror_storage.hpp>
#include <troupe/mirror_place.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// A mirror at a node, over the network (see shelf_service.hpp). The node verifies a checkpoint, reading it back from
/// its device, before readers find it.
class node_mirror : public actors::mirror_storage {
 public:
  /// `where` has a path. `how` is as for other questions to nodes.
  node_mirror(node_place where, const member_access& how);

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
  using sink = std::function<expected<void>(std::uint64_t offset, std::string_view bytes)>;

  /// An error names the place.
  [[nodiscard]] expected<nlohmann::json> ask(const char* what, nlohmann::json with, const std::stop_token& stop);
  /// Sends a file in pieces, each as a question with "offset" and "data" besides `with`.
  [[nodiscard]] expected<void> send(const std::filesystem::path& file, const char* what, const nlohmann::json& with,
                                    const std::stop_token& stop);
  /// Passes on a file of the place until its end.
  [[nodiscard]] expected<void> receive(const std::string& name, const sink& to, const std::stop_token& stop);
  [[nodiscard]] expected<void> fetch_parts(step_id step, const std::filesystem::path& into,
                                           const std::stop_token& stop);

  node_place where_;
  std::string place_;
  ticket_client node_;
};

} // namespace troupe::runtime
