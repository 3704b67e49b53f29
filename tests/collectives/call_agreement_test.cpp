#include "transport/call_agreement.hpp"

#include <doctest/doctest.h>
#include <tuple>
#include <vector>

using namespace troupe;
using namespace troupe::collectives;
using namespace std::chrono_literals;

namespace {

using time_point = call_agreement::time_point;
using reaction = call_agreement::reaction;

call_record collective(call_kind kind, std::uint64_t sequence, std::uint64_t size_bytes) {
  call_record result;
  result.kind = kind;
  result.sequence = sequence;
  result.size_bytes = size_bytes;
  return result;
}

call_record pairwise(call_kind kind, std::uint64_t sequence, std::uint64_t size_bytes, std::uint32_t peer) {
  auto result = collective(kind, sequence, size_bytes);
  result.peer = peer;
  return result;
}

/// The agreements of all ranks of a group; words arrive at once.
struct group {
  explicit group(std::uint32_t size) {
    for (std::uint32_t rank = 0; rank < size; ++rank)
      ranks.emplace_back(rank, size, generation_id{4});
  }

  /// One word, and the answers that follow from it.
  void tell(std::uint32_t from, std::uint32_t to, std::uint32_t flags = 0) {
    switch (ranks[to].hear(from, ranks[from].word_for(to, flags, now), now)) {
    case reaction::none:
      return;
    case reaction::answer:
      return tell(to, from);
    case reaction::tell_all:
      for (std::uint32_t peer = 0; peer < ranks.size(); ++peer)
        if (peer != to)
          tell(to, peer);
    }
  }

  void ask_all(std::uint32_t from) {
    for (std::uint32_t peer = 0; peer < ranks.size(); ++peer)
      if (peer != from)
        tell(from, peer, call_word::wants_answer);
  }

  std::vector<call_agreement> ranks;
  time_point now{1h};
};

bool mentions(const error& x, const std::string& text) {
  return x.message.find(text) != std::string::npos;
}

} // namespace

TEST_CASE("collective calls with the same number that differ are a mismatch, which everybody learns") {
  group all{3};
  all.ranks[0].begin(collective(call_kind::all_reduce, 1, 400), all.now);
  all.ranks[1].begin(collective(call_kind::all_reduce, 1, 400), all.now);
  all.ranks[2].begin(collective(call_kind::barrier, 1, 0), all.now);
  all.tell(1, 0, call_word::wants_answer);
  CHECK(!all.ranks[0].has_mismatch());
  all.ask_all(0);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto& x = all.ranks[rank];
    REQUIRE(x.has_mismatch());
    CHECK(x.is_concerned());
    CHECK(x.mismatch_error().code == errc::mismatch);
    INFO(x.mismatch_error().message);
    CHECK(mentions(x.mismatch_error(), "rank 2 calls barrier #1"));
    CHECK(mentions(x.mismatch_error(), "generation 4"));
    for (std::uint32_t peer = 0; peer < 3; ++peer)
      CHECK((peer == rank || x.knows_mismatch(peer)));
  }
}

TEST_CASE("a call that ended long ago is still compared, and one that is yet to come is not") {
  group all{2};
  auto& x = all.ranks[0];
  for (std::uint64_t i = 1; i <= 40; ++i) {
    x.begin(collective(call_kind::barrier, i, 0), all.now);
    x.end(all.now);
  }
  CHECK(!x.see(1, collective(call_kind::all_reduce, 41, 4)));
  CHECK(!x.see(1, collective(call_kind::barrier, 40, 0)));
  CHECK(x.see(1, collective(call_kind::all_reduce, 1, 4)));
  CHECK(x.has_mismatch());
}

TEST_CASE("the header of a message of another size than its receive is a mismatch") {
  call_agreement x{1, 2, generation_id{1}};
  x.begin(pairwise(call_kind::receive, 3, 100, 0), {});
  CHECK(!x.see(0, pairwise(call_kind::send, 2, 50, 1)));
  CHECK(!x.see(0, pairwise(call_kind::send, 3, 100, 1)));
  CHECK(x.see(0, pairwise(call_kind::send, 3, 50, 1)));
  CHECK(mentions(x.mismatch_error(), "send #3 (50 bytes, to rank 1)"));
}

TEST_CASE("a send and a collective call that wait for each other are a mismatch, unless one of them is only late") {
  group all{2};
  all.ranks[0].begin(pairwise(call_kind::send, 1, 64, 1), all.now);
  all.ranks[1].begin(collective(call_kind::barrier, 1, 0), all.now);
  SUBCASE("both wait") {
    all.ask_all(1);
    CHECK(all.ranks[0].has_mismatch());
    CHECK(all.ranks[1].has_mismatch());
  }
  SUBCASE("the send has ended") {
    all.ranks[0].end(all.now);
    all.ask_all(1);
    CHECK(!all.ranks[1].has_mismatch());
    CHECK(!all.ranks[1].has_begun(0));
    all.ranks[0].begin(collective(call_kind::barrier, 1, 0), all.now);
    all.ask_all(1);
    CHECK(all.ranks[1].has_begun(0));
    CHECK(!all.ranks[1].has_mismatch());
  }
}

TEST_CASE("a mismatch between two ranks does not end the calls of others that do not depend on it") {
  group all{3};
  all.ranks[0].begin(pairwise(call_kind::send, 1, 64, 1), all.now);
  all.ranks[1].begin(pairwise(call_kind::receive, 1, 32, 0), all.now);
  all.ranks[2].begin(collective(call_kind::barrier, 1, 0), all.now);
  all.ask_all(1);
  CHECK(all.ranks[0].is_concerned());
  CHECK(all.ranks[1].is_concerned());
  CHECK(all.ranks[2].has_mismatch());
  CHECK(!all.ranks[2].is_concerned());
}

TEST_CASE("a peer that confirms nothing gets a few words and no more") {
  call_agreement x{0, 2, generation_id{1}};
  x.begin(collective(call_kind::barrier, 1, 0), {});
  auto told = 0;
  for (; x.takes_words(1) && told < 100; ++told)
    static_cast<void>(x.word_for(1, call_word::wants_answer, {}));
  CHECK(told == 4);
  call_word late;
  late.words_from_you = 2;
  static_cast<void>(x.hear(1, late, {}));
  CHECK(x.takes_words(1));
  // It cannot confirm what it was not told.
  late.words_from_you = 1'000'000;
  static_cast<void>(x.hear(1, late, {}));
  for (told = 0; x.takes_words(1) && told < 100; ++told)
    static_cast<void>(x.word_for(1, 0, {}));
  CHECK(told == 4);
}

TEST_CASE("the position of a peer says what it does, and for how long") {
  group all{2};
  auto& x = all.ranks[0];
  x.begin(collective(call_kind::all_reduce, 2, 40), all.now);
  CHECK(x.position_of(1, all.now) == "rank 1 has not answered: it is frozen or unreachable");
  all.ask_all(0);
  CHECK(x.position_of(1, all.now) == "rank 1 has made no call yet");
  all.ranks[1].begin(collective(call_kind::barrier, 1, 0), all.now);
  all.ranks[1].end(all.now + 10ms);
  all.now += 100ms;
  all.ask_all(0);
  CHECK(x.position_of(1, all.now + 1s) ==
        "rank 1 has made no call since barrier #1 (0 bytes), which it ended 1090 ms ago");
  all.ranks[1].begin(collective(call_kind::all_reduce, 2, 40), all.now);
  all.ask_all(0);
  CHECK(x.position_of(1, all.now + 20s) == "rank 1 has been waiting in the same call for 20 s");
  CHECK(x.where() == "all_reduce #2 on rank 0 of 2, generation 4");
}

TEST_CASE("a peer has answered once it says something after it has heard the question") {
  group all{3};
  auto& asking = all.ranks[0];
  asking.begin(collective(call_kind::barrier, 1, 8), all.now);
  const auto asked_at = all.now;
  const auto question = asking.word_for(1, call_word::wants_answer, all.now);
  all.tell(0, 2, call_word::wants_answer);
  CHECK_FALSE(asking.unanswered_since(2));
  all.now += 1s;
  std::ignore = asking.word_for(1, call_word::wants_answer, all.now);
  CHECK(asking.unanswered_since(1) == asked_at);
  // It speaks, and has heard nothing: the network carries in one direction only.
  all.tell(1, 0);
  CHECK(asking.unanswered_since(1) == asked_at);
  std::ignore = all.ranks[1].hear(0, question, all.now);
  all.tell(1, 0);
  CHECK_FALSE(asking.unanswered_since(1));
}

TEST_CASE("the time to answer begins again with each call, and when this rank was frozen") {
  group all{2};
  auto& asking = all.ranks[0];
  asking.begin(collective(call_kind::barrier, 1, 8), all.now);
  std::ignore = asking.word_for(1, call_word::wants_answer, all.now);
  all.now += 5s;
  asking.excuse_unanswering(all.now);
  CHECK(asking.unanswered_since(1) == all.now);
  all.now += 1s;
  asking.begin(collective(call_kind::barrier, 2, 8), all.now);
  CHECK(asking.unanswered_since(1) == all.now);
}
