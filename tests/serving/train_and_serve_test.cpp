#include <built.hpp>
#include <doctest/doctest.h>
#include <http_client.hpp>
#include <nlohmann/json.hpp>
#include <processes.hpp>

#include <cmath>
#include <set>
#include <string>

using namespace troupe::testing;

TEST_CASE("a run under way is served by its newest checkpoint") {
  const scratch_directory scratch;
  auto example = child_process{{{"/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", scratch.path().string(),
                                 built("bin/examples/train_and_serve"), "0", "100000"},
                                {{"TROUPE_KEYS", (scratch.path() / "keys").string()}}},
                               scratch.path() / "output"};
  REQUIRE(becomes_true([&] { return example.out().find('\n') != std::string::npos || !example.running(); }));
  REQUIRE(example.out().starts_with("serving at http://127.0.0.1:"));
  const auto port = static_cast<std::uint16_t>(std::stoul(example.out().substr(example.out().rfind(':') + 1)));
  std::set<std::uint64_t> steps;
  auto is_wrong = false;
  CHECK(becomes_true([&] {
    auto client = http_client{port};
    const auto found = client.exchange(http_request("POST", "/v1/predict", R"({"inputs": [0.0, 1.0]})"));
    if (!found || found->status == 503)
      return false;
    const auto document = nlohmann::json::parse(found->body);
    const auto step = document["model"]["step"].get<std::uint64_t>();
    is_wrong = is_wrong || (!steps.empty() && step < *steps.rbegin());
    steps.insert(step);
    return steps.size() >= 3;
  }));
  CHECK_FALSE(is_wrong);
  const auto status = example.wait();
  INFO(example.err());
  CHECK(status == exit_status{0, {}});
  CHECK(example.out().find("trained, and served step 100000\n") != std::string::npos);
}
