#pragma once

#include <troupe/error.hpp>
#include <troupe/resources.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// What the nodes of a cluster say about themselves to entry nodes, which tell drivers and tools.
namespace troupe {

/// Whether a node takes workers.
enum class member_phase : std::uint8_t {
  available = 1,
  /// It takes no new ones, and runs replace those that it has. Ends with `troupe resume`.
  drained = 2,
  /// Its caf-node ends.
  leaving = 3,
};

/// A run on a node.
struct member_run {
  std::string run;
  std::string name;
  /// Living processes of this run on the node.
  std::uint32_t workers = 0;

  bool operator==(const member_run&) const = default;
};

/// What a node says about itself.
struct cluster_member {
  /// HOST:PORT at which others reach it. Identifies it.
  std::string address;
  /// The host's name, for people.
  std::string host;
  /// When the node was started, in milliseconds since 1970 by its own clock: a node that was started again has a
  /// greater one.
  std::uint64_t started = 0;
  /// Grows with everything that it says about itself.
  std::uint64_t beat = 0;
  /// `protocol_version` of its program.
  std::uint32_t protocol = 0;
  /// Troupe's version, for people.
  std::string version;
  std::uint32_t pid = 0;
  resources offered;
  /// What no run has. CPUs are shared, so that these are all it offers.
  resources free;
  member_phase phase = member_phase::available;
  std::vector<member_run> runs;
  /// When its certificate of the cluster expires, in seconds since 1970; nothing without one.
  std::optional<std::int64_t> certificate_expires;
  /// As in `caf-node --label`.
  std::map<std::string, std::string> labels = {};

  bool operator==(const cluster_member&) const = default;
};

/// A member as an entry node knows it.
struct listed_member {
  cluster_member what;
  /// It has said nothing for some seconds, or its connection is lost.
  bool is_silent = false;
  /// Since it last said something.
  std::chrono::milliseconds silent_for{0};

  bool operator==(const listed_member&) const = default;
};

/// Its workers.
[[nodiscard]] std::uint32_t workers_of(const cluster_member& member);

/// Whether a driver of this build can use it: why not, else empty.
[[nodiscard]] std::string why_unusable(const listed_member& member);

/// The longest text in a member, and the most runs, labels or resources that one names.
inline constexpr std::size_t member_text_limit_bytes = 256;
inline constexpr std::size_t member_list_limit = 256;

/// Rejects with `errc::invalid_argument` labels, and names of resources, that are too many, too long, or have other
/// than printable ASCII.
[[nodiscard]] expected<void> validate_names(const std::map<std::string, std::string>& labels, const resources& offered);

/// Rejects with `errc::invalid_argument` what no node says: an address that is none, texts that are too long or have
/// other than printable characters, too many runs, labels or resources.
[[nodiscard]] expected<void> validate(const cluster_member& member);

} // namespace troupe
