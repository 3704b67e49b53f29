#include "nccl/group.hpp"
#include "nccl/library.hpp"

#include <fake_device.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>

// Tests NVIDIA's own NCCL, where it is installed, as far as it works without a GPU.

using namespace troupe;
using namespace troupe::collectives;

namespace {

std::shared_ptr<const nccl::library> installed() {
  // Set before the library reads it.
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  auto opened = nccl::open_library();
  if (opened)
    return *opened;
  std::printf("SKIP: %s\n", opened.error().message.c_str());
  CHECK(opened.error().message.find("NCCL") != std::string::npos);
  return nullptr;
}

} // namespace

TEST_CASE("NCCL reports its version and makes ids with the address of the named interface") {
  const auto library = installed();
  if (library == nullptr)
    return;
  CHECK(find_nccl().value() == "NCCL " + nccl::version_text(library->version));
  CHECK(library->can_register() == (library->version >= 21900));
  CHECK(library->can_shrink() == (library->version >= 22807));
  nccl::unique_id ids[2] = {};
  for (auto& id : ids)
    REQUIRE(library->get_unique_id(&id) == nccl::success);
  CHECK(std::memcmp(&ids[0], &ids[1], sizeof(ids[0])) != 0);
  // After eight random bytes comes a sockaddr_in: 127.0.0.1.
  CHECK(std::memcmp(ids[0].internal + 12, "\x7f\0\0\1", 4) == 0);
}

TEST_CASE("a group that NCCL cannot form fails with NCCL's own message") {
  const auto library = installed();
  if (library == nullptr)
    return;
  const auto real = find_devices();
  if (real && !real->empty()) {
    std::printf("SKIP: here is a GPU, with which groups are formed (device_gpu_test)\n");
    return;
  }
  nccl_options options;
  options.world_size = 1;
  const auto made = make_nccl_group(
      library, std::make_shared<collectives::testing::fake_device>(collectives::testing::fake_device::options{}),
      std::move(options),
      [](std::string mine) -> expected<std::vector<std::string>> { return std::vector{std::move(mine)}; });
  REQUIRE_FALSE(made);
  CAPTURE(made.error().message);
  CHECK(made.error().code == errc::device_error);
  CHECK(made.error().message.find("ncclCommInitRankConfig: unhandled cuda error") != std::string::npos);
  CHECK(made.error().message.find("Cuda failure") != std::string::npos);
}
