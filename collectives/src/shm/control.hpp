#pragma once

#include <troupe/collectives/flight_record.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// What one rank shows the others of its host: the begin of its generation's file. It alone writes it; the others map
/// it for reading, so that no rank, dead, revived or broken, can write into another one's memory.
namespace troupe::collectives::shm {

inline constexpr std::uint64_t magic = 0x3150555254ull;
inline constexpr std::uint32_t max_ranks = 64;

/// Up to this size (of one operand, in its own type) data travels in the control block, and everybody reduces all of
/// it: one rendezvous instead of two.
inline constexpr std::uint64_t small_bytes = 4096;

/// Room for the operands of one rank in a small reduction.
inline constexpr std::uint64_t slot_bytes = 16384;

/// A rank can be one posting ahead of another that still reads the last one: two would do.
inline constexpr std::uint32_t slots = 4;

inline constexpr std::uint32_t max_sources = 40;
/// How many sums a reduction inside one host can end with.
inline constexpr std::uint32_t max_results = 40;
inline constexpr std::uint32_t max_words = 8;

/// Messages between two ranks that were not taken yet.
inline constexpr std::uint32_t channel_messages = 64;

/// Calls of all that a rank remembers, for a peer that comes to know later that one of them was another call there.
inline constexpr std::uint32_t remembered_calls = 64;

/// What a rank contributes to one rendezvous. What everybody looks at first is in one cache line.
struct alignas(64) posting {
  call_record call;
  /// Digest of all calls of all that this rank has begun.
  std::uint64_t history = 0;
  /// Whether data that is reduced in place can be read by the peers.
  std::uint64_t is_registered = 0;
  /// Where this rank's operands begin, in its process's file or in its generation's.
  std::uint64_t offsets[max_sources] = {};
  /// Where this rank's slices of the results begin in its generation's file.
  std::uint64_t results[max_results] = {};
  std::uint64_t words[max_words] = {};
};

enum class standing : std::uint32_t { present = 0, left = 1, failed = 2 };

/// A message from one rank to another; the bytes lie in the sender's generation file.
struct message {
  std::uint64_t tag = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t offset = 0;
};

struct channel {
  /// How many messages were ever posted. A futex.
  alignas(64) std::atomic<std::uint32_t> posted;
  message messages[channel_messages];
};

struct control {
  std::uint64_t magic_number = 0;
  std::uint64_t generation = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;

  /// How many rendezvous this rank has come to. A futex.
  alignas(64) std::atomic<std::uint32_t> rendezvous;
  /// Where it was when it came to the last one.
  std::atomic<std::uint32_t> core;

  /// What it does now: odd while it is written.
  alignas(64) std::atomic<std::uint32_t> call_version;
  call_record call;
  /// How many calls of all it has begun: the number of the last one. The last ones stand at their numbers.
  std::uint64_t calls_of_all = 0;
  call_record calls[remembered_calls];
  /// Whether it is still in `call`.
  std::atomic<std::uint32_t> is_under_way;

  alignas(64) std::atomic<standing> state;
  /// Why it has failed, as an `errc` and a text. Written once, before `state`.
  std::uint32_t code = 0;
  char reason[1024] = {};

  /// Whether it sleeps on one of the futexes of that rank.
  alignas(64) std::atomic<std::uint8_t> sleeps_on[max_ranks];

  /// How many messages of that rank it has taken. Futexes.
  alignas(64) std::atomic<std::uint32_t> taken[max_ranks];

  posting postings[slots];
  alignas(4096) std::byte data[slots][slot_bytes];

  /// To that rank.
  channel channels[max_ranks];
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<standing>::is_always_lock_free &&
              std::atomic<std::uint8_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == 4, "the kernel looks at these words");
static_assert(std::is_trivially_copyable_v<call_record>);

} // namespace troupe::collectives::shm
