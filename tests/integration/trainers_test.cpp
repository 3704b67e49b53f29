#include "scratch_runs.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/messages/trainer.hpp>
#include <troupe/result.hpp>
#include <troupe/runtime/node_host.hpp>

#include <caf/all.hpp>

#include <doctest/doctest.h>
#include <optional>
#include <string>

// Several trainers in one actor system.

using namespace troupe::testing;

namespace {

/// An actor system whose trainers lease the CPUs of one node. Workers are processes of charlm.
class shared_system {
 public:
  scratch_runs here;

  explicit shared_system(std::uint32_t cpus) {
    troupe::init_meta_objects();
    troupe::runtime::node_options options;
    options.keys = here.keys();
    options.cpus = cpus;
    node_.emplace(troupe::value_or_throw(troupe::runtime::node_host::start(options)));
    cluster_.nodes = {troupe::to_string(node_->address())};
    cluster_.keys = here.keys();
    troupe::value_or_throw(troupe::prepare(config_, cluster_));
    system_.emplace(config_);
  }

  [[nodiscard]] troupe::trainer_config describe(const std::string& name, std::uint64_t seed) const {
    troupe::trainer_config result;
    result.run.name = name;
    result.run.storage_path = here.path("runs");
    result.run.seed = seed;
    result.run.steps = 1'000'000;
    result.cluster = cluster_;
    result.scaling.resources_per_worker.cpus = 1;
    result.scaling.wait_for_resources = std::chrono::minutes{10};
    result.config = {{"embedding", 16}, {"hidden", 32}, {"batch", 64}};
    result.options = {{"text", here.text().string()}, {"evaluate_every", 1'000'000}};
    return result;
  }

  [[nodiscard]] troupe::actors::trainer_actor spawn(troupe::trainer_config config) {
    return troupe::spawn_trainer(*system_, troupe::function{"train", std::function<void(troupe::train_context&)>{}},
                                 std::move(config), {}, charlm_program());
  }

  [[nodiscard]] caf::actor_system& system() { return *system_; }

 private:
  troupe::cluster_config cluster_;
  std::optional<troupe::runtime::node_host> node_;
  caf::actor_system_config config_;
  std::optional<caf::actor_system> system_;
};

/// A fit under way.
class fit {
 public:
  fit(shared_system& all, troupe::trainer_config config)
      : name_(config.run.name), self_(all.system()), trainer_(all.spawn(std::move(config))) {
    caf::scoped_actor& self = self_;
    answer_.emplace(self->request(trainer_, caf::infinite, troupe::fit_request{}));
  }

  void stop() { self_->send(trainer_, troupe::stop_request{false}); }

  [[nodiscard]] troupe::run_result wait() {
    troupe::run_result result;
    answer_->receive([&](troupe::run_result& x) { result = std::move(x); },
                     [&](const caf::error& reason) { FAIL(name_ << ": " << caf::to_string(reason)); });
    INFO(result.reason.message);
    REQUIRE(result.status != troupe::run_status::failed);
    return result;
  }

 private:
  std::string name_;
  caf::scoped_actor self_;
  troupe::actors::trainer_actor trainer_;
  using request = decltype(std::declval<caf::scoped_actor&>()->request(
      std::declval<const troupe::actors::trainer_actor&>(), caf::infinite, troupe::fit_request{}));
  std::optional<request> answer_;
};

/// The state of a run that trains for these steps with nobody else around.
std::string state_alone(std::uint64_t seed, std::uint64_t steps) {
  shared_system all{1};
  auto config = all.describe("alone", seed);
  config.run.stop_after = steps;
  return fit{all, std::move(config)}.wait().state_sha256;
}

} // namespace

TEST_CASE("two trainers of one actor system train at the same time, each with the bits that it has alone") {
  shared_system all{2};
  auto longer = fit{all, all.describe("longer", 1)};
  REQUIRE(becomes_true([&] { return all.here.last_step("longer") > 0; }));
  auto config = all.describe("shorter", 2);
  config.run.stop_after = 40;
  const auto shorter = fit{all, std::move(config)}.wait();
  const auto before = all.here.last_step("longer");
  REQUIRE(becomes_true([&] { return all.here.last_step("longer") > before; }));
  longer.stop();
  const auto stopped = longer.wait();
  CHECK(shorter.steps == 40);
  CHECK(shorter.state_sha256 == state_alone(2, 40));
  CHECK(stopped.state_sha256 == state_alone(1, stopped.steps));
  CHECK(shorter.state_sha256 != stopped.state_sha256);
}

TEST_CASE("a trainer waits for what another one of its actor system has leased") {
  shared_system all{1};
  auto first = fit{all, all.describe("first", 1)};
  REQUIRE(becomes_true([&] { return all.here.last_step("first") > 0; }));
  auto config = all.describe("second", 2);
  config.run.stop_after = 20;
  auto second = fit{all, std::move(config)};
  const auto before = all.here.last_step("first");
  REQUIRE(becomes_true([&] { return all.here.last_step("first") > before + 50; }));
  CHECK_FALSE(std::filesystem::exists(all.here.run_directory("second")));
  first.stop();
  CHECK(first.wait().status == troupe::run_status::stopped);
  CHECK(second.wait().state_sha256 == state_alone(2, 20));
}
