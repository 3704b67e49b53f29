#pragma once

#include <troupe/actors/decisions/control_state.hpp>
#include <troupe/actors/decisions/run_record.hpp>
#include <troupe/actors/run_directory.hpp>
#include <troupe/error.hpp>
#include <troupe/inspect.hpp>
#include <troupe/messages/node.hpp>

#include <caf/fwd.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {

/// A driver starts no more workers than this without writing its journal.
inline constexpr std::uint32_t spare_worker_ids = 1024;

/// A node of a run, as its driver knows it.
struct journaled_node {
  /// As configured.
  std::string address;
  node_offer offer;

  bool operator==(const journaled_node&) const = default;
};

TROUPE_INSPECT(journaled_node, address, offer)

/// The state a new driver needs to take over a run.
struct run_journal {
  run_id run;
  /// As in `open_run`.
  std::string secret;
  run_claim claim;
  run_identity identity;
  std::vector<journaled_node> nodes;
  /// No worker has this id or a greater one.
  std::uint32_t next_worker = 0;
  /// The nodes of its places are indices into `nodes`.
  control_state state;
  run_history history;

  bool operator==(const run_journal&) const = default;
};

TROUPE_INSPECT(run_journal, run, secret, claim, identity, nodes, next_worker, state, history)

/// The journal in a run's directory: two files written in turn, so that a crash leaves the last one intact. Only their
/// owner can read them. Used by the process that holds the directory.
class control_journal {
 public:
  /// Whether a journal file exists; it may be unreadable.
  [[nodiscard]] static bool exists(const std::filesystem::path& directory);

  /// Has no effect yet. `system` outlives it.
  control_journal(caf::actor_system& system, const std::filesystem::path& directory);
  control_journal(const control_journal&) = delete;
  control_journal& operator=(const control_journal&) = delete;
  ~control_journal();

  /// The last journal written; nothing if none exists or another version of Troupe wrote it. Fails with
  /// `errc::damaged` or `errc::io_error`.
  [[nodiscard]] expected<std::optional<run_journal>> read();

  /// Returns once it is on the device. Fails with `errc::superseded` if a driver with a greater claim has written one
  /// meanwhile, and with `errc::io_error`.
  [[nodiscard]] expected<void> write(const run_journal& content);

  /// The run is over.
  void remove() noexcept;

 private:
  struct slot {
    std::filesystem::path path;
    int fd = -1;
  };
  struct header {
    std::uint64_t sequence = 0;
    std::uint64_t claim = 0;
    std::uint64_t size = 0;
    std::uint64_t digest = 0;
  };

  [[nodiscard]] static std::optional<header> read_header(const slot& from);
  void close() noexcept;

  caf::actor_system* system_;
  std::array<slot, 2> slots_;
  std::uint64_t sequence_ = 0;
};

} // namespace troupe::actors
