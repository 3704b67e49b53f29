// Trains a small convolutional network on images of the MNIST family, in as many processes as you like, and tells how
// well it does on images that were held out.
#include <command_line.hpp>
#include <mnist/training.hpp>

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
  std::uint64_t held_out = 2000;
  std::uint64_t batch = 256;
  double learning_rate = 2e-3;
  std::uint64_t evaluate_every = 100;
  double require_accuracy = 0;
  bool quiet = false;
  std::string resume = "auto";
  std::string workers = "2";
  std::string storage = "runs";
  troupe::trainer_config trainer;
};

void describe(CLI::App& cli, options& o) {
  auto& run = o.trainer.run;
  run.name = "mnist";
  run.steps = 200;
  cli.add_option("--images", o.images, "IDX file of images, 28 by 28 bytes each; may be packed with gzip")->required();
  cli.add_option("--labels", o.labels, "IDX file of their classes, 0 to 9")->required();
  auto* held_out = cli.add_option("--held-out", o.held_out, "The last so many images are for evaluation");
  held_out->capture_default_str();
  auto* test_images = cli.add_option("--test-images", o.test_images,
                                     "IDX file of images for evaluation; all of --images "
                                     "are for training then");
  auto* test_labels = cli.add_option("--test-labels", o.test_labels, "IDX file of their classes");
  test_images->needs(test_labels)->excludes(held_out);
  test_labels->needs(test_images);
  cli.add_option("--batch", o.batch, "Samples in a step")->capture_default_str();
  cli.add_option("--learning-rate", o.learning_rate, "Of Adam")->capture_default_str();
  cli.add_option("--steps", run.steps, "The last step; a resumed run goes on to it")->capture_default_str();
  cli.add_option("--seed", run.seed, "Decides initial parameters, dropout and the order of the data")
      ->capture_default_str();
  cli.add_option("--evaluate-every", o.evaluate_every, "Steps between evaluations")
      ->capture_default_str()
      ->check(troupe::apps::positive_number());
  cli.add_option("--require-accuracy", o.require_accuracy, "Exit with 1 where the held-out accuracy is less")
      ->check(CLI::Range(0.0, 1.0));
  cli.add_option("--workers", o.workers, "Worker processes, or a range as in 2-8; the result does not depend on it")
      ->check([](const std::string& text) {
        auto range = troupe::parse_worker_range(text);
        return range ? std::string{} : range.error().message;
      })
      ->capture_default_str();
  cli.add_option("--shards", o.trainer.scaling.shards, "Logical shards of each batch; the result depends on it")
      ->capture_default_str();
  cli.add_option("--checkpoint-every", o.trainer.checkpoint.every_steps,
                 "Steps between checkpoints; 0: only at the end")
      ->capture_default_str();
  cli.add_option("--name", run.name, "Name of the run's directory")->capture_default_str();
  cli.add_option("--storage", o.storage, "Where the run's directory is made")->capture_default_str();
  cli.add_option("--resume", o.resume,
                 "auto: go on from the latest checkpoint, if any; never; required: fail without one")
      ->check(CLI::IsMember({"auto", "never", "required"}))
      ->capture_default_str();
  cli.add_flag("--check-every-step", run.check_every_step,
               "Look around every step whether its body writes state too early");
  troupe::apps::add_verify_determinism(cli, run.verify_determinism);
  cli.add_option("--nodes", o.trainer.cluster.nodes,
                 "HOST:PORT of caf-nodes, separated by commas (default: this machine)")
      ->delimiter(',');
  cli.add_flag("--trusted-network", o.trainer.cluster.trusted_network,
               "Gradients may travel in clear text between hosts: the network is private");
  cli.add_flag("--quiet", o.quiet, "No losses and no table");
}

void print_confusion(troupe::metric_map& metrics) {
  std::printf("\n  class      taken for\n         ");
  for (std::size_t taken_for = 0; taken_for < mnist::classes; ++taken_for)
    std::printf("%6zu", taken_for);
  std::printf("   right\n");
  for (std::size_t is = 0; is < mnist::classes; ++is) {
    std::printf("%7zu  ", is);
    double all = 0;
    for (std::size_t taken_for = 0; taken_for < mnist::classes; ++taken_for) {
      auto count = metrics[mnist::confusion_name(is, taken_for)];
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
  o.trainer.run.resume = o.resume == "never"      ? troupe::resume_mode::never
                         : o.resume == "required" ? troupe::resume_mode::required
                                                  : troupe::resume_mode::automatic;
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
  auto trainer = troupe::trainer{program, "train", o.trainer};
  trainer.set_callbacks(progress(o));
  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed) {
    std::fprintf(stderr, "mnist: %s\n", result.reason.message.c_str());
    return trainer.exit_code();
  }
  if (!o.quiet && result.metrics.contains(mnist::confusion_name(0, 0)))
    print_confusion(result.metrics);
  auto accuracy = troupe::apps::metric_text(result.metrics, "held_out_accuracy", 4);
  std::printf("held-out accuracy %s, training loss %s after step %llu\nstate %s\n", accuracy.c_str(),
              troupe::apps::metric_text(result.metrics, "loss", 4).c_str(),
              static_cast<unsigned long long>(result.steps), result.state_sha256.c_str());
  // What was stopped is not judged.
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
      "Trains a small convolutional network on IDX images, in as many processes as you like: the result is the "
      "same, bit for bit.",
      "mnist"};
  describe(cli, o);
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  try {
    return run(program, o);
  } catch (const std::exception& x) {
    std::fprintf(stderr, "mnist: %s\n", x.what());
    return 1;
  }
}
