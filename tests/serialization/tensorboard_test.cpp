#include <troupe/serialization/interchange/tensorboard.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

using namespace troupe;
using namespace troupe::serialization;

namespace {

template <class T>
T take(std::string_view& from) {
  T result{};
  REQUIRE(from.size() >= sizeof(T));
  std::memcpy(&result, from.data(), sizeof(T));
  from.remove_prefix(sizeof(T));
  return result;
}

std::uint32_t masked(std::string_view data) {
  const auto crc = crc32c(std::as_bytes(std::span{data}));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/// The event in a record, whose framing is checked.
std::string_view event_in(std::string_view record) {
  const auto head = record.substr(0, 8);
  const auto size = take<std::uint64_t>(record);
  CHECK(take<std::uint32_t>(record) == masked(head));
  REQUIRE(record.size() == size + 4);
  const auto event = record.substr(0, size);
  record.remove_prefix(size);
  CHECK(take<std::uint32_t>(record) == masked(event));
  return event;
}

std::uint64_t take_varint(std::string_view& from) {
  std::uint64_t result = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<std::uint8_t>(from);
    result |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80)
      return result;
  }
}

/// The fields of a protobuf message: numbers as they are, what has a length as text.
struct fields {
  std::map<std::uint64_t, std::uint64_t> numbers;
  std::multimap<std::uint64_t, std::string_view> texts;

  explicit fields(std::string_view message) {
    while (!message.empty()) {
      const auto key = take_varint(message);
      if ((key & 7) == 0) {
        numbers[key >> 3] = take_varint(message);
      } else if ((key & 7) == 1) {
        numbers[key >> 3] = take<std::uint64_t>(message);
      } else if ((key & 7) == 5) {
        numbers[key >> 3] = take<std::uint32_t>(message);
      } else {
        REQUIRE((key & 7) == 2);
        const auto size = take_varint(message);
        REQUIRE(message.size() >= size);
        texts.emplace(key >> 3, message.substr(0, size));
        message.remove_prefix(size);
      }
    }
  }

  [[nodiscard]] std::string_view text(std::uint64_t field) const {
    REQUIRE(texts.count(field) == 1);
    return texts.find(field)->second;
  }
};

constexpr auto when = wall_time{std::chrono::milliseconds{1'795'689'600'250}};

} // namespace

TEST_CASE("checksums are those of RFC 3720") {
  const auto of = [](std::string_view text) { return crc32c(std::as_bytes(std::span{text})); };
  CHECK(of("") == 0);
  CHECK(of("123456789") == 0xe3069283);
  CHECK(of(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(of(std::string(32, '\xff')) == 0x62a8ab43);
}

TEST_CASE("a file begins with the version of its events") {
  const auto event = fields{event_in(tensorboard_version_record(when))};
  CHECK(std::abs(std::bit_cast<double>(event.numbers.at(1)) - 1'795'689'600.25) < 1e-6);
  CHECK(event.text(3) == "brain.Event:2");
}

TEST_CASE("a start declares a step and later ones void") {
  const auto event = fields{event_in(tensorboard_start_record(when, 301))};
  CHECK(event.numbers.at(2) == 301);
  CHECK(fields{event.text(7)}.numbers.at(1) == 1);
}

TEST_CASE("scalars have names and values, whatever these are") {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const auto event = fields{
      event_in(tensorboard_scalars_record(when, 300'000'000'000, {{"loss", 0.25}, {"nan", nan}, {"\xffü", 1e300}}))};
  CHECK(event.numbers.at(2) == 300'000'000'000);
  const auto summary = fields{event.text(5)};
  std::map<std::string, float> found;
  for (auto [i, end] = summary.texts.equal_range(1); i != end; ++i) {
    const auto value = fields{i->second};
    found.emplace(value.text(1), std::bit_cast<float>(static_cast<std::uint32_t>(value.numbers.at(2))));
  }
  REQUIRE(found.size() == 3);
  CHECK(found.at("loss") == 0.25f);
  CHECK(found.at("nan") != found.at("nan"));
  // Replaced by U+FFFD.
  CHECK(found.at("\xef\xbf\xbdü") == std::numeric_limits<float>::infinity());
}
