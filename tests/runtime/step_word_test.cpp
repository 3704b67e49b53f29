#include "worker/step_word.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace troupe::runtime {

namespace {

constexpr auto generation = generation_id{3};

void bring(step_word& word, step_phase phase, std::uint64_t step = 7) {
  REQUIRE(word.begin(generation, step_id{step}));
  if (phase == step_phase::frozen)
    word.freeze();
  if (phase == step_phase::reduced || phase == step_phase::committed)
    REQUIRE(word.reduced());
  if (phase == step_phase::committed)
    REQUIRE(word.pass());
  REQUIRE(word.load() == step_word::value{3, step, phase});
}

TEST_CASE("a step goes from computing over reduced to committed, and the next begins") {
  step_word word;
  CHECK(word.load() == step_word::value{});
  for (std::uint64_t step = 1; step <= 3; ++step)
    bring(word, step_phase::committed, step);
}

TEST_CASE("a step passes only once it is reduced, and is reduced only while it computes") {
  step_word word;
  bring(word, step_phase::computing);
  CHECK_FALSE(word.pass());
  CHECK(word.load().phase == step_phase::computing);
  CHECK(word.reduced());
  CHECK_FALSE(word.reduced());
  CHECK(word.pass());
  CHECK_FALSE(word.pass());
  CHECK_FALSE(word.reduced());
  CHECK(word.load() == step_word::value{3, 7, step_phase::committed});
}

TEST_CASE("an abort freezes a step that has not committed, and says how far it was") {
  for (auto phase : {step_phase::computing, step_phase::reduced}) {
    step_word word;
    bring(word, phase);
    CHECK(word.freeze() == step_word::value{3, 7, phase});
    CHECK(word.load() == step_word::value{3, 7, step_phase::frozen});
    CHECK_FALSE(word.reduced());
    CHECK_FALSE(word.pass());
    CHECK_FALSE(word.begin(generation, step_id{8}));
    CHECK(word.freeze() == step_word::value{3, 7, step_phase::frozen});
    CHECK(word.load() == step_word::value{3, 7, step_phase::frozen});
  }
}

TEST_CASE("an abort leaves a step that has committed, and no other begins before the next generation") {
  step_word word;
  bring(word, step_phase::committed);
  CHECK(word.freeze() == step_word::value{3, 7, step_phase::committed});
  CHECK(word.load() == step_word::value{3, 7, step_phase::committed_and_frozen});
  CHECK(word.freeze() == step_word::value{3, 7, step_phase::committed_and_frozen});
  CHECK_FALSE(word.begin(generation, step_id{8}));
  word.restart(generation_id{4}, step_id{7});
  CHECK(word.load() == step_word::value{4, 7, step_phase::committed});
  CHECK(word.begin(generation_id{4}, step_id{8}));
}

TEST_CASE("an abort before the first step keeps it from beginning") {
  step_word word;
  CHECK(word.freeze() == step_word::value{});
  CHECK_FALSE(word.begin(generation, step_id{1}));
}

TEST_CASE("a word holds the largest generation and step") {
  step_word word;
  auto step = (std::uint64_t{1} << 42) - 1;
  auto last = generation_id{(1u << 19) - 1};
  REQUIRE(word.begin(last, step_id{step}));
  REQUIRE(word.reduced());
  CHECK(word.load() == step_word::value{(1u << 19) - 1, step, step_phase::reduced});
}

TEST_CASE("of passing and aborting exactly one wins, and both agree which") {
  // Both go through a few words at full speed, after having waited for each other: they meet on some of them.
  constexpr std::size_t rounds = 5'000;
  constexpr std::size_t words_of_round = 32;
  std::vector<step_word> words(rounds * words_of_round);
  for (std::size_t i = 0; i < words.size(); ++i) {
    static_cast<void>(words[i].begin(generation, step_id{i}));
    static_cast<void>(words[i].reduced());
  }
  std::vector<char> committed(words.size());
  std::vector<step_word::value> seen(words.size());
  std::atomic<std::size_t> arrived{0};
  auto meet = [&](std::size_t round) {
    ++arrived;
    while (arrived < 2 * (round + 1))
      std::this_thread::yield();
  };
  auto trainer = std::thread{[&] {
    for (std::size_t round = 0; round < rounds; ++round) {
      meet(round);
      for (auto i = round * words_of_round; i < (round + 1) * words_of_round; ++i)
        committed[i] = words[i].pass() ? 1 : 0;
    }
  }};
  for (std::size_t round = 0; round < rounds; ++round) {
    meet(round);
    // In half of the rounds from the other end: so they meet once on the way.
    for (std::size_t k = 0; k < words_of_round; ++k) {
      auto i = round * words_of_round + (round % 2 == 0 ? k : words_of_round - 1 - k);
      seen[i] = words[i].freeze();
    }
  }
  trainer.join();
  std::size_t disagreements = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    auto end = words[i].load().phase;
    auto agreed = committed[i] == 1 ? seen[i].phase == step_phase::committed && end == step_phase::committed_and_frozen
                                    : seen[i].phase == step_phase::reduced && end == step_phase::frozen;
    disagreements += agreed ? 0 : 1;
  }
  MESSAGE("the step committed in " << std::count(committed.begin(), committed.end(), 1) << " of " << words.size()
                                   << " races");
  CHECK(disagreements == 0);
}

TEST_CASE("of beginning, reducing, passing and aborting, an abort is final or the step has committed") {
  constexpr auto rounds = 5'000;
  auto wrong = 0;
  for (auto round = 0; round < rounds; ++round) {
    step_word word;
    std::atomic<std::uint64_t> applied{0};
    auto trainer = std::thread{[&] {
      for (std::uint64_t step = 1; step <= 50; ++step) {
        if (!word.begin(generation, step_id{step}) || !word.reduced() || !word.pass())
          return;
        applied = step;
      }
    }};
    auto seen = word.freeze();
    trainer.join();
    auto end = word.load();
    // Frozen in step k: k - 1 is applied. Told that k has committed: it is, and no other begins.
    if (end.phase == step_phase::frozen)
      wrong += seen.phase != step_phase::committed && applied + 1 == std::max<std::uint64_t>(seen.step, 1) ? 0 : 1;
    else
      wrong +=
          end.phase == step_phase::committed_and_frozen && seen.phase == step_phase::committed && applied == seen.step
              ? 0
              : 1;
  }
  CHECK(wrong == 0);
}

} // namespace

} // namespace troupe::runtime
