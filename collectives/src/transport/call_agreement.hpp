#pragma once

#include <troupe/collectives/flight_record.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::collectives {

/// Two calls that contradict each other, and the ranks that make them.
struct call_mismatch {
  std::uint32_t left = 0;
  std::uint32_t right = 0;
  call_record of_left;
  call_record of_right;
};

/// A rank's report of its state to one peer. Trivially copyable; sent as it is.
struct call_word {
  enum : std::uint32_t { under_way = 1, wants_answer = 2, knows_mismatch = 4 };

  /// The running call, or the last one.
  call_record call;
  /// Since the start of a running call, otherwise since its end.
  std::int64_t elapsed_ns = 0;
  /// The calls that this rank has begun: collective ones, and those with the receiver.
  std::uint64_t collective_calls = 0;
  std::uint64_t sends_to_you = 0;
  std::uint64_t receives_from_you = 0;
  /// The number of words received from the receiver of this one.
  std::uint64_t words_from_you = 0;
  /// Valid with `knows_mismatch`.
  call_mismatch found;
  std::uint32_t flags = 0;
  std::uint32_t reserved = 0;

  [[nodiscard]] bool has(std::uint32_t flag) const noexcept { return (flags & flag) != 0; }
};

/// Decides whether the ranks of a group make the same calls, from what this rank does and what its peers report. No
/// sockets, clocks or threads.
///
/// Ranks that make different calls wait for messages that are never sent. When a call takes long, a rank sends every
/// peer its word and asks for theirs; a peer answers even while its caller is busy. The header of each message also
/// names its call, so that most mismatches are found with the first message. A mismatch is final, because calls are
/// numbered and never undone:
/// - two collective calls with the same number that differ, even if one of them ended long ago;
/// - a send and the receive with the same number between two ranks, with different sizes;
/// - two ranks in calls that need each other, neither of which the other has begun: a send against a collective call.
///
/// A rank that finds or receives a mismatch forwards it to all. The affected ranks fail once all have confirmed it, so
/// that their closed connections are not mistaken for a loss. Not found: an empty send against a non-empty receive, a
/// cycle of more than two ranks, and differences between calls that need no messages. These run into the deadline.
class call_agreement {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  /// The reaction to a word.
  enum class reaction : std::uint8_t {
    none,
    /// Send the peer a word.
    answer,
    /// Send a word to all peers: this rank has just learned of a mismatch.
    tell_all,
  };

  call_agreement(std::uint32_t rank, std::uint32_t world_size, generation_id generation);

  // This rank's calls. In each the time in which peers have to answer begins again.
  void begin(const call_record& call, time_point now);
  void end(time_point now);
  [[nodiscard]] const call_record& call() const noexcept { return call_; }
  [[nodiscard]] bool is_under_way() const noexcept { return is_under_way_; }
  [[nodiscard]] std::chrono::nanoseconds duration(time_point now) const;

  /// The next word to `peer`.
  [[nodiscard]] call_word word_for(std::uint32_t peer, std::uint32_t flags, time_point now);

  /// Whether `peer` takes words: a frozen one confirms none, and gets no more than a few.
  [[nodiscard]] bool takes_words(std::uint32_t peer) const;

  /// `peer` sent this word.
  [[nodiscard]] reaction hear(std::uint32_t peer, const call_word& word, time_point now);

  /// `peer` sent a message of this call. True if it contradicts this rank's calls; the mismatch is then known.
  [[nodiscard]] bool see(std::uint32_t peer, const call_record& theirs);

  [[nodiscard]] bool has_mismatch() const noexcept { return mismatch_.has_value(); }

  /// Whether the known mismatch prevents the running call from ending. If it does not, but the call needs a rank that
  /// fails because of it, the connection to that rank closes.
  [[nodiscard]] bool is_concerned() const;

  /// Whether `peer` has confirmed that it knows the mismatch.
  [[nodiscard]] bool knows_mismatch(std::uint32_t peer) const { return peers_[peer].knows_mismatch; }
  [[nodiscard]] error mismatch_error() const;

  /// When the peer was asked for a word, if it has not sent one since it received the question. An unrelated word shows
  /// that the peer lives, but not that it receives from this rank.
  [[nodiscard]] std::optional<time_point> unanswered_since(std::uint32_t peer) const;

  /// This rank may have missed answers: the time in which peers have to answer begins again.
  void excuse_unanswering(time_point now);

  /// Whether the peer has reported that it has begun the running call.
  [[nodiscard]] bool has_begun(std::uint32_t peer) const;

  /// The peer's last reported call; of kind `none` if there is none.
  [[nodiscard]] call_record last_call_of(std::uint32_t peer) const;

  /// "all_reduce #2 on rank 0 of 4, generation 1".
  [[nodiscard]] std::string where() const;

  /// "rank 3 has been waiting in the same call for 210 ms".
  [[nodiscard]] std::string position_of(std::uint32_t peer, time_point now) const;

 private:
  struct heard_word {
    call_word word;
    time_point at;
  };

  /// A question without an answer.
  struct question {
    time_point at;
    /// The number of the word that asked it.
    std::uint64_t word = 0;
  };

  struct peer_state {
    std::optional<heard_word> heard;
    std::optional<question> asked;
    std::uint64_t words_heard = 0;
    std::uint64_t words_told = 0;
    std::uint64_t words_confirmed = 0;
    bool knows_mismatch = false;
    /// The last of each that this rank has begun.
    call_record send;
    call_record receive;
  };

  [[nodiscard]] std::optional<call_record> contradicted_by(std::uint32_t peer, const call_record& theirs) const;
  [[nodiscard]] bool is_deadlock(std::uint32_t peer, const call_word& theirs) const;
  bool learn(const call_mismatch& found);

  const std::uint32_t rank_;
  const generation_id generation_;
  std::vector<peer_state> peers_;
  /// Whether a peer was asked for a word since `excuse_unanswering` last found no open question.
  bool has_asked_ = false;
  call_record call_;
  bool is_under_way_ = false;
  time_point begun_at_;
  time_point ended_at_;
  std::uint64_t collective_calls_ = 0;
  /// The last collective calls, at their number modulo the size.
  std::array<call_record, 64> history_;
  std::optional<call_mismatch> mismatch_;
};

/// "rank 3", "ranks 1, 2".
[[nodiscard]] std::string to_text(const std::vector<std::uint32_t>& ranks);

/// "210 ms", "12 s".
[[nodiscard]] std::string to_text(std::chrono::nanoseconds x);

} // namespace troupe::collectives
