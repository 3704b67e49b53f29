// Trains a small character-level transformer on a text, in as many processes as you like, tells its validation loss
// beside the published one, and writes text with what it has learned; or only writes, with an earlier checkpoint.
#include <command_line.hpp>
#include <gpt/text.hpp>
#include <gpt/training.hpp>
#include <gpt/writer.hpp>

#include <troupe/libtorch.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/troupe.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>

namespace {

/// What nanoGPT's README gives for tinyshakespeare and the sizes, batch and steps that are the defaults here.
constexpr double published_validation_loss = 1.88;
constexpr std::uint64_t published_steps = 2000;

struct options {
  std::string text;
  nlohmann::json model = {{"block_size", 64},
                          {"layers", 4},
                          {"heads", 4},
                          {"embedding", 128},
                          {"dropout", 0.0},
                          {"batch", 12},
                          {"learning_rate", 1e-3},
                          {"min_learning_rate", 1e-4},
                          {"warmup_steps", 100},
                          {"decay_steps", 2000},
                          {"weight_decay", 0.1},
                          {"beta2", 0.99},
                          {"gradient_clip", 1.0}};
  std::uint64_t evaluate_every = 500;
  std::uint64_t sample = 500;
  double temperature = 0.8;
  std::string prompt = "\n";
  std::string sample_from;
  bool quiet = false;
  std::string resume = "auto";
  std::string workers = "2";
  std::string storage = "runs";
  troupe::trainer_config trainer;
};

void describe_model(CLI::App& cli, options& o) {
  auto* group = cli.add_option_group("Model", "The result depends on these");
  auto whole = [&](const char* option, const char* key, const char* text,
                   CLI::Validator valid = troupe::apps::positive_number()) {
    group
        ->add_option_function<std::uint64_t>(
            option, [&o, key](const std::uint64_t& value) { o.model[key] = value; }, text)
        ->check(valid)
        ->default_str(o.model[key].dump());
  };
  auto real = [&](const char* option, const char* key, const char* text) {
    group
        ->add_option_function<double>(
            option, [&o, key](const double& value) { o.model[key] = value; }, text)
        ->check(CLI::NonNegativeNumber)
        ->default_str(o.model[key].dump());
  };
  whole("--block-size", "block_size", "Characters that the model looks back on");
  whole("--layers", "layers", "Transformer blocks");
  whole("--heads", "heads", "Heads of attention in each");
  whole("--embedding", "embedding", "Numbers that stand for a character, a multiple of the heads");
  group
      ->add_option_function<double>(
          "--dropout", [&o](const double& x) { o.model["dropout"] = x; }, "Share of dropout")
      ->check(CLI::Range(0.0, 0.99))
      ->default_str(o.model["dropout"].dump());
  whole("--batch", "batch", "Windows of text in a step");
  real("--learning-rate", "learning_rate", "The highest, after the warm-up");
  real("--min-learning-rate", "min_learning_rate", "The last");
  whole("--warmup-steps", "warmup_steps", "Steps in which the learning rate grows", CLI::NonNegativeNumber);
  whole("--decay-steps", "decay_steps", "The step at which the learning rate is the last one");
  real("--weight-decay", "weight_decay", "Of AdamW, for matrices");
  real("--beta2", "beta2", "Of AdamW");
  real("--gradient-clip", "gradient_clip", "Longer gradients are cut to this length; 0: none are");
}

void describe(CLI::App& cli, options& o) {
  auto& run = o.trainer.run;
  run.name = "gpt";
  run.steps = published_steps;
  // Three windows for each, and up to four workers.
  o.trainer.scaling.shards = 4;
  cli.add_option("--text", o.text, "A text file, or a directory of them; the last tenth is for validation");
  cli.add_option("--steps", run.steps, "The last step; a resumed run goes on to it")->capture_default_str();
  cli.add_option("--seed", run.seed, "Decides initial parameters, the order of the data and the text that is written")
      ->capture_default_str();
  cli.add_option("--evaluate-every", o.evaluate_every, "Steps between two looks at the validation loss")
      ->capture_default_str()
      ->check(troupe::apps::positive_number());
  cli.add_option("--sample", o.sample, "Characters to write at the end; 0: none")->capture_default_str();
  cli.add_option("--temperature", o.temperature, "Of the draws; 0: always the likeliest character")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--prompt", o.prompt, "What the written text follows (default: a newline)");
  cli.add_option("--sample-from", o.sample_from,
                 "Trains nothing: writes with this checkpoint, or the latest of this run's directory");
  cli.add_flag("--quiet", o.quiet, "No progress and no text");
  describe_model(cli, o);

  auto* group = cli.add_option_group("Run");
  group->add_option("--workers", o.workers, "Worker processes, or a range as in 1-4; the result does not depend on it")
      ->check([](const std::string& text) {
        auto range = troupe::parse_worker_range(text);
        return range ? std::string{} : range.error().message;
      })
      ->capture_default_str();
  group->add_option("--shards", o.trainer.scaling.shards, "Logical shards of each batch; the result depends on it")
      ->capture_default_str();
  group
      ->add_option("--checkpoint-every", o.trainer.checkpoint.every_steps,
                   "Steps between checkpoints; 0: only at the end")
      ->capture_default_str();
  group->add_option("--name", run.name, "Name of the run's directory")->capture_default_str();
  group->add_option("--storage", o.storage, "Where the run's directory is made")->capture_default_str();
  group
      ->add_option("--resume", o.resume,
                   "auto: go on from the latest checkpoint, if any; never; required: fail without one")
      ->check(CLI::IsMember({"auto", "never", "required"}))
      ->capture_default_str();
  group->add_flag("--check-every-step", run.check_every_step,
                  "Look around every step whether its body writes state too early");
  troupe::apps::add_verify_determinism(*group, run.verify_determinism);
  group
      ->add_option("--nodes", o.trainer.cluster.nodes,
                   "HOST:PORT of caf-nodes, separated by commas (default: this machine)")
      ->delimiter(',');
  group->add_flag("--trusted-network", o.trainer.cluster.trusted_network,
                  "Gradients may travel in clear text between hosts: the network is private");
}

troupe::run_callbacks progress(const options& o) {
  troupe::run_callbacks result;
  if (o.quiet)
    return result;
  using clock = std::chrono::steady_clock;
  result.progress = [step = std::uint64_t{0}, validation = 0.0,
                     shown = clock::time_point{}](const troupe::run_progress& x) mutable {
    auto metric = [&x](const char* name) {
      auto found = x.metrics.find(name);
      return found == x.metrics.end() ? 0.0 : found->second;
    };
    // Metrics stay until they are reported again.
    auto evaluated = std::exchange(validation, metric("validation_loss")) != metric("validation_loss");
    auto now = clock::now();
    if (std::exchange(step, x.step) == x.step || (!evaluated && now - shown < std::chrono::seconds{2}))
      return;
    shown = now;
    std::printf("step %llu/%llu  loss %.3f", static_cast<unsigned long long>(x.step),
                static_cast<unsigned long long>(x.steps), metric("loss"));
    if (evaluated)
      std::printf("  validation loss %.3f", metric("validation_loss"));
    std::printf("  learning rate %.2e  %.0f s left\n", metric("learning_rate"), x.seconds_left);
    std::fflush(stdout);
  };
  return result;
}

troupe::expected<std::string> written_text(const options& o, const std::filesystem::path& checkpoint) {
  auto stored = troupe::serialization::checkpoint::open(checkpoint);
  if (!stored)
    return troupe::fail(std::move(stored.error()));
  auto writer = gpt::writer::open(*stored);
  if (!writer)
    return troupe::fail(std::move(writer.error()));
  return writer->write(o.prompt, o.sample, o.temperature, o.trainer.run.seed);
}

/// A run's directory stands for its latest checkpoint.
int write_only(const options& o) {
  auto path = std::filesystem::path{o.sample_from};
  auto all = path / "checkpoints";
  if (std::filesystem::is_directory(all))
    path = troupe::value_or_throw(troupe::serialization::open_latest(all)).found.directory();
  std::printf("%s\n", troupe::value_or_throw(written_text(o, path)).c_str());
  return 0;
}

void show_validation(const options& o, const gpt::token_windows& text, const troupe::run_result& result) {
  auto found = result.metrics.find("validation_loss");
  if (found == result.metrics.end())
    return;
  std::printf("validation loss %.4f nats per character (nanoGPT's published figure: %.2f", found->second,
              published_validation_loss);
  if (!text.is_tinyshakespeare)
    std::printf(", which is of tinyshakespeare, another text: not to be compared)\n");
  else if (o.model != options{}.model || result.steps != published_steps)
    std::printf(", which is of its small CPU configuration, that is the defaults: not to be compared)\n");
  else
    std::printf(" for this text and configuration, over some batches; here it is the whole last tenth)\n");
}

int run(const troupe::app& program, options& o) {
  auto heads = o.model["heads"].get<std::uint64_t>();
  if (o.model["embedding"].get<std::uint64_t>() % heads != 0)
    throw troupe::exception{troupe::errc::invalid_argument, "--embedding " + o.model["embedding"].dump() +
                                                                " cannot be dealt to " + std::to_string(heads) +
                                                                " heads: take a multiple"};
  auto text = troupe::value_or_throw(gpt::read_windows(o.text, o.model["block_size"].get<std::uint64_t>()));
  if (!o.quiet)
    std::printf("gpt: %llu characters of text from %s, %zu different ones%s\n",
                static_cast<unsigned long long>(text.text_bytes), o.text.c_str(), text.characters.size(),
                text.is_tinyshakespeare ? "; it is tinyshakespeare" : "");
  std::fflush(stdout);
  o.trainer.scaling.num_workers = troupe::value_or_throw(troupe::parse_worker_range(o.workers));
  o.trainer.run.storage_path = o.storage;
  o.trainer.run.resume = o.resume == "never"      ? troupe::resume_mode::never
                         : o.resume == "required" ? troupe::resume_mode::required
                                                  : troupe::resume_mode::automatic;
  o.trainer.config = o.model;
  o.trainer.options = {{"text", std::filesystem::absolute(o.text).string()}, {"evaluate_every", o.evaluate_every}};
  auto trainer = troupe::trainer{program, "train", o.trainer};
  trainer.set_callbacks(progress(o));
  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed) {
    std::fprintf(stderr, "gpt: %s\n", result.reason.message.c_str());
    return trainer.exit_code();
  }
  if (!o.quiet && o.sample > 0 && !result.latest_checkpoint.empty()) {
    auto sample = written_text(o, result.latest_checkpoint);
    if (sample)
      std::printf("\nWhat it writes (temperature %.1f):\n%s\n\n", o.temperature, sample->c_str());
    else
      std::fprintf(stderr, "gpt: no text: %s\n", sample.error().message.c_str());
  }
  show_validation(o, text, result);
  std::printf("training loss %s after step %llu, %.1f s in all\nstate %s\n",
              troupe::apps::metric_text(result.metrics, "loss", 4).c_str(),
              static_cast<unsigned long long>(result.steps), result.seconds_total, result.state_sha256.c_str());
  return trainer.exit_code();
}

} // namespace

int main(int argc, char** argv) {
  auto program = troupe::app{argc, argv, {{"train", gpt::train, {troupe::libtorch::make_framework()}}}};
  options o;
  CLI::App cli{
      "Trains a small character-level transformer on text, in as many processes as you like: the result is the "
      "same, bit for bit. By default it is nanoGPT's small configuration for CPUs.",
      "gpt"};
  describe(cli, o);
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  if (o.text.empty() == o.sample_from.empty()) {
    std::fprintf(stderr, "gpt: give either --text, to train, or --sample-from, to write; see gpt --help\n");
    return troupe::apps::exit_usage;
  }
  try {
    return o.sample_from.empty() ? run(program, o) : write_only(o);
  } catch (const std::exception& x) {
    std::fprintf(stderr, "gpt: %s\n", x.what());
    return 1;
  }
}
