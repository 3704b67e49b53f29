// Trains and serves in one process: predictions come from the newest checkpoint of the run under way.
//   train_and_serve [PORT] [STEPS]
//   curl -d '{"inputs": [0.5]}' http://localhost:8080/v1/predict
#include "line.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/serving/checkpoint_follower.hpp>
#include <troupe/serving/server.hpp>

#include <caf/all.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace troupe;

/// y for an x, by a line of the run.
class line_predictor final : public inference::predictor {
 public:
  explicit line_predictor(std::vector<float> line) : line_(std::move(line)) {}

  const std::vector<std::string>& outputs() const noexcept override { return outputs_; }

  expected<void> predict(data::batch& rows, std::span<float> out) override {
    const auto x = rows.values<float>("x");
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = line_[0] * x[i] + line_[1];
    return {};
  }

 private:
  std::vector<float> line_;
  std::vector<std::string> outputs_{"y"};
};

expected<serving::served_model> load(const serialization::checkpoint& source) {
  std::vector<float> line(2);
  TROUPE_TRY(source.read_tensor("line", std::as_writable_bytes(std::span{line})));
  return serving::served_model{std::make_unique<line_predictor>(std::move(line)), {{"x", dtype::f32, {}, {}}}};
}

int train_and_serve(caf::actor_system& system, const function& train, const trainer_config& config,
                    std::uint16_t port) {
  const auto directory = config.run.storage_path / config.run.name;
  auto server = std::make_shared<serving::server>(
      serving::server_config{.name = "line", .listen = {.port = port}},
      // The follower tells of checkpoints: nobody has to look.
      serving::checkpoint_models{
          .path = directory, .load = load, .poll_every = {}, .absent = serving::absent_run::wait});
  value_or_throw(server->start());
  std::printf("serving at %s\n", server->url().c_str());
  std::fflush(stdout);

  auto self = caf::scoped_actor{system};
  auto trainer = spawn_trainer(system, train, config);
  auto follower = serving::spawn_checkpoint_follower(system, server);
  self->send(trainer, follower);
  auto code = 1;
  self->request(trainer, caf::infinite, fit_request{})
      .receive([&](const run_result& result) { code = result.exit_code(); },
               [](const caf::error& reason) { std::fprintf(stderr, "%s\n", caf::to_string(reason).c_str()); });
  // The last checkpoint may be on its way.
  if (const auto last = server->reload())
    std::printf("trained, and served step %llu\n", static_cast<unsigned long long>(last->step));
  self->send_exit(follower, caf::exit_reason::user_shutdown);
  (void)server->stop(std::chrono::seconds{5});
  return code;
}

} // namespace

int main(int argc, char** argv) {
  auto train = function{"train", example::train};
  run_if_worker({train}); // first: in a worker process this trains and does not return
  init_meta_objects();
  caf::actor_system_config system_config;
  trainer_config config;
  config.scaling.num_workers = 2;
  config.run.name = "train_and_serve";
  config.run.resume = resume_mode::restart;
  config.run.steps = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2000;
  config.checkpoint.every_steps = 100;
  try {
    value_or_throw(prepare(system_config, config.cluster)); // before the system is created
    caf::actor_system system{system_config};
    return train_and_serve(system, train, config, static_cast<std::uint16_t>(argc > 1 ? std::atoi(argv[1]) : 8080));
  } catch (const std::exception& x) {
    std::fprintf(stderr, "train_and_serve: %s\n", x.what());
    return 1;
  }
}
