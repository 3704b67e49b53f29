#include <troupe/inference/model_room.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::inference;

TEST_CASE("a stored model is read back unchanged, and one that is too large is refused") {
  std::vector<std::byte> room(20, std::byte{7});
  std::vector<std::byte> model{std::byte{1}, std::byte{2}, std::byte{3}};
  REQUIRE(put_model(model, room));
  auto got = get_model(room).value();
  CHECK(std::vector<std::byte>(got.begin(), got.end()) == model);
  CHECK(room.back() == std::byte{0});
  CHECK(put_model(std::vector<std::byte>(12), room));
  CHECK(put_model(std::vector<std::byte>(13), room).error().code == errc::unsatisfiable);
  room[0] = std::byte{13};
  CHECK(get_model(room).error().code == errc::damaged);
  CHECK(get_model(std::span{room}.first(7)).error().code == errc::damaged);
}
