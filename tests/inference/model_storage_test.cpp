#include <troupe/inference/model_storage.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::inference;

TEST_CASE("a stored model is read back unchanged, and one that is too large is refused") {
  std::vector<std::byte> storage(20, std::byte{7});
  std::vector<std::byte> model{std::byte{1}, std::byte{2}, std::byte{3}};
  REQUIRE(put_model(model, storage));
  auto got = get_model(storage).value();
  CHECK(std::vector<std::byte>(got.begin(), got.end()) == model);
  CHECK(storage.back() == std::byte{0});
  CHECK(put_model(std::vector<std::byte>(12), storage));
  CHECK(put_model(std::vector<std::byte>(13), storage).error().code == errc::unsatisfiable);
  storage[0] = std::byte{13};
  CHECK(get_model(storage).error().code == errc::damaged);
  CHECK(get_model(std::span{storage}.first(7)).error().code == errc::damaged);
}
