#include <troupe/collectives/device_offer.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::collectives;

TEST_CASE("every rank learns of every other's device") {
  const device_offer mine{"GPU-0a", "NCCL 2.28.9"};
  const device_offer other{"GPU-0b", ""};
  std::string others;
  static_cast<void>(exchange_device_offers({3}, other, [&](std::string text) {
    others = std::move(text);
    return expected<std::vector<std::string>>{fail(errc::aborted, "only to see it")};
  }));
  const auto all = exchange_device_offers({3}, mine, [&](std::string text) {
    return expected<std::vector<std::string>>{{std::move(text), others}};
  });
  REQUIRE(all);
  CHECK(*all == std::vector<device_offer>{mine, other});
}

TEST_CASE("an offer from another generation is rejected, and the exchange's error is passed on") {
  const auto answer = [](std::vector<std::string> blobs) {
    return [blobs = std::move(blobs)](std::string) { return expected<std::vector<std::string>>{blobs}; };
  };
  CHECK(exchange_device_offers({3}, {}, answer({"device1 2\nGPU-0a\n\n"})).error().code == errc::mismatch);
  CHECK(exchange_device_offers({3}, {}, answer({"nccl1 3"})).error().code == errc::mismatch);
  const auto lost = exchange_device_offers(
      {3}, {}, [](std::string) { return expected<std::vector<std::string>>{fail(errc::aborted, "lost")}; });
  CHECK(lost.error() == error{errc::aborted, "lost"});
}
