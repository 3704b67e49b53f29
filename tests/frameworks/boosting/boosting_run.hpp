#pragma once

#include "example_rows.hpp"

#include <troupe/boosting.hpp>
#include <troupe/troupe.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

/// A program that trains on generated rows, like a user's. In its first attempt a rank kills itself at a given place,
/// such as "1 while reading". The same argument selects other data: "categories".
namespace troupe::testing {

/// Whether this rank must kill itself here.
inline bool is_to_end(const train_context& ctx, const char* place) {
  return boosting::user_options(ctx).at("kill") == std::to_string(ctx.rank()) + " " + place && ctx.attempt() == 1;
}

/// Rows whose fetch kills the process, while the others wait for it inside the library.
class deadly_rows final : public data::data_set {
 public:
  explicit deadly_rows(data::data_set_ptr rows) : rows_(std::move(rows)) {}

  std::uint64_t size() const noexcept override { return rows_->size(); }
  std::span<const data::column_spec> columns() const noexcept override { return rows_->columns(); }
  std::string fingerprint() const override { return rows_->fingerprint(); }

 protected:
  expected<void> read(std::span<const std::uint64_t>, data::batch&) const override {
    std::raise(SIGKILL);
    return {};
  }

 private:
  data::data_set_ptr rows_;
};

inline boosting::training_sets make_sets(train_context& ctx) {
  // Simulates slow reading.
  ctx.heartbeat();
  const auto& what = boosting::user_options(ctx).at("kill").get_ref<const std::string&>();
  auto count = boosting::user_config(ctx).at("rows").get<std::uint64_t>();
  if (what == "two classes" || what.starts_with("three classes")) {
    auto classes = what == "two classes" ? 2 : 3;
    return {class_rows(count, 7, classes), {{"validation", class_rows(500, 9, classes)}}};
  }
  if (what == "categories" || what == "one-hot") {
    auto sets = boosting::training_sets{category_rows({"ash", "elm", "oak"}, count),
                                        {{"validation", category_rows({"elm", "oak"}, 10)}}};
    if (what == "one-hot")
      sets.preprocessor = data::one_hot_encoder({"x"}, data::unknown_category::own_category);
    return sets;
  }
  auto rows = example_rows(boosting::user_config(ctx).at("rows"), 7);
  if (is_to_end(ctx, "while making"))
    std::raise(SIGKILL);
  if (is_to_end(ctx, "while reading"))
    rows = std::make_shared<const deadly_rows>(rows);
  if (auto freeze = is_to_end(ctx, "frozen while training"); freeze || is_to_end(ctx, "while training"))
    std::thread{[first = ctx.run_directory() / "checkpoints" / "step-00000005", signal = freeze ? SIGSTOP : SIGKILL] {
      while (!std::filesystem::exists(first))
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
      ::kill(::getpid(), signal);
    }}.detach();
  if (ctx.rank() == 1 && boosting::user_options(ctx).at("kill") == "other data")
    rows = example_rows(rows->size(), 8);
  return {rows, {{"validation", example_rows(500, 9)}}};
}

/// The program's arguments: STORAGE NAME WORKERS NODES ROUNDS ROWS PARAMETERS KILL. `make` makes a trainer from the
/// configuration with the library's settings. Returns the exit code, and prints the last checkpoint.
template <class Config, class Make>
int run_boosting(int argc, char** argv, Config config, Make make) {
  if (argc != 9)
    return 2;
  config.features = {"x"};
  config.label = "y";
  config.rounds = static_cast<std::uint64_t>(std::atoi(argv[5]));
  config.checkpoint_every = 5;
  config.model_bytes = std::uint64_t{1} << 20;
  config.trainer.run.storage_path = argv[1];
  config.trainer.run.name = argv[2];
  config.trainer.scaling.num_workers = static_cast<std::uint32_t>(std::atoi(argv[3]));
  config.trainer.scaling.placement = placement_strategy::spread;
  auto nodes = std::istringstream{argv[4]};
  for (std::string node; std::getline(nodes, node, ',');)
    config.trainer.cluster.nodes.push_back(node);
  try {
    config.parameters = nlohmann::json::parse(argv[7]);
    config.trainer.config = {{"rows", std::atoi(argv[6])}};
    config.trainer.options = {{"kill", argv[8]}};
    auto trainer = make(config);
    auto result = trainer.fit();
    if (result.status == run_status::failed)
      std::fprintf(stderr, "%s\n", result.reason.message.c_str());
    std::printf("%s\n", result.latest_checkpoint.c_str());
    return trainer.exit_code();
  } catch (const std::exception& x) {
    std::fprintf(stderr, "%s\n", x.what());
    return 1;
  }
}

} // namespace troupe::testing
