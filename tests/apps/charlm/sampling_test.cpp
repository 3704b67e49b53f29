#include <charlm/sampling.hpp>

#include "normals.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <limits>
#include <map>

namespace {

using charlm::model;
using charlm::printable;
using charlm::sample;

constexpr charlm::model_shape small{.context = 4, .embedding = 16, .hidden = 16};

model random_model() {
  model result{small};
  result.initialise([](std::uint64_t index) { return normal_at(1, index); });
  return result;
}

/// A model that always predicts the same distribution, given by the output's biases.
model model_with_biases(const std::map<char, float>& biases) {
  model result{small};
  auto bias = result.tensors().back().values;
  std::fill(bias.begin(), bias.end(), -1e6F);
  for (auto [byte, value] : biases)
    bias[static_cast<unsigned char>(byte)] = value;
  return result;
}

} // namespace

TEST_CASE("the same seed gives the same text, another seed another one") {
  const auto m = random_model();
  const auto text = sample(m, "once", 200, 1.0, 7);
  CHECK(text.size() == 200);
  CHECK(sample(random_model(), "once", 200, 1.0, 7) == text);
  CHECK(sample(m, "once", 200, 1.0, 8) != text);
  CHECK(sample(m, "twice", 200, 1.0, 7) != text);
}

TEST_CASE("a longer text starts with the shorter one") {
  const auto m = random_model();
  CHECK(sample(m, "once", 200, 0.8, 7).substr(0, 50) == sample(m, "once", 50, 0.8, 7));
  CHECK(sample(m, "once", 0, 0.8, 7).empty());
}

TEST_CASE("only the last bytes of a prompt count, and a short prompt is preceded by newlines") {
  const auto m = random_model();
  CHECK(sample(m, "a very long prompt, once", 50, 1.0, 1) == sample(m, "once", 50, 1.0, 1));
  CHECK(sample(m, "ab", 50, 1.0, 1) == sample(m, "\n\nab", 50, 1.0, 1));
  CHECK(sample(m, "", 50, 1.0, 1) == sample(m, "\n\n\n\n", 50, 1.0, 1));
}

TEST_CASE("generated text becomes the context of what follows") {
  const auto m = random_model();
  const auto text = sample(m, "once", 20, 0.0, 1);
  CHECK(sample(m, "once" + text.substr(0, 9), 11, 0.0, 1) == text.substr(9));
}

TEST_CASE("temperature zero gives the likeliest byte for any seed") {
  const auto m = model_with_biases({{'a', 1.0F}, {'b', 1.001F}, {'\xff', 0.9F}});
  CHECK(sample(m, "", 30, 0.0, 1) == std::string(30, 'b'));
  CHECK(sample(m, "", 30, 0.0, 2) == std::string(30, 'b'));
}

TEST_CASE("bytes are drawn with the frequencies given by model and temperature") {
  const auto m = model_with_biases({{'a', 0.0F}, {'b', 1.0F}});
  const auto share_of_a = [&](double temperature) {
    const auto text = sample(m, "", 20'000, temperature, 3);
    CHECK(text.find_first_not_of("ab") == std::string::npos);
    return static_cast<double>(std::count(text.begin(), text.end(), 'a')) / 20'000.0;
  };
  CHECK(share_of_a(1.0) == doctest::Approx(0.2689).epsilon(0.05));   // 1 / (1 + e)
  CHECK(share_of_a(0.5) == doctest::Approx(0.1192).epsilon(0.08));   // 1 / (1 + e²)
  CHECK(share_of_a(100.0) == doctest::Approx(0.4975).epsilon(0.03)); // almost even
}

TEST_CASE("a diverged model generates nothing") {
  const auto m = model_with_biases({{'a', std::numeric_limits<float>::quiet_NaN()}});
  CHECK_THROWS_AS((void)sample(m, "", 1, 1.0, 1), troupe::exception);
}

TEST_CASE("a terminal gets no control characters and no broken UTF-8") {
  CHECK(printable("tab\tand\nnewline") == "tab\tand\nnewline");
  CHECK(printable("bell\a escape\x1b[2J null") == "bell? escape?[2J null");
  CHECK(printable(std::string_view{"\0\x7f\r", 3}) == "???");
  CHECK(printable("é € 𝄞") == "é € 𝄞");
  CHECK(printable("\xc3") == "?");
  CHECK(printable("\xe2\x82") == "??");
  CHECK(printable("\xe2\x82z") == "??z");
  CHECK(printable("\x80\xff") == "??");
  CHECK(printable("\xc0\xaf") == "??");           // overlong
  CHECK(printable("\xc2\x9b") == "??");           // a control sequence in one character
  CHECK(printable("\xed\xa0\x80") == "???");      // a surrogate
  CHECK(printable("\xf4\x90\x80\x80") == "????"); // above U+10FFFF
}
