#include <gpt/text.hpp>

#include <troupe/data/batch.hpp>

#include <doctest/doctest.h>

#include <numeric>
#include <set>

using namespace gpt;

namespace {

std::vector<std::uint8_t> bytes_of(std::string_view text) {
  return {text.begin(), text.end()};
}

/// All windows with the token after each, as characters.
std::vector<std::string> windows_of(const token_windows& text, const troupe::data::data_set& set) {
  std::vector<std::uint64_t> all(set.size());
  std::iota(all.begin(), all.end(), std::uint64_t{0});
  troupe::data::batch samples;
  troupe::value_or_throw(set.fetch(all, samples));
  auto contexts = samples.values<std::int64_t>("context");
  auto targets = samples.values<std::int64_t>("target");
  const auto block = contexts.size() / set.size();
  const auto character = [&](std::int64_t token) {
    return static_cast<char>(text.characters.characters()[static_cast<std::size_t>(token)]);
  };
  std::vector<std::string> result(set.size());
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    result[i / block] += character(contexts[i]);
    if ((i + 1) % block == 0)
      result[i / block] += character(targets[i]);
    else
      CHECK(targets[i] == contexts[i + 1]);
  }
  return result;
}

} // namespace

TEST_CASE("a vocabulary contains each character of a text once, in order") {
  auto known = vocabulary::of(bytes_of("to be or not\n"));
  CHECK(std::string{known.characters().begin(), known.characters().end()} == "\n benort");
  CHECK(known.token('\n') == 0);
  CHECK(known.token('t') == 7);
  CHECK(!known.token('z'));
  auto tokens = known.encode(bytes_of("tone"));
  REQUIRE(tokens);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(known.characters()[(*tokens)[i]] == static_cast<std::uint8_t>("tone"[i]));
  auto refused = known.encode(bytes_of("toz"));
  REQUIRE(!refused);
  CHECK(refused.error().message.find("code 122 is not among the 8") != std::string::npos);
}

TEST_CASE("training windows start at each position, and validation windows predict each token of the last tenth once") {
  std::string text;
  for (int i = 0; i < 83; ++i)
    text += static_cast<char>('!' + i);
  auto windows = make_windows(bytes_of(text), 3);
  REQUIRE(windows);
  CHECK(windows->characters.size() == 83);
  CHECK(!windows->is_tinyshakespeare);
  // 74 characters and 9.
  auto training = windows_of(*windows, *windows->training);
  REQUIRE(training.size() == 71);
  for (std::size_t i = 0; i < training.size(); ++i)
    CHECK(training[i] == text.substr(i, 4));
  auto validation = windows_of(*windows, *windows->validation);
  CHECK(validation == std::vector<std::string>{text.substr(74, 4), text.substr(77, 4)});
  CHECK(windows->training->fingerprint() != windows->validation->fingerprint());
  CHECK(make_windows(bytes_of(text + "x"), 3)->training->fingerprint() != windows->training->fingerprint());
  CHECK(make_windows(bytes_of(text), 4)->training->fingerprint() != windows->training->fingerprint());
}

TEST_CASE("a text that is too short for a window in its last tenth is rejected") {
  CHECK(make_windows(std::vector<std::uint8_t>(90, 'a'), 8));
  for (auto [size, block] : {std::pair{80, 8}, {90, 9}, {0, 1}, {100, 0}}) {
    auto refused =
        make_windows(std::vector<std::uint8_t>(static_cast<std::size_t>(size), 'a'), static_cast<std::uint64_t>(block));
    REQUIRE(!refused);
    CHECK(refused.error().code == troupe::errc::invalid_argument);
    CHECK(refused.error().message.find("the last tenth of " + std::to_string(size)) != std::string::npos);
  }
}
