#include <troupe/messages/packed_texts.hpp>

#include <doctest/doctest.h>
#include <vector>

using namespace troupe;

namespace {

std::vector<std::string> unpacked(const std::string& packed) {
  std::vector<std::string> result{"what was there before"};
  REQUIRE(unpack_texts(packed, result));
  return result;
}

bool is_refused(const std::string& packed) {
  std::vector<std::string> ignored;
  return !unpack_texts(packed, ignored);
}

} // namespace

TEST_CASE("texts of any length and content come back as they were packed") {
  const std::vector<std::vector<std::string>> samples{
      {},
      {""},
      {"", "", ""},
      {"a", std::string("\0\x80\xff", 3), ""},
      {std::string(127, 'x'), std::string(128, 'y'), std::string(16'383, 'z'), std::string(16'384, 'w'), "end"},
  };
  for (const auto& texts : samples)
    CHECK(unpacked(pack_texts(texts)) == texts);
}

TEST_CASE("a short text takes a byte more than its own, and one from 128 bytes on two") {
  CHECK(pack_texts({"eleven char"}).size() == 12);
  CHECK(pack_texts({std::string(128, 'x')}).size() == 130);
}

TEST_CASE("a text that is cut off, or whose length has no end, is refused") {
  const auto whole = pack_texts({std::string(200, 'x')});
  for (std::size_t size = 1; size < whole.size(); ++size)
    CHECK(is_refused(whole.substr(0, size)));
  CHECK(is_refused(std::string(20, '\xff')));
  // Of more bytes than there are, whatever they are added to.
  CHECK(is_refused("\xff\xff\xff\xff\xff\xff\xff\xff\x7f"));
}
