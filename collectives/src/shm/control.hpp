#pragma once

#include <troupe/collectives/flight_record.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// The memory that one rank shares with the others on its host: the start of its generation's file. Only this rank
/// writes it. The others map it read-only, so no rank, even a broken one, can write to another rank's memory.
/// Exception: with `shm_options::results_for_devices` the file is not sealed against writing, because drivers pin only
/// writable memory. Peers then map everything but the results read-only.
namespace troupe::collectives::shm {

inline constexpr std::uint64_t magic = 0x3150555254ull;
inline constexpr std::uint32_t max_ranks = 256;

/// Up to this size (of one operand, in its own type) data travels in the control block and every rank reduces all of
/// it: one rendezvous instead of two.
inline constexpr std::uint64_t small_bytes = 4096;

/// The space for the operands of one rank in a small reduction.
inline constexpr std::uint64_t slot_bytes = 16384;

/// A rank can be one posting ahead of another that still reads the last one, so two would be enough.
inline constexpr std::uint32_t slots = 4;

inline constexpr std::uint32_t max_sources = 40;
/// The largest number of sums that a reduction inside one host can end with.
inline constexpr std::uint32_t max_results = 40;
inline constexpr std::uint32_t max_words = 8;

/// The limit of messages between two ranks that have not been taken yet.
inline constexpr std::uint32_t channel_messages = 64;

/// The collective calls that a rank remembers, for peers that detect a mismatch later.
inline constexpr std::uint32_t remembered_calls = 64;

/// A rank's contribution to one rendezvous. The fields that peers read first share one cache line.
struct alignas(64) posting {
  call_record call;
  /// A digest of all collective calls that this rank has begun.
  std::uint64_t history = 0;
  /// Whether the peers can read data that is reduced in place.
  std::uint64_t is_registered = 0;
  /// The offsets of this rank's operands, in its process's file or its generation's.
  std::uint64_t offsets[max_sources] = {};
  /// The offsets of this rank's result slices in its generation's file.
  std::uint64_t results[max_results] = {};
  std::uint64_t words[max_words] = {};
};

enum class standing : std::uint32_t { present = 0, left = 1, failed = 2 };

/// A message from one rank to another. The bytes are in the sender's generation file.
struct message {
  std::uint64_t tag = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t offset = 0;
};

struct channel {
  /// The number of messages posted so far. A futex.
  alignas(64) std::atomic<std::uint32_t> posted;
  message messages[channel_messages];
};

struct control {
  std::uint64_t magic_number = 0;
  std::uint64_t generation = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;

  /// The number of rendezvous that this rank has reached. A futex.
  alignas(64) std::atomic<std::uint32_t> rendezvous;
  /// The processor on which it reached the last one.
  std::atomic<std::uint32_t> core;

  /// The version of `call`; odd while it is being written.
  alignas(64) std::atomic<std::uint32_t> call_version;
  call_record call;
  /// The number of collective calls begun, which is the number of the last one. The last ones are kept at their
  /// numbers.
  std::uint64_t collective_calls = 0;
  call_record calls[remembered_calls];
  /// Whether the rank is still in `call`.
  std::atomic<std::uint32_t> is_under_way;

  alignas(64) std::atomic<standing> state;
  /// Why it has failed, as an `errc` and a text. Written once, before `state`.
  std::uint32_t code = 0;
  char reason[1024] = {};

  /// Whether this rank sleeps on one of that rank's futexes.
  alignas(64) std::atomic<std::uint8_t> sleeps_on[max_ranks];

  /// The number of messages taken from that rank. Futexes.
  alignas(64) std::atomic<std::uint32_t> taken[max_ranks];

  posting postings[slots];
  alignas(4096) std::byte data[slots][slot_bytes];

  /// Messages to that rank.
  channel channels[max_ranks];
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<standing>::is_always_lock_free &&
              std::atomic<std::uint8_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == 4, "the kernel looks at these words");
static_assert(std::is_trivially_copyable_v<call_record>);

} // namespace troupe::collectives::shm
