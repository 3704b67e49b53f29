#include <charlm/corpus.hpp>
#include <charlm/keys.hpp>
#include <charlm/model.hpp>
#include <charlm/report.hpp>
#include <charlm/sampling.hpp>
#include <charlm/training.hpp>
#include <command_line.hpp>
#include <dashboard_option.hpp>

#include <troupe/troupe.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

namespace {

struct options {
  std::string text = "/usr/share/common-licenses";
  std::uint64_t batch = 512;
  std::uint64_t evaluate_every = 250;
  std::size_t embedding = charlm::model_shape{}.embedding;
  std::size_t hidden = charlm::model_shape{}.hidden;
  std::optional<double> learning_rate;
  std::size_t sample_bytes = 400;
  bool quiet = false;
  bool interactive = false;
  bool fast = false;
  std::string placement = "pack";
  std::string workers;
  std::string transport = "auto";
  std::string sync = "auto";
  troupe::trainer_config trainer;
};

void describe(CLI::App& app, options& o) {
  auto& t = o.trainer;
  t.run.steps = 2000;
  t.checkpoint.every_steps = 500;
  app.add_option("--text", o.text, "A text file, or a directory of text files")->capture_default_str();
  app.add_option("--steps", t.run.steps, "The last step; a resumed run continues to it")->capture_default_str();
  app.add_option("--batch", o.batch, "Samples in each step's batch")->capture_default_str();
  app.add_option("--embedding", o.embedding, "Size of a byte's embedding, a multiple of 16")->capture_default_str();
  app.add_option("--hidden", o.hidden, "Units of the hidden layer, a multiple of 16")->capture_default_str();
  app.add_option("--learning-rate", o.learning_rate,
                 "Adam's highest learning rate, which troupe-search finds for a text (default: 0.004)")
      ->check(troupe::apps::positive_number());
  app.add_option("--seed", t.run.seed, "Determines initial parameters and the order of the data")
      ->capture_default_str();
  app.add_option("--evaluate-every", o.evaluate_every, "Steps between evaluations on held-out text")
      ->capture_default_str()
      ->check(troupe::apps::positive_number());
  app.add_option("--sample", o.sample_bytes, "Bytes of text to write at the end")->capture_default_str();
  app.add_flag("--interactive", o.interactive,
               "React to keys while training: k kills a worker, f freezes one, ? shows the others");
  app.add_flag("--quiet", o.quiet, "Show no progress, curve or sample");

  auto* run = app.add_option_group("Run");
  run->add_option("--workers", o.workers,
                  "Worker processes, or a range such as 2-8 for at least 2 and as many as fit, up to 8; does not "
                  "affect the result (default: 2; with --use-gpu one for each GPU, or as --gpus-per-worker allows)")
      ->check(troupe::apps::worker_range_text());
  run->add_option("--shards", t.scaling.shards, "Logical shards of each batch; affects the result")
      ->capture_default_str();
  troupe::apps::add_name(*run, t.run.name);
  run->add_option("--storage", t.run.storage_path, "Directory that contains the run's directory")
      ->capture_default_str();
  troupe::apps::add_resume(*run, t.run);
  troupe::apps::add_mirror(*run, t.checkpoint.mirror);
  troupe::apps::add_time_limit(*run, t.run);
  auto* from = run->add_option("--from", t.load_checkpoint,
                               "Start a new run with the state of this checkpoint, or of a run's latest");
  run->add_flag("--keep-step", t.load.keep_step, "Go on with the step number of that checkpoint")->needs(from);
  run->add_option("--checkpoint-every", t.checkpoint.every_steps, "Steps between checkpoints; 0: only at the end")
      ->capture_default_str();
  run->add_option(
         "--checkpoints-in-flight", t.checkpoint.max_in_flight,
         "Checkpoints that may be written in the background; further ones are skipped. 0: training waits for each")
      ->capture_default_str();
  run->add_option("--checkpoint-sync", o.sync,
                  "auto: workers without access to the driver's files stream their parts to it; shared: all have "
                  "access; stream: all stream")
      ->check(CLI::IsMember({"auto", "shared", "stream"}))
      ->capture_default_str();
  run->add_option("--keep", t.checkpoint.num_to_keep, "Checkpoints to keep")->capture_default_str();
  run->add_flag("--fast", o.fast,
                "Let the transport choose the order of sums: replicas agree, but results vary with the workers");
  run->add_option("--transport", o.transport,
                  "Transport of gradients; between GPUs auto and nccl use NCCL, the others go through host memory")
      ->check(CLI::IsMember({"auto", "shm", "tcp", "hierarchical", "nccl"}))
      ->capture_default_str();
  run->add_option("--max-failures", t.failure.max_failures,
                  "Failures in a row, with no new step between them, that the run survives; 0: it ends at the first")
      ->capture_default_str();
  run->add_option_function<double>(
         "--driver-grace",
         [&t](double seconds) {
           t.failure.driver_grace = std::chrono::milliseconds{std::llround(std::clamp(seconds, 0.0, 1e9) * 1000)};
         },
         "Seconds that workers live on when their node has lost the driver; started again, it takes them over")
      ->default_str("60");
  run->add_flag_callback(
      "--no-replace", [&t] { t.failure.replace_lost = false; },
      "Continue with fewer workers instead of replacing lost ones");
  run->add_option("--background-transfer-above", t.failure.background_transfer_above_bytes,
                  "A state of more bytes is sent to new workers in the background while the others train")
      ->capture_default_str();
  troupe::apps::add_ledger(*run, t.run.keep_ledger);
  troupe::apps::add_check_every_step(*run, t.run.check_every_step);
  troupe::apps::add_debug_rank(*run, t.run.debug_rank);
  troupe::apps::add_verify_determinism(*run, t.run.verify_determinism);
  run->add_flag("--allow-mixed-hosts", t.run.allow_mixed_hosts, "Allow hosts with different kinds of processors");

  troupe::apps::add_monitoring(*app.add_option_group("Monitoring"), t.monitoring);

  auto* cluster = app.add_option_group("Cluster");
  troupe::apps::add_nodes(*cluster, t.cluster);
  troupe::apps::add_leases(*cluster, t.scaling);
  cluster
      ->add_option("--placement", o.placement,
                   "pack: as few nodes as possible; spread: evenly over all; strict_pack: all on one, or fail; "
                   "strict_spread: each on its own, or fail")
      ->check(CLI::IsMember({"pack", "spread", "strict_pack", "strict_spread"}))
      ->capture_default_str();
  cluster
      ->add_option("--cpus-per-worker", t.scaling.resources_per_worker.cpus,
                   "CPUs that each worker reserves; 0: shared")
      ->capture_default_str();
  troupe::apps::add_gpus(*cluster, t.scaling);
  cluster->add_option("--keys", t.cluster.keys,
                      "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys)");
  cluster->add_flag("--insecure", t.cluster.insecure, "Connect to nodes without TLS");
}

/// Converts the command line's words, which have been validated, to the configuration.
void apply_words(options& o) {
  auto& run = o.trainer.run;
  run.reduction = o.fast ? troupe::reduction_mode::fast : troupe::reduction_mode::exact;
  run.transport = o.transport == "shm"            ? troupe::transport_mode::shm
                  : o.transport == "tcp"          ? troupe::transport_mode::tcp
                  : o.transport == "hierarchical" ? troupe::transport_mode::hierarchical
                  : o.transport == "nccl"         ? troupe::transport_mode::nccl
                                                  : troupe::transport_mode::automatic;
  o.trainer.checkpoint.sync = o.sync == "shared"   ? troupe::checkpoint_sync::shared
                              : o.sync == "stream" ? troupe::checkpoint_sync::stream
                                                   : troupe::checkpoint_sync::automatic;
  auto& scaling = o.trainer.scaling;
  const auto workers = !o.workers.empty() ? o.workers : scaling.use_gpu ? fmt::format("1-{}", scaling.shards) : "2";
  scaling.num_workers = troupe::value_or_throw(troupe::parse_worker_range(workers));
  scaling.placement = o.placement == "spread"          ? troupe::placement_strategy::spread
                      : o.placement == "strict_pack"   ? troupe::placement_strategy::strict_pack
                      : o.placement == "strict_spread" ? troupe::placement_strategy::strict_spread
                                                       : troupe::placement_strategy::pack;
}

/// Prints text generated with the model of a checkpoint.
void show_sample(const options& o, const troupe::run_result& result) {
  auto network = charlm::load_model({16, o.embedding, o.hidden}, result.latest_checkpoint);
  if (!network) {
    std::fprintf(stderr, "charlm: no sample: %s\n", network.error().message.c_str());
    return;
  }
  auto text = charlm::sample(*network, "\n", o.sample_bytes, 0.7, o.trainer.run.seed);
  std::printf("\nA sample of generated text (temperature 0.7):\n\n%s\n", charlm::printable(text).c_str());
}

/// Trains; reacts to keys if the run is interactive.
troupe::run_result fit(troupe::trainer& trainer, charlm::run_view& view, const options& o) {
  auto callbacks = view.callbacks();
  if (!o.interactive) {
    trainer.set_callbacks(std::move(callbacks));
    return trainer.fit();
  }
  auto keys = charlm::run_keys{trainer, o.trainer.run.seed, o.trainer.scaling.shards,
                               [&view](const std::string& text) { view.line(text); }};
  callbacks.started = [&keys, show = std::move(callbacks.started)](const troupe::run_started& x) {
    keys.set_members(x.workers);
    show(x);
  };
  callbacks.regrouped = [&keys](const troupe::generation_record& x) { keys.set_members(x.members); };
  trainer.set_callbacks(std::move(callbacks));
  return trainer.fit();
}

int run(const troupe::app& app, const troupe::function& train, options& o) {
  auto shape = charlm::model_shape{16, o.embedding, o.hidden};
  if (auto valid = charlm::validate(shape); !valid)
    throw troupe::exception{std::move(valid.error())};
  auto text = troupe::value_or_throw(charlm::load_corpus(o.text, shape.context));
  o.trainer.config = {{"embedding", o.embedding}, {"hidden", o.hidden}, {"batch", o.batch}};
  // Without it, earlier runs can resume.
  if (o.learning_rate)
    o.trainer.config["learning_rate"] = *o.learning_rate;
  // A run cannot resume on another kind of device, so the device is part of its configuration.
  if (troupe::resources_of_worker(o.trainer.scaling).gpus > 0)
    o.trainer.config["device"] = "gpu";
  o.trainer.options = {{"text", std::filesystem::absolute(o.text).string()}, {"evaluate_every", o.evaluate_every}};
  if (!o.quiet)
    std::printf("charlm: %zu bytes of text from %s, %llu training samples, %llu held out; %zu parameters\n",
                text.bytes().size(), o.text.c_str(), static_cast<unsigned long long>(text.training_samples()),
                static_cast<unsigned long long>(text.held_out_samples()), shape.parameter_elements());
  std::fflush(stdout);

  auto trainer = troupe::trainer{app, train, o.trainer};
  auto view = charlm::run_view{o.quiet};
  auto result = fit(trainer, view, o);
  view.finish(result);
  if (result.status == troupe::run_status::failed) {
    std::fprintf(stderr, "charlm: %s\n", result.reason.message.c_str());
    return trainer.exit_code();
  }
  if (!o.quiet) {
    view.show_losses(result, text);
    if (o.sample_bytes > 0 && !result.latest_checkpoint.empty())
      show_sample(o, result);
  }
  std::printf("%s after step %llu; state %.16s; run directory %s\n", troupe::to_string(result.status).c_str(),
              static_cast<unsigned long long>(result.steps), result.state_sha256.c_str(), result.path.c_str());
  return trainer.exit_code();
}

} // namespace

int main(int argc, char** argv) {
  auto train = troupe::function{"train", charlm::train, {charlm::make_framework()}};
  auto app = troupe::app{argc, argv, {train}};
  options o;
  CLI::App cli{"Trains a byte-level language model on text. The number of worker processes does not change the result, "
               "bit for bit.",
               "charlm"};
  describe(cli, o);
  auto dashboard = troupe::apps::dashboard_option{cli};
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  if (auto code = dashboard.open(o.trainer.run.storage_path))
    return *code;
  apply_words(o);
  try {
    return run(app, train, o);
  } catch (const std::exception& x) {
    std::fprintf(stderr, "charlm: %s\n", x.what());
    return 1;
  }
}
