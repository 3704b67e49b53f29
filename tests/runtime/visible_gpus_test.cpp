#include "node/visible_gpus.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::runtime;

namespace {

using names = std::vector<std::string>;

/// A directory like /dev on a host with this many GPUs.
class device_directory {
 public:
  explicit device_directory(const names& numbers) {
    auto pattern = (std::filesystem::temp_directory_path() / "troupe-gpus-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    for (const auto& each : {"nvidiactl", "nvidia-uvm", "nvidia-modeset", "null", "nvidia"})
      std::ofstream{path_ / each};
    for (const auto& each : numbers)
      std::ofstream{path_ / ("nvidia" + each)};
  }
  ~device_directory() { std::filesystem::remove_all(path_); }

  [[nodiscard]] names visible(std::optional<std::string> variable) const { return visible_gpus(path_, variable); }

 private:
  std::filesystem::path path_;
};

/// Sets an environment variable during its lifetime.
class variable {
 public:
  variable(const char* name, const char* value) : name_(name) {
    if (const auto* old = std::getenv(name))
      old_ = old;
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~variable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

} // namespace

TEST_CASE("GPUs are counted by their device files, whatever their numbers") {
  CHECK(device_directory{{}}.visible({}).empty());
  CHECK(device_directory{{"0", "1"}}.visible({}) == names{"0", "1"});
  // A container may contain only the fourth device file; CUDA counts it as the first device.
  CHECK(device_directory{{"3"}}.visible({}) == names{"0"});
  CHECK(visible_gpus("/no/such/directory", {}).empty());
}

TEST_CASE("CUDA_VISIBLE_DEVICES is interpreted as by CUDA") {
  device_directory four{{"0", "1", "2", "3"}};
  CHECK(four.visible("").empty());
  CHECK(four.visible("2") == names{"2"});
  CHECK(four.visible("3,1") == names{"3", "1"});
  CHECK(four.visible(" 1 , 0 ") == names{"1", "0"});
  CHECK(four.visible("-1").empty());
  CHECK(four.visible("0,-1,2") == names{"0"});
  CHECK(four.visible("1,4,2") == names{"1"});
  CHECK(four.visible("0,x,2") == names{"0"});
  CHECK(four.visible("0,,2") == names{"0"});
  CHECK(four.visible("1,1").empty());
  CHECK(four.visible("NoDevFiles").empty());
  CHECK(four.visible("GPU-8932f937,MIG-77,0") == names{"GPU-8932f937", "MIG-77", "0"});
}

TEST_CASE("a node offers the requested number of GPUs, but none that CUDA_VISIBLE_DEVICES hides") {
  {
    variable hidden{"CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c"};
    CHECK(gpus_to_offer({}).value() == names{"GPU-a", "GPU-b", "GPU-c"});
    CHECK(gpus_to_offer(2).value() == names{"GPU-a", "GPU-b"});
    CHECK(gpus_to_offer(0).value().empty());
    auto reason = gpus_to_offer(4);
    REQUIRE_FALSE(reason);
    CHECK(reason.error().code == errc::invalid_argument);
    CHECK(reason.error().message.find("CUDA_VISIBLE_DEVICES=GPU-a,GPU-b,GPU-c selects only 3") != std::string::npos);
  }
  variable open{"CUDA_VISIBLE_DEVICES", nullptr};
  auto present = gpus_to_offer({}).value().size();
  CHECK(gpus_to_offer(static_cast<std::uint32_t>(present) + 1).value().size() == present + 1);
}
