#pragma once

#include "net/parts/part_stream.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/part_writer.hpp>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace troupe::runtime {

/// The driver's end of the part stream of an authenticated worker (`part_greeting`). Used from one thread at a time.
class part_session {
 public:
  using lent_checkpoint = std::function<std::shared_ptr<const serialization::checkpoint>()>;

  /// `run` and `checkpoints` are borrowed. `lent` returns the checkpoint that workers may read, or null.
  part_session(secure_stream stream, const run_id& run, const std::filesystem::path& checkpoints, lent_checkpoint lent)
      : stream_(std::move(stream)), run_(run), checkpoints_(checkpoints), lent_(std::move(lent)) {}

  /// Answers one request, with `buffer` for its data. False if the connection has ended, or the request has failed, in
  /// which case the connection must end.
  [[nodiscard]] bool answer_next(std::vector<std::byte>& buffer);

  /// There is a request when this is readable, or when it `has_unread`.
  [[nodiscard]] int fd() const noexcept { return stream_.fd(); }
  [[nodiscard]] bool has_unread() const noexcept { return stream_.has_unread(); }

 private:
  using piece_buffer = std::vector<std::byte>;

  [[nodiscard]] expected<void> answer(const nlohmann::json& request, piece_buffer& buffer);
  [[nodiscard]] expected<void> answer_put(const nlohmann::json& head, piece_buffer& buffer);
  [[nodiscard]] expected<serialization::part_report> receive(serialization::part_writer& writer, piece_buffer& buffer);
  [[nodiscard]] expected<void> answer_get(const nlohmann::json& head, piece_buffer& buffer);

  secure_stream stream_;
  const run_id& run_;
  const std::filesystem::path& checkpoints_;
  lent_checkpoint lent_;
};

} // namespace troupe::runtime
