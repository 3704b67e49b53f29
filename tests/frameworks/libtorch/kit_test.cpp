#include "torch_runs.hpp"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

/// The run on one worker, which those on 2, 3 and 8, one that is interrupted and one that loses a worker equal.
json check_bits_of(torch_runs& here, const std::string& function) {
  const json how{{"function", function}};
  const auto with = [&](json more) {
    more.update(how);
    return more;
  };
  const auto one = here.trained("one", with({{"workers", 1}}));
  const auto result = here.last;
  for (const auto workers : {2, 3, 8}) {
    CAPTURE(workers);
    CHECK(here.trained("on-" + std::to_string(workers), with({{"workers", workers}})) == one);
    CHECK(here.last["metrics"] == result["metrics"]);
  }
  (void)here.trained("halves", with({{"workers", 2}, {"steps", 11}}));
  CHECK(here.trained("halves", how) == one);
  CHECK(here.trained("killed", with({{"workers", 3}, {"options", {{"kill_at", 9}}}})) == one);
  return result["metrics"];
}

} // namespace

TEST_CASE("bf16, parameter groups, frozen layers, a schedule, clipping, a mean over weights and averaged weights keep "
          "the bits") {
  torch_runs here;
  const auto metrics = check_bits_of(here, "kit");
  // Of the first group: at its end the schedule is near a tenth.
  CHECK(metrics["rate"].get<double>() == doctest::Approx(0.002).epsilon(0.01));
  // It learns: guessing has a loss of 1.1.
  CHECK(metrics["loss"].get<double>() < 0.6);
  CHECK(metrics["average_loss"].get<double>() < 0.8);

  const auto averaged = here.run("one", {{"predict", "averaged"}});
  INFO(averaged.err);
  CHECK(averaged.status == exit_status{0, {}});
  const auto right = averaged.err.find("right: ");
  REQUIRE(right != std::string::npos);
  CHECK(std::stoi(averaged.err.substr(right + 7)) > 120);
}

TEST_CASE("a step whose scaled gradient overflows is left out by every worker, and the scale finds its size") {
  torch_runs here;
  const auto metrics = check_bits_of(here, "loss_scale");
  // At the beginning, and again where the scale has grown.
  CHECK(metrics["skipped"].get<double>() >= 2);
  CHECK(metrics["skipped"].get<double>() < 16);
  CHECK(metrics["loss"].get<double>() < 1.05);

  const auto averaged = here.run("one", {{"predict", "averaged"}});
  CHECK(averaged.status == exit_status{1, {}});
  CHECK_MESSAGE(averaged.err.find("has no averages of this module's parameters") != std::string::npos, averaged.err);
}
