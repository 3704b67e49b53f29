// How to integrate a framework: an object prepares every worker process before it joins a run, and reports what
// determines the bits of the framework's arithmetic. The "framework" here is a table of sines that must be filled
// before it is used.
#include <troupe/troupe.hpp>

#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

class sine_table : public troupe::framework {
 public:
  explicit sine_table(std::size_t size) : size_(size) {}

  std::string name() const override { return "sine_table"; }

  void on_start() override { // once in each worker process
    for (std::size_t i = 0; i < size_; ++i)
      values_.push_back(std::sin(6.283185307179586 * static_cast<double>(i) / static_cast<double>(size_)));
  }

  std::map<std::string, std::string> numerics() const override { // compared between workers
    return {{"size", std::to_string(values_.size())}};
  }

  void on_training_start(troupe::train_context& ctx) override { // in the training thread
    shift_ = ctx.random("sine_table").uniform();
  }

  double at(double turns) const {
    auto place = (turns + shift_) * static_cast<double>(values_.size());
    return values_[static_cast<std::size_t>(place) % values_.size()];
  }

 private:
  std::size_t size_;
  double shift_ = 0;
  std::vector<double> values_;
};

int main(int argc, char** argv) {
  auto sines = std::make_shared<sine_table>(1024);
  // Every process of the program makes the table, so the closure may capture it: as a std::function, which allows that.
  using body = std::function<void(troupe::train_context&)>;
  auto estimate = body{[sines](troupe::train_context& ctx) { // estimates the strength of the wave
    std::vector<float> strength(1);
    ctx.state().track("strength", strength);
    troupe::step_plan plan;
    plan.data = {1000, "a wave of strength 3"};
    plan.batch_samples = 100;
    plan.steps = 60;
    plan.gradient_elements = 1;
    ctx.for_each_step(plan, [&](troupe::step& step) {
      for (auto& shard : step.shards())
        for (auto sample : shard.samples()) {
          auto sine = sines->at(static_cast<double>(sample) / 1000);
          auto error = static_cast<double>(strength[0]) * sine - 3 * sine;
          shard.gradient()[0] += static_cast<float>(error * sine);
          shard.add("loss", error * error);
        }
      strength[0] -= 0.5f * step.all_reduce()[0];
      step.report({{"loss", step.mean_loss()}, {"strength", strength[0]}});
    });
  }};
  auto train = troupe::function{"train", estimate, {sines}};
  auto app = troupe::app{argc, argv, {train}};
  auto trainer = troupe::trainer{app, train, {.scaling = {.num_workers = 2}, .run = {.name = "own_framework"}}};
  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed)
    std::fprintf(stderr, "own_framework: %s\n", result.reason.message.c_str());
  else
    std::printf("strength %.3f\n", result.metrics["strength"]);
  return trainer.exit_code();
}
