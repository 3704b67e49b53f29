#include <troupe/actors/decisions/host_comparison.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

std::vector<std::string> compare_texts(const std::string& ours, const std::string& theirs) {
  return ours == theirs ? std::vector<std::string>{} : std::vector<std::string>{ours + " / " + theirs};
}

worker_ready ready(std::uint32_t worker, const std::string& numerics) {
  worker_ready result;
  result.worker = {worker};
  result.host = "host-" + std::to_string(worker);
  result.build_id = "c0ffee";
  result.numerics = numerics;
  return result;
}

/// Worker 0 was admitted, worker 1 was not yet.
worker_table two_workers() {
  worker_table result;
  for (std::uint32_t i = 0; i < 2; ++i)
    result.add({{i}, {i}, 0, i, 2}, {}, {});
  result.find({0})->numerics = "v3";
  result.find({0})->host = "host-0";
  return result;
}

} // namespace

TEST_CASE("a worker is compared with the first that was admitted") {
  auto hosts = host_comparison{{"c0ffee", false, compare_texts}};
  const auto workers = two_workers();
  CHECK_FALSE(hosts.refuse(*workers.find({1}), ready(1, "v3"), workers, ""));
  const auto refused = hosts.refuse(*workers.find({1}), ready(1, "v4"), workers, "");
  REQUIRE(refused);
  CHECK(refused->reason.code == errc::mismatch);
  CHECK(refused->reason.message.find(
            "worker 1 (rank 1) on host-1 computes differently from worker 0 (rank 0) on host-0") != std::string::npos);
  CHECK(refused->why == "numerics fingerprints differ");
  CHECK(hosts.is_exact());
}

TEST_CASE("the checkpoint's host comes before those of the workers") {
  auto hosts = host_comparison{{"c0ffee", false, compare_texts}};
  const auto workers = two_workers();
  CHECK_FALSE(hosts.refuse(*workers.find({1}), ready(1, "v2"), workers, "v2"));
  CHECK(hosts.refuse(*workers.find({1}), ready(1, "v3"), workers, "v2"));
}

TEST_CASE("other libraries than the checkpoint's are refused with the option that allows them") {
  const auto* before = R"({"cpu.avx2":"yes","object.libm.so.6":"ab"})";
  const auto* now = R"({"cpu.avx2":"yes","object.libm.so.6":"cd"})";
  const auto* other_host = R"({"cpu.avx2":"no","object.libm.so.6":"cd"})";
  auto workers = two_workers();
  workers.find({0})->numerics = now;
  auto strict = host_comparison{{"c0ffee", false, compare_texts}};
  const auto refused = strict.refuse(*workers.find({1}), ready(1, now), workers, before);
  REQUIRE(refused);
  CHECK(refused->reason.message.ends_with("--allow-changed libraries"));
  CHECK_FALSE(strict.refuse(*workers.find({1}), ready(1, other_host), workers, before)
                  ->reason.message.ends_with("--allow-changed libraries"));
  auto allows = host_comparison{{"c0ffee", false, compare_texts, true}};
  CHECK_FALSE(allows.refuse(*workers.find({1}), ready(1, now), workers, before));
  // Another host, and libraries that the workers do not share, are refused all the same.
  CHECK(allows.refuse(*workers.find({1}), ready(1, other_host), workers, before));
  CHECK(allows.refuse(*workers.find({1}), ready(1, before), workers, before));
}

TEST_CASE("mixed hosts may be allowed, another build never is") {
  auto hosts = host_comparison{{"c0ffee", true, compare_texts}};
  const auto workers = two_workers();
  CHECK_FALSE(hosts.refuse(*workers.find({1}), ready(1, "v4"), workers, ""));
  CHECK_FALSE(hosts.is_exact());
  auto other = ready(1, "v3");
  other.build_id = "decaf";
  const auto refused = hosts.refuse(*workers.find({1}), other, workers, "");
  REQUIRE(refused);
  CHECK(refused->reason.code == errc::program_mismatch);
}
