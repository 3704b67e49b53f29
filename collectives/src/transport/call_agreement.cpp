#include "transport/call_agreement.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <type_traits>

namespace troupe::collectives {

namespace {

static_assert(std::is_trivially_copyable_v<call_word> && std::has_unique_object_representations_v<call_word>);

/// The limit of words that a peer has not confirmed.
constexpr std::uint64_t max_outgoing_words = 4;

/// Whether `call` cannot end before `peer` makes the matching call, given the peer's numbers of collective calls and of
/// sends to and receives from this rank. False in doubt.
bool needs(const call_record& call, std::uint32_t peer, std::uint64_t collective_calls, std::uint64_t sends,
           std::uint64_t receives) noexcept {
  switch (call.kind) {
  case call_kind::none:
  // In a broadcast a rank needs only its neighbours in the tree.
  case call_kind::broadcast:
    return false;
  case call_kind::send:
    return call.peer == peer && call.size_bytes != 0 && call.sequence > receives;
  case call_kind::receive:
    return call.peer == peer && call.size_bytes != 0 && call.sequence > sends;
  case call_kind::barrier:
  case call_kind::all_gather_bytes:
    return call.sequence > collective_calls;
  case call_kind::all_reduce:
  case call_kind::reduce_scatter:
  case call_kind::all_gather:
  case call_kind::all_to_all:
  case call_kind::reduce_leaves:
  case call_kind::all_reduce_fast:
    return call.size_bytes != 0 && call.sequence > collective_calls;
  }
  return false;
}

} // namespace

std::string to_text(const std::vector<std::uint32_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string to_text(std::chrono::nanoseconds x) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(x).count();
  return ms < 10'000 ? fmt::format("{} ms", ms) : fmt::format("{} s", ms / 1000);
}

call_agreement::call_agreement(std::uint32_t rank, std::uint32_t world_size, generation_id generation)
    : rank_(rank), generation_(generation), peers_(world_size) {}

void call_agreement::begin(const call_record& call, time_point now) {
  call_ = call;
  is_under_way_ = true;
  begun_at_ = now;
  if (has_asked_)
    excuse_unanswering(now);
  if (call.kind == call_kind::send) {
    peers_[call.peer].send = call;
  } else if (call.kind == call_kind::receive) {
    peers_[call.peer].receive = call;
  } else {
    collective_calls_ = call.sequence;
    history_[call.sequence % history_.size()] = call;
  }
}

void call_agreement::end(time_point now) {
  if (is_under_way_)
    ended_at_ = now;
  is_under_way_ = false;
}

std::chrono::nanoseconds call_agreement::duration(time_point now) const {
  return (is_under_way_ ? now : ended_at_) - begun_at_;
}

call_word call_agreement::word_for(std::uint32_t peer, std::uint32_t flags, time_point now) {
  auto& to = peers_[peer];
  ++to.words_told;
  if ((flags & call_word::wants_answer) != 0 && !to.asked) {
    to.asked = question{now, to.words_told};
    has_asked_ = true;
  }
  call_word word;
  word.call = call_;
  word.elapsed_ns = std::chrono::nanoseconds{now - (is_under_way_ ? begun_at_ : ended_at_)}.count();
  word.collective_calls = collective_calls_;
  word.sends_to_you = to.send.sequence;
  word.receives_from_you = to.receive.sequence;
  word.words_from_you = to.words_heard;
  word.flags = flags | (is_under_way_ ? call_word::under_way : 0u) | (mismatch_ ? call_word::knows_mismatch : 0u);
  word.found = mismatch_.value_or(call_mismatch{});
  return word;
}

bool call_agreement::takes_words(std::uint32_t peer) const {
  return mismatch_ || peers_[peer].words_told - peers_[peer].words_confirmed < max_outgoing_words;
}

call_agreement::reaction call_agreement::hear(std::uint32_t peer, const call_word& word, time_point now) {
  auto& from = peers_[peer];
  ++from.words_heard;
  // A peer cannot confirm more words than were sent to it.
  from.words_confirmed = std::max(from.words_confirmed, std::min(word.words_from_you, from.words_told));
  if (from.asked && from.words_confirmed >= from.asked->word)
    from.asked.reset();
  from.heard = heard_word{word, now};
  auto is_new = false;
  if (word.has(call_word::knows_mismatch)) {
    from.knows_mismatch = true;
    is_new = learn(word.found);
  }
  if (const auto mine = contradicted_by(peer, word.call))
    is_new = learn({peer, rank_, word.call, *mine}) || is_new;
  else if (is_deadlock(peer, word))
    is_new = learn({peer, rank_, word.call, call_}) || is_new;
  if (is_new)
    return reaction::tell_all;
  return word.has(call_word::wants_answer) ? reaction::answer : reaction::none;
}

bool call_agreement::see(std::uint32_t peer, const call_record& theirs) {
  const auto mine = contradicted_by(peer, theirs);
  if (mine)
    learn({peer, rank_, theirs, *mine});
  return mine.has_value();
}

/// This rank's call that cannot belong together with a call of the peer. It stays so, however old the report is.
std::optional<call_record> call_agreement::contradicted_by(std::uint32_t peer, const call_record& theirs) const {
  if (theirs.kind == call_kind::none)
    return std::nullopt;
  if (!is_pairwise(theirs.kind)) {
    // A call that this rank has yet to make, or no longer remembers, is for the peer to compare.
    const auto& mine = history_[theirs.sequence % history_.size()];
    if (mine.kind != call_kind::none && mine.sequence == theirs.sequence && !fit_together(mine, theirs))
      return mine;
    return std::nullopt;
  }
  if (theirs.peer != rank_)
    return std::nullopt;
  const auto& mine = theirs.kind == call_kind::send ? peers_[peer].receive : peers_[peer].send;
  if (mine.sequence == theirs.sequence && mine.size_bytes != theirs.size_bytes)
    return mine;
  return std::nullopt;
}

/// Whether the peer's call needs a call that this rank has not begun, and this rank's call needs one that the peer has
/// not begun.
bool call_agreement::is_deadlock(std::uint32_t peer, const call_word& theirs) const {
  return is_under_way_ && theirs.has(call_word::under_way) &&
         needs(theirs.call, rank_, collective_calls_, peers_[peer].send.sequence, peers_[peer].receive.sequence) &&
         needs(call_, peer, theirs.collective_calls, theirs.sends_to_you, theirs.receives_from_you);
}

bool call_agreement::learn(const call_mismatch& found) {
  if (mismatch_)
    return false;
  mismatch_ = found;
  return true;
}

bool call_agreement::is_concerned() const {
  if (!mismatch_)
    return false;
  if (mismatch_->left == rank_ || mismatch_->right == rank_)
    return true;
  return !is_pairwise(call_.kind) && !is_pairwise(mismatch_->of_left.kind) && !is_pairwise(mismatch_->of_right.kind) &&
         call_.sequence >= std::min(mismatch_->of_left.sequence, mismatch_->of_right.sequence);
}

error call_agreement::mismatch_error() const {
  return {errc::mismatch, fmt::format("{}: {}", where(),
                                      describe_mismatch(rank_id{mismatch_->left}, mismatch_->of_left,
                                                        rank_id{mismatch_->right}, mismatch_->of_right))};
}

std::optional<call_agreement::time_point> call_agreement::unanswered_since(std::uint32_t peer) const {
  const auto& asked = peers_[peer].asked;
  return asked ? std::optional{asked->at} : std::nullopt;
}

void call_agreement::excuse_unanswering(time_point now) {
  has_asked_ = false;
  for (auto& x : peers_)
    if (x.asked) {
      x.asked->at = now;
      has_asked_ = true;
    }
}

bool call_agreement::has_begun(std::uint32_t peer) const {
  if (!peers_[peer].heard)
    return false;
  const auto& said = peers_[peer].heard->word;
  const auto begun = call_.kind == call_kind::send      ? said.receives_from_you
                     : call_.kind == call_kind::receive ? said.sends_to_you
                                                        : said.collective_calls;
  return call_.sequence <= begun;
}

call_record call_agreement::last_call_of(std::uint32_t peer) const {
  return peers_[peer].heard ? peers_[peer].heard->word.call : call_record{};
}

std::string call_agreement::where() const {
  return fmt::format("{} #{} on rank {} of {}, generation {}", to_string(call_.kind), call_.sequence, rank_,
                     peers_.size(), generation_);
}

std::string call_agreement::position_of(std::uint32_t peer, time_point now) const {
  const auto name = fmt::format("rank {}", peer);
  const auto& heard = peers_[peer].heard;
  if (!heard)
    return fmt::format("{} has not answered: it is frozen or unreachable", name);
  const auto& said = heard->word;
  const auto elapsed = to_text(std::chrono::nanoseconds{said.elapsed_ns} + (now - heard->at));
  if (said.call.kind == call_kind::none)
    return fmt::format("{} has made no call yet", name);
  if (!said.has(call_word::under_way))
    return fmt::format("{} has made no call since {}, which it ended {} ago", name, to_string(said.call), elapsed);
  if (!is_pairwise(said.call.kind) && !is_pairwise(call_.kind) && said.call.sequence == call_.sequence)
    return fmt::format("{} has been waiting in the same call for {}", name, elapsed);
  return fmt::format("{} has been in {} for {}", name, to_string(said.call), elapsed);
}

} // namespace troupe::collectives
