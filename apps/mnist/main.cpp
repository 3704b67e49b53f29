// Trains a small convolutional network on images of the MNIST family and reports its accuracy on held-out images.
#include <command_line.hpp>
#include <dashboard_option.hpp>
#include <mnist/training.hpp>

#include <troupe/serialization/files/file_digest.hpp>
#include <troupe/troupe.hpp>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>

namespace {

struct options {
  std::string images;
  std::string labels;
  std::string test_images;
  std::string test_labels;
  std::string model;
  std::uint64_t held_out = 2000;
  std::uint64_t batch = 256;
  double learning_rate = 2e-3;
  std::uint64_t evaluate_every = 100;
  double require_accuracy = 0;
  bool quiet = false;
  std::string workers = "2";
  std::string storage = "runs";
  troupe::trainer_config trainer;
};

void describe(CLI::App& cli, options& o) {
  auto& run = o.trainer.run;
  run.steps = 200;
  cli.add_option("--images", o.images, "IDX file of images, 28 by 28 bytes each; may be compressed with gzip")
      ->required();
  cli.add_option("--labels", o.labels, "IDX file of their classes, 0 to 9")->required();
  cli.add_option(
      "--model", o.model,
      "A TorchScript model from Python to train instead of this program's network: it takes f32[N, 1, 28, 28] "
      "and gives 10 scores for each image; on each host");
  auto* held_out = cli.add_option("--held-out", o.held_out, "Number of images at the end that are for evaluation");
  held_out->capture_default_str();
  auto* test_images = cli.add_option("--test-images", o.test_images,
                                     "IDX file of images for evaluation; all of --images are then for training");
  auto* test_labels = cli.add_option("--test-labels", o.test_labels, "IDX file of their classes");
  test_images->needs(test_labels)->excludes(held_out);
  test_labels->needs(test_images);
  cli.add_option("--batch", o.batch, "Samples in each step's batch")->capture_default_str();
  cli.add_option("--learning-rate", o.learning_rate, "Learning rate of Adam")->capture_default_str();
  cli.add_option("--steps", run.steps, "The last step; a resumed run continues to it")->capture_default_str();
  cli.add_option("--seed", run.seed, "Determines initial parameters, dropout and the order of the data")
      ->capture_default_str();
  cli.add_option("--evaluate-every", o.evaluate_every, "Steps between evaluations")
      ->capture_default_str()
      ->check(troupe::apps::positive_number());
  cli.add_option("--require-accuracy", o.require_accuracy, "Exit with 1 if the held-out accuracy is less")
      ->check(CLI::Range(0.0, 1.0));
  cli.add_option("--workers", o.workers, "Worker processes, or a range such as 2-8; does not affect the result")
      ->check(troupe::apps::worker_range_text())
      ->capture_default_str();
  cli.add_option("--shards", o.trainer.scaling.shards, "Logical shards of each batch; affects the result")
      ->capture_default_str();
  cli.add_option("--checkpoint-every", o.trainer.checkpoint.every_steps,
                 "Steps between checkpoints; 0: only at the end")
      ->capture_default_str();
  troupe::apps::add_name(cli, run.name);
  cli.add_option("--storage", o.storage, "Directory that contains the run's directory")->capture_default_str();
  troupe::apps::add_resume(cli, run);
  troupe::apps::add_mirror(cli, o.trainer.checkpoint.mirror);
  troupe::apps::add_time_limit(cli, run);
  troupe::apps::add_check_every_step(cli, run.check_every_step);
  troupe::apps::add_debug_rank(cli, run.debug_rank);
  troupe::apps::add_ledger(cli, run.keep_ledger);
  troupe::apps::add_monitoring(cli, o.trainer.monitoring);
  troupe::apps::add_verify_determinism(cli, run.verify_determinism);
  troupe::apps::add_nodes(cli, o.trainer.cluster);
  troupe::apps::add_leases(cli, o.trainer.scaling);
  troupe::apps::add_gpus(cli, o.trainer.scaling);
  cli.add_flag("--quiet", o.quiet, "Show no progress and no table");
}

void print_confusion(troupe::metric_map& metrics) {
  std::printf("\n  class      predicted as\n         ");
  for (std::size_t predicted = 0; predicted < mnist::classes; ++predicted)
    std::printf("%6zu", predicted);
  std::printf(" correct\n");
  for (std::size_t is = 0; is < mnist::classes; ++is) {
    std::printf("%7zu  ", is);
    double all = 0;
    for (std::size_t predicted = 0; predicted < mnist::classes; ++predicted) {
      auto count = metrics[mnist::confusion_name(is, predicted)];
      all += count;
      std::printf("%6.0f", count);
    }
    auto right = metrics[mnist::confusion_name(is, is)];
    std::printf("  %5.1f%%\n", all > 0 ? 100 * right / all : 0.0);
  }
  std::printf("\n");
}

troupe::run_callbacks progress(const options& o) {
  troupe::run_callbacks result;
  if (o.quiet)
    return result;
  result.progress = [last = std::uint64_t{0}](const troupe::run_progress& x) mutable {
    if (std::exchange(last, x.step) == x.step)
      return;
    auto accuracy = x.metrics.find("held_out_accuracy");
    if (accuracy != x.metrics.end())
      std::printf("step %5llu  held-out accuracy %.4f\n", static_cast<unsigned long long>(x.step), accuracy->second);
    std::fflush(stdout);
  };
  return result;
}

int run(const troupe::app& program, options& o) {
  o.trainer.scaling.num_workers = troupe::value_or_throw(troupe::parse_worker_range(o.workers));
  o.trainer.run.storage_path = o.storage;
  auto has_test_files = !o.test_images.empty();
  o.trainer.config = {
      {"batch", o.batch}, {"learning_rate", o.learning_rate}, {"held_out", has_test_files ? 0 : o.held_out}};
  o.trainer.options = {{"images", std::filesystem::absolute(o.images).string()},
                       {"labels", std::filesystem::absolute(o.labels).string()},
                       {"evaluate_every", o.evaluate_every}};
  if (has_test_files) {
    o.trainer.options["test_images"] = std::filesystem::absolute(o.test_images).string();
    o.trainer.options["test_labels"] = std::filesystem::absolute(o.test_labels).string();
  }
  if (!o.model.empty()) {
    o.trainer.config["model"] = troupe::value_or_throw(troupe::serialization::describe_file(o.model));
    o.trainer.options["model"] = std::filesystem::absolute(o.model).string();
  }
  auto trainer = troupe::trainer{program, program.find_function("train"), o.trainer};
  trainer.set_callbacks(progress(o));
  auto result = trainer.fit_or_throw();
  if (!o.quiet && result.metrics.contains(mnist::confusion_name(0, 0)))
    print_confusion(result.metrics);
  auto accuracy = troupe::apps::metric_text(result.metrics, "held_out_accuracy", 4);
  std::printf("held-out accuracy %s, training loss %s after step %llu\nstate %s\n", accuracy.c_str(),
              troupe::apps::metric_text(result.metrics, "loss", 4).c_str(),
              static_cast<unsigned long long>(result.steps), result.state_sha256.c_str());
  // The requirement does not apply to a stopped run.
  if (result.status == troupe::run_status::completed && result.metrics["held_out_accuracy"] < o.require_accuracy) {
    std::fprintf(stderr, "mnist: held-out accuracy %s is less than the required %.4f\n", accuracy.c_str(),
                 o.require_accuracy);
    return 1;
  }
  return trainer.exit_code();
}

} // namespace

int main(int argc, char** argv) {
  auto program = troupe::app{argc, argv, troupe::worker_program{"mnist-worker"}};
  options o;
  CLI::App cli{
      "Trains a small convolutional network on IDX images. The number of worker processes does not change the result, "
      "bit for bit.",
      "mnist"};
  describe(cli, o);
  auto dashboard = troupe::apps::dashboard_option{cli};
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  if (auto code = dashboard.open(o.storage))
    return *code;
  try {
    return run(program, o);
  } catch (const std::exception& x) {
    std::fprintf(stderr, "mnist: %s\n", x.what());
    return 1;
  }
}
