#pragma once

#include "net/secure_stream.hpp"
#include "worker/snapshot_writer.hpp"

#include <troupe/actors/trainer.hpp>
#include <troupe/runtime/keys.hpp>
#include <troupe/tracked_state.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

/// How parts of checkpoints reach the driver, and their bytes the workers, without a file system that both see. Each
/// worker has a connection of its own, beside those of the actors: what moves there makes no message wait.
///
///     worker → driver   {run, worker, nonce}
///     driver → worker   {nonce, proof}                    knows the run's secret (join_handshake.hpp)
///     worker → driver   {proof}
///   then, as often as wanted, one of
///     worker → driver   {put: step, generation, attempt, rank, world_size, tensors}
///     driver → worker   {}                                the space is reserved
///     worker → driver   the part's bytes, then {chunks}   their checksums
///     driver → worker   {report}                          it is on the device
///   or
///     worker → driver   {get: file, offset, size}
///     driver → worker   {}, then the bytes
///
/// Wherever the driver cannot, it says {code, message} instead.
namespace troupe::runtime {

/// What both ends of a run's streams know.
struct part_stream_secret {
  run_id run;
  std::string secret;
  /// No keys: in plain.
  std::optional<tls_files> keys;
};

/// The driver's end: writes what comes into `checkpoints`, a thread for each connection, at a pace that the device
/// sets. Reads from the one checkpoint that is lent. Listens on loopback only if `loopback` says so.
[[nodiscard]] expected<std::unique_ptr<actors::part_receiver>>
open_part_receiver(part_stream_secret secret, std::filesystem::path checkpoints, bool loopback);

/// A worker's end. Used from one thread at a time; reconnects when a connection was lost or given up.
class part_stream : public std::enable_shared_from_this<part_stream> {
 public:
  part_stream(part_stream_secret secret, worker_id worker, endpoint where);

  /// Streams a part to the driver, and returns once it is on the device there. Fails with `errc::damaged` when other
  /// bytes have arrived than were sent, with what the driver says, and as `secure_stream` does.
  [[nodiscard]] expected<serialization::part_report> put(const staged_part& part, const std::stop_token& stop);

  /// The checkpoint that the driver lends, whose tensors are read over this stream and verified here.
  [[nodiscard]] expected<std::shared_ptr<const state_source>> open_source();

  /// Fills `target` from a file of that checkpoint.
  [[nodiscard]] expected<void> get(const std::string& file, std::uint64_t offset_bytes, std::span<std::byte> target);

 private:
  [[nodiscard]] expected<void> connect(const std::stop_token& stop);
  template <class Call>
  [[nodiscard]] auto attempt(const std::stop_token& stop, Call call) -> decltype(call());

  part_stream_secret secret_;
  worker_id worker_;
  endpoint where_;
  std::shared_ptr<const tls_context> context_;
  std::optional<secure_stream> stream_;
};

} // namespace troupe::runtime
