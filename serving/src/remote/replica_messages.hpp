#pragma once

#include <troupe/data/batch.hpp>
#include <troupe/data/column.hpp>
#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>
#include <troupe/runtime/secure_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

/// What a server and the process of a replica say to each other over a connection, which is for one model. The process
/// connects; the server sends a checkpoint or names it, and the process answers with what it has loaded; then the
/// server sends batches, and the process answers each. Both ends are of one program, so that numbers are sent as they
/// are in memory. All functions block, and fail with `errc::worker_lost` once the other end is gone.
namespace troupe::serving {

/// What the process of a replica is told by the run's options.
struct replica_settings {
  endpoint server;
  /// What both ends make the key of their sessions of (`key_of`).
  std::string secret;
  /// Of the program.
  nlohmann::json options;
};

[[nodiscard]] nlohmann::json to_json(const replica_settings& x);
/// Fails with `errc::invalid_argument`.
[[nodiscard]] expected<replica_settings> parse_replica_settings(const nlohmann::json& x);

/// A model as the server needs to know it.
struct remote_face {
  std::string library;
  std::vector<data::column_spec> inputs;
  std::vector<std::string> outputs;

  bool operator==(const remote_face&) const = default;
};

[[nodiscard]] nlohmann::json to_json(const remote_face& x);
/// Fails with `errc::invalid_argument`.
[[nodiscard]] expected<remote_face> parse_remote_face(const nlohmann::json& x);

/// How a checkpoint comes to a process.
enum class checkpoint_route : std::uint8_t {
  /// The process can read the path.
  path,
  /// Its files are sent.
  files,
};

/// Sends a checkpoint. Also fails with `errc::io_error` if a file cannot be read: the connection is of no use then.
[[nodiscard]] expected<void> send_checkpoint(runtime::secure_stream& to, const std::filesystem::path& checkpoint,
                                             checkpoint_route route);

/// Waits for a checkpoint, and calls `begun` once the server wants a model of this connection. Returns its directory:
/// if files are sent, the one that `make_directory` returns. Also fails as that does, and with `errc::io_error` if a
/// file cannot be written.
[[nodiscard]] expected<std::filesystem::path>
receive_checkpoint(runtime::secure_stream& from, const std::function<void()>& begun,
                   const std::function<expected<std::filesystem::path>()>& make_directory);

/// The process's answer to a checkpoint.
[[nodiscard]] expected<void> send_loaded(runtime::secure_stream& to, const expected<remote_face>& outcome);
/// Also fails with the reason for which the model could not be loaded, which is never `errc::worker_lost`.
[[nodiscard]] expected<remote_face> receive_loaded(runtime::secure_stream& from);

[[nodiscard]] expected<void> send_rows(runtime::secure_stream& to, const data::batch& rows);
/// Into `rows`, with these columns.
[[nodiscard]] expected<void> receive_rows(runtime::secure_stream& from, std::span<const data::column_spec> columns,
                                          data::batch& rows);

/// The answer to a batch: the predictions, or why there are none.
[[nodiscard]] expected<void> send_outputs(runtime::secure_stream& to, const expected<void>& outcome,
                                          std::span<const float> outputs);
/// As `receive_loaded`.
[[nodiscard]] expected<void> receive_outputs(runtime::secure_stream& from, std::span<float> outputs);

} // namespace troupe::serving
