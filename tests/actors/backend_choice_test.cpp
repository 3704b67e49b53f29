#include <troupe/actors/decisions/backend_choice.hpp>

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

TEST_CASE("NCCL by name is a matter of GPUs: what lies in host memory goes as it would without") {
  for (const auto& nodes : {std::vector<std::uint32_t>{0}, {3, 3}, {0, 1, 2}, {0, 0, 1}})
    CHECK(chosen(backend_mode::nccl, nodes) == chosen(backend_mode::automatic, nodes));
}

TEST_CASE("gradients go from GPU to GPU where each rank has one to itself, and through the host where not") {
  using collectives::device_offer;
  const auto chosen = [](const std::vector<device_offer>& ranks, gpu_gradients mode = gpu_gradients::automatic) {
    const auto choice = choose_device_backend(mode, ranks).value();
    CHECK_FALSE(choice.reason.empty());
    return choice.backend;
  };
  const std::string nccl = "NCCL 2.28.9";
  CHECK(chosen({{"GPU-a", nccl}}) == device_backend::self);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", nccl}}) == device_backend::nccl);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", nccl}, {"GPU-a", nccl}}) == device_backend::staged);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", ""}}) == device_backend::staged);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", "NCCL 2.27.3"}}) == device_backend::staged);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", nccl}}, gpu_gradients::by_host) == device_backend::staged);
  const std::vector<device_offer> sharing = {{"GPU-a", nccl}, {"GPU-b", nccl}, {"GPU-a", nccl}};
  CHECK(choose_device_backend(gpu_gradients::automatic, sharing)->reason.find("ranks 0 and 2 share a GPU") !=
        std::string::npos);
}

TEST_CASE("NCCL by name is NCCL, or an error that says whose is missing") {
  const std::string nccl = "NCCL 2.28.9";
  const auto choose = [](const std::vector<collectives::device_offer>& ranks) {
    return choose_device_backend(gpu_gradients::by_nccl, ranks);
  };
  CHECK(choose({{"GPU-a", nccl}})->backend == device_backend::self);
  CHECK(choose({{"GPU-a", nccl}, {"GPU-b", nccl}})->backend == device_backend::nccl);
  // Whether two ranks may share a GPU depends on its version, and is its to say.
  CHECK(choose({{"GPU-a", nccl}, {"GPU-a", nccl}})->backend == device_backend::nccl);
  for (const auto& [theirs, why] :
       {std::pair{"", "rank 1 has no NCCL"}, {"NCCL 2.27.3", "rank 0 has NCCL 2.28.9 and rank 1 NCCL 2.27.3"}}) {
    const auto refused = choose({{"GPU-a", nccl}, {"GPU-b", theirs}});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == errc::unsatisfiable);
    CHECK(refused.error().message.find(why) != std::string::npos);
  }
}
