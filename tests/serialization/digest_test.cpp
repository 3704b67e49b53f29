#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/digest.hpp>

#include "scratch.hpp"

#include <doctest/doctest.h>

#include <cstring>

using namespace troupe;
using namespace troupe::serialization;

namespace {

void append_u64(std::string& text, std::uint64_t value) {
  for (int i = 0; i < 8; ++i)
    text += static_cast<char>(value >> (8 * i));
}

} // namespace

TEST_CASE("SHA-256 yields the digests of the standard") {
  CHECK(sha256_hex({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex(bytes_of("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("SHA-256 in pieces equals SHA-256 at once") {
  auto digest = sha256{};
  digest.update(bytes_of("a"));
  digest.update({});
  digest.update(bytes_of("bc"));
  CHECK(digest.hex_digest() == sha256_hex(bytes_of("abc")));
}

TEST_CASE("XXH3 yields the reference's value for no bytes") {
  CHECK(xxh3({}) == 0x2d06800538d394c2);
  CHECK(xxh3(bytes_of("a")) != xxh3(bytes_of("b")));
}

TEST_CASE("HMAC yields the digest of RFC 4231's second test") {
  auto digest = hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"));
  CHECK(to_hex(digest) == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST_CASE("HMAC accepts an empty key and an empty message") {
  CHECK(to_hex(hmac_sha256({}, {})) == "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST_CASE("secrets compare equal only if they are") {
  CHECK(equal_constant_time(bytes_of("secret"), bytes_of("secret")));
  CHECK_FALSE(equal_constant_time(bytes_of("secret"), bytes_of("secreT")));
  CHECK_FALSE(equal_constant_time(bytes_of("secret"), bytes_of("secre")));
  CHECK(equal_constant_time({}, {}));
}

TEST_CASE("random digits have the requested length and differ") {
  CHECK(random_hex(0).empty());
  auto text = random_hex(16);
  CHECK(text.size() == 32);
  CHECK(text.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(text != random_hex(16));
}

TEST_CASE("a state's identity is the SHA-256 of exactly the documented bytes") {
  auto data = std::vector<float>{1.0f, 2.0f};
  auto byte = std::byte{5};
  auto tensors = std::vector<tensor_view>{
      {{"w", dtype::f32, {2, 1}}, reinterpret_cast<std::byte*>(data.data())},
      {{"b", dtype::u8, {}}, &byte},
  };
  auto text = std::string{};
  append_u64(text, 1);
  text += "b\x07";
  append_u64(text, 0);
  text += '\x05';
  append_u64(text, 1);
  text += "w\x01";
  append_u64(text, 2);
  append_u64(text, 2);
  append_u64(text, 1);
  text.append(reinterpret_cast<const char*>(data.data()), 8);
  CHECK(state_sha256(tensors, "") == sha256_hex(bytes_of(text)));
  CHECK(state_sha256(tensors, "{}") == sha256_hex(bytes_of(text)));
  append_u64(text, 7);
  text += R"({"a":1})";
  CHECK(state_sha256(tensors, R"({"a":1})") == sha256_hex(bytes_of(text)));
}

TEST_CASE("a state's identity does not depend on the order of its tensors") {
  auto state = sample_state{assorted_specs()};
  auto views = state.views();
  auto before = state_sha256(views, "{}");
  std::swap(views.front(), views.back());
  CHECK(state_sha256(views, "{}") == before);
  views.front().data[0] ^= std::byte{1};
  CHECK(state_sha256(views, "{}") != before);
}

TEST_CASE("a stored state has the identity of the original state, however it was cut") {
  auto state = sample_state{assorted_specs()};
  auto content = sample_manifest();
  auto identity = state_sha256(state.views(), content.values_json);
  for (auto parts : {1u, 3u, 7u, 200u}) {
    CAPTURE(parts);
    auto scratch = scratch_directory{};
    auto path = save(scratch.path(), state, content, parts);
    REQUIRE(path);
    auto stored = checkpoint::open(*path);
    REQUIRE(stored);
    auto found = state_sha256(*stored);
    REQUIRE(found);
    CHECK(*found == identity);
  }
}
