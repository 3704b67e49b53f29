#pragma once

#include "net/part_stream.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/part_writer.hpp>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

namespace troupe::runtime {

/// The driver's end of one worker's part stream: authenticates the worker and answers its requests. Used from one
/// thread.
class part_session {
 public:
  using lent_checkpoint = std::function<std::shared_ptr<const serialization::checkpoint>()>;

  /// `secret` and `checkpoints` are borrowed. `lent` returns the checkpoint that workers may read, or null.
  part_session(secure_stream stream, const part_stream_secret& secret, const std::filesystem::path& checkpoints,
               lent_checkpoint lent)
      : stream_(std::move(stream)), secret_(secret), checkpoints_(checkpoints), lent_(std::move(lent)) {}

  /// Returns when the connection ends, or after a request that failed.
  void run();

 private:
  [[nodiscard]] bool authenticate();
  [[nodiscard]] expected<void> answer(const nlohmann::json& request);
  [[nodiscard]] expected<void> answer_put(const nlohmann::json& head);
  [[nodiscard]] expected<serialization::part_report> receive(serialization::part_writer& writer);
  [[nodiscard]] expected<void> answer_get(const nlohmann::json& head);

  secure_stream stream_;
  const part_stream_secret& secret_;
  const std::filesystem::path& checkpoints_;
  lent_checkpoint lent_;
  std::vector<std::byte> buffer_;
};

} // namespace troupe::runtime
