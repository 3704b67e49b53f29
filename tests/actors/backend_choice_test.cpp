#include <troupe/actors/backend_choice.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

std::vector<worker_place> on_nodes(const std::vector<std::uint32_t>& nodes) {
  std::vector<worker_place> result;
  for (std::uint32_t i = 0; i < nodes.size(); ++i)
    result.push_back({{i}, {i}, nodes[i], 0, 0});
  return result;
}

backend_kind chosen(backend_mode mode, const std::vector<std::uint32_t>& nodes) {
  auto choice = choose_backend(mode, on_nodes(nodes));
  REQUIRE(choice);
  CHECK_FALSE(choice->reason.empty());
  return choice->backend;
}

} // namespace

TEST_CASE("the backend follows from where the workers are") {
  CHECK(chosen(backend_mode::automatic, {0}) == backend_kind::self);
  CHECK(chosen(backend_mode::automatic, {3, 3}) == backend_kind::shm);
  CHECK(chosen(backend_mode::automatic, {0, 1, 2}) == backend_kind::gloo);
  CHECK(chosen(backend_mode::automatic, {0, 0, 1}) == backend_kind::hierarchical);
  CHECK(chosen(backend_mode::automatic, std::vector<std::uint32_t>(64)) == backend_kind::shm);
  CHECK(chosen(backend_mode::automatic, std::vector<std::uint32_t>(65)) == backend_kind::gloo);
}

TEST_CASE("a backend can be asked for where it can be had") {
  CHECK(chosen(backend_mode::gloo, {0, 0}) == backend_kind::gloo);
  CHECK(chosen(backend_mode::shm, {0, 0}) == backend_kind::shm);
  CHECK(chosen(backend_mode::hierarchical, {0, 1}) == backend_kind::hierarchical);
  for (auto mode : {backend_mode::gloo, backend_mode::shm, backend_mode::hierarchical})
    CHECK(chosen(mode, {0}) == backend_kind::self);
  const auto refused = [](backend_mode mode, const std::vector<std::uint32_t>& nodes, const std::string& advice) {
    auto choice = choose_backend(mode, on_nodes(nodes));
    REQUIRE_FALSE(choice);
    CHECK(choice.error().code == errc::invalid_argument);
    CHECK(choice.error().message.find(advice) != std::string::npos);
  };
  refused(backend_mode::shm, {0, 1}, "hierarchical");
  refused(backend_mode::hierarchical, {0, 0}, "shm");
  refused(backend_mode::shm, std::vector<std::uint32_t>(65), "gloo");
}

TEST_CASE("gradients go from GPU to GPU where each rank has one to itself, and through the host where not") {
  using collectives::device_offer;
  const auto chosen = [](const std::vector<device_offer>& ranks, backend_mode mode = backend_mode::automatic) {
    const auto choice = choose_device_backend(mode, ranks);
    CHECK_FALSE(choice.reason.empty());
    return choice.backend;
  };
  const std::string nccl = "NCCL 2.28.9";
  CHECK(chosen({{"GPU-a", nccl}}) == device_backend::self);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", nccl}}) == device_backend::nccl);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", nccl}, {"GPU-a", nccl}}) == device_backend::staged);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", ""}}) == device_backend::staged);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", "NCCL 2.27.3"}}) == device_backend::staged);
  for (auto mode : {backend_mode::gloo, backend_mode::shm, backend_mode::hierarchical})
    CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", nccl}}, mode) == device_backend::staged);
  const std::vector<device_offer> sharing = {{"GPU-a", nccl}, {"GPU-b", nccl}, {"GPU-a", nccl}};
  CHECK(choose_device_backend(backend_mode::automatic, sharing).reason.find("ranks 0 and 2 share a GPU") !=
        std::string::npos);
}
