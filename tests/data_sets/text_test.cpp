#include <troupe/data/text.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::data;

namespace {

split_text text_of(std::size_t size, std::size_t context) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::uint8_t>(i * i % 251);
  return value_or_throw(make_text(std::move(bytes), context));
}

} // namespace

// The set of windows and the reading of files are tested with charlm, their first user.
TEST_CASE("a window's batch holds its bytes and the one after them") {
  auto [training, held_out] = text_of(25'000, 16);
  for (const auto& part : {training, held_out}) {
    batch out;
    const auto samples = std::vector<std::uint64_t>{0, 1, part->size() - 1, part->size() / 2};
    REQUIRE(part->fetch(samples, out).has_value());
    auto context = out.values<std::uint8_t>("context");
    auto target = out.values<std::uint8_t>("target");
    REQUIRE(context.size() == 4 * 16);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      auto begin = part->position(samples[i]);
      for (std::size_t j = 0; j < 16; ++j)
        CHECK(context[16 * i + j] == part->bytes()[begin + j]);
      CHECK(target[i] == part->bytes()[begin + 16]);
    }
    CHECK_FALSE(part->fetch(std::vector<std::uint64_t>{part->size()}, out).has_value());
    CHECK_THROWS_AS((void)part->position(part->size()), exception);
  }
}

TEST_CASE("no byte belongs to windows of both parts") {
  auto [training, held_out] = text_of(12'345, 5);
  std::set<std::uint64_t> bytes;
  for (std::uint64_t i = 0; i < training->size(); ++i)
    for (std::uint64_t j = 0; j <= 5; ++j)
      bytes.insert(training->position(i) + j);
  for (std::uint64_t i = 0; i < held_out->size(); ++i)
    for (std::uint64_t j = 0; j <= 5; ++j)
      REQUIRE_FALSE(bytes.contains(held_out->position(i) + j));
  CHECK(training->bytes().data() == held_out->bytes().data());
}

TEST_CASE("parts, contexts and texts have distinct fingerprints") {
  std::set<std::string> prints;
  for (std::size_t size : {5'000u, 5'001u})
    for (std::size_t context : {3u, 4u}) {
      auto text = text_of(size, context);
      prints.insert(text.training->fingerprint());
      prints.insert(text.held_out->fingerprint());
      CHECK(text_of(size, context).training->fingerprint() == text.training->fingerprint());
    }
  CHECK(prints.size() == 8);
}
