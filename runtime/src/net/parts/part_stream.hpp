#pragma once

#include "worker/state/snapshot_writer.hpp"

#include <troupe/actors/trainer.hpp>
#include <troupe/port_range.hpp>
#include <troupe/runtime/secure_stream.hpp>
#include <troupe/tracked_state.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

/// Transfers parts of checkpoints between workers and driver where they share no file system. Each worker has a
/// connection for it, separate from those of the actors, so that bulk data delays no message.
///
///     worker → driver   {run, worker, nonce}
///     driver → worker   {nonce, proof}                    proves that it knows the run's secret (join_handshake.hpp)
///     worker → driver   {proof}                           both include the TLS session's binding
///   then, any number of times, one of
///     worker → driver   {put: step, generation, attempt, rank, world_size, tensors}
///     driver → worker   {}                                the space is reserved
///     worker → driver   the part's bytes, then {chunks}   their checksums
///     driver → worker   {report}                          the part is durable
///   or
///     worker → driver   {get: file, offset, size}
///     driver → worker   {}, then the bytes
///
/// On failure the driver answers {code, message} instead and closes the connection.
namespace troupe::runtime {

/// The shared secret of both ends of a run's part streams.
struct part_stream_secret {
  run_id run;
  std::string secret;
  /// Whether the streams are encrypted: TLS 1.3 with a key that is made of the run's secret.
  bool is_encrypted = true;

  /// Nothing if they are not.
  [[nodiscard]] std::optional<stream_key> key() const;
};

/// The driver's end. Writes the parts it receives into `checkpoints`, on a few threads, at the speed of the device.
/// Sends workers the one checkpoint that it lends. Listens at the addresses by which hosts are reached whose way here
/// is asked for, at ports of the range, if there is one.
[[nodiscard]] expected<std::unique_ptr<actors::part_receiver>>
open_part_receiver(part_stream_secret secret, std::filesystem::path checkpoints, std::optional<port_range> ports);

/// A worker's end. Used from one thread at a time. Reconnects after a connection was lost or closed.
class part_stream : public std::enable_shared_from_this<part_stream> {
 public:
  part_stream(part_stream_secret secret, worker_id worker, endpoint where);

  /// Sends a part to the driver and returns once it is durable there. Fails with `errc::damaged` if the bytes changed
  /// in transit, with the error that the driver reports, and as `secure_stream` does.
  [[nodiscard]] expected<serialization::part_report> put(const staged_part& part, const std::stop_token& stop);

  /// The checkpoint that the driver lends. Its tensors are read over this stream and verified here.
  [[nodiscard]] expected<std::shared_ptr<const state_source>> open_source();

  /// Fills `target` from a file of the lent checkpoint.
  [[nodiscard]] expected<void> get(const std::string& file, std::uint64_t offset_bytes, std::span<std::byte> target);

 private:
  [[nodiscard]] expected<void> connect(const std::stop_token& stop);
  template <class Call>
  [[nodiscard]] auto attempt(const std::stop_token& stop, Call call) -> decltype(call());

  part_stream_secret secret_;
  worker_id worker_;
  endpoint where_;
  std::optional<secure_stream> stream_;
};

} // namespace troupe::runtime
