#include <troupe/actors/decisions/transport_choice.hpp>

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

transport_kind chosen(transport_mode mode, const std::vector<std::uint32_t>& nodes) {
  auto choice = choose_transport(mode, on_nodes(nodes));
  REQUIRE(choice);
  CHECK_FALSE(choice->reason.empty());
  return choice->transport;
}

} // namespace

TEST_CASE("the transport follows from where the workers are") {
  CHECK(chosen(transport_mode::automatic, {0}) == transport_kind::self);
  CHECK(chosen(transport_mode::automatic, {3, 3}) == transport_kind::shm);
  CHECK(chosen(transport_mode::automatic, {0, 1, 2}) == transport_kind::tcp);
  CHECK(chosen(transport_mode::automatic, {0, 0, 1}) == transport_kind::hierarchical);
  CHECK(chosen(transport_mode::automatic, std::vector<std::uint32_t>(256)) == transport_kind::shm);
  CHECK(chosen(transport_mode::automatic, std::vector<std::uint32_t>(257)) == transport_kind::tcp);
}

TEST_CASE("a transport can be asked for where it can be had") {
  CHECK(chosen(transport_mode::tcp, {0, 0}) == transport_kind::tcp);
  CHECK(chosen(transport_mode::shm, {0, 0}) == transport_kind::shm);
  CHECK(chosen(transport_mode::hierarchical, {0, 1}) == transport_kind::hierarchical);
  for (auto mode : {transport_mode::tcp, transport_mode::shm, transport_mode::hierarchical})
    CHECK(chosen(mode, {0}) == transport_kind::self);
  const auto refused = [](transport_mode mode, const std::vector<std::uint32_t>& nodes, const std::string& advice) {
    auto choice = choose_transport(mode, on_nodes(nodes));
    REQUIRE_FALSE(choice);
    CHECK(choice.error().code == errc::invalid_argument);
    CHECK(choice.error().message.find(advice) != std::string::npos);
  };
  refused(transport_mode::shm, {0, 1}, "hierarchical");
  refused(transport_mode::hierarchical, {0, 0}, "shm");
  refused(transport_mode::shm, std::vector<std::uint32_t>(257), "tcp");
}

TEST_CASE("NCCL by name is a matter of GPUs: what lies in host memory goes as it would without") {
  for (const auto& nodes : {std::vector<std::uint32_t>{0}, {3, 3}, {0, 1, 2}, {0, 0, 1}})
    CHECK(chosen(transport_mode::nccl, nodes) == chosen(transport_mode::automatic, nodes));
}

TEST_CASE("gradients go from GPU to GPU where each rank has one to itself, and through the host where not") {
  using collectives::device_offer;
  const auto chosen = [](const std::vector<device_offer>& ranks, gpu_gradients mode = gpu_gradients::automatic) {
    const auto choice = choose_device_transport(mode, ranks).value();
    CHECK_FALSE(choice.reason.empty());
    return choice.transport;
  };
  const std::string nccl = "NCCL 2.28.9";
  CHECK(chosen({{"GPU-a", nccl}}) == device_transport::self);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", nccl}}) == device_transport::nccl);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", nccl}, {"GPU-a", nccl}}) == device_transport::staged);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", ""}}) == device_transport::staged);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", "NCCL 2.27.3"}}) == device_transport::staged);
  CHECK(chosen({{"GPU-a", nccl}, {"GPU-b", nccl}}, gpu_gradients::by_host) == device_transport::staged);
  const std::vector<device_offer> sharing = {{"GPU-a", nccl}, {"GPU-b", nccl}, {"GPU-a", nccl}};
  CHECK(choose_device_transport(gpu_gradients::automatic, sharing)->reason.find("ranks 0 and 2 share a GPU") !=
        std::string::npos);
}

TEST_CASE("NCCL by name is NCCL, or an error that says whose is missing") {
  const std::string nccl = "NCCL 2.28.9";
  const auto choose = [](const std::vector<collectives::device_offer>& ranks) {
    return choose_device_transport(gpu_gradients::by_nccl, ranks);
  };
  CHECK(choose({{"GPU-a", nccl}})->transport == device_transport::self);
  CHECK(choose({{"GPU-a", nccl}, {"GPU-b", nccl}})->transport == device_transport::nccl);
  // Whether two ranks may share a GPU depends on its version, and is its to say.
  CHECK(choose({{"GPU-a", nccl}, {"GPU-a", nccl}})->transport == device_transport::nccl);
  for (const auto& [theirs, why] :
       {std::pair{"", "rank 1 has no NCCL"}, {"NCCL 2.27.3", "rank 0 has NCCL 2.28.9 and rank 1 NCCL 2.27.3"}}) {
    const auto refused = choose({{"GPU-a", nccl}, {"GPU-b", theirs}});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == errc::unsatisfiable);
    CHECK(refused.error().message.find(why) != std::string::npos);
  }
}
