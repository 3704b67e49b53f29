// Trains a small character-level transformer on a text, reports its validation loss beside the published one, and
// generates text. Can also generate text from an earlier checkpoint without training.
#include <command_line.hpp>
#include <dashboard_option.hpp>
#include <gpt/text.hpp>
#include <gpt/training.hpp>
#include <gpt/writer.hpp>

#include <troupe/libtorch.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/troupe.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>

namespace {

/// From nanoGPT's README, for tinyshakespeare and the sizes, batch and steps that are the defaults here.
constexpr double published_validation_loss = 1.88;
constexpr std::uint64_t published_steps = 2000;

struct options {
  std::string text;
  std::string tokens;
  std::string validation_tokens;
  std::uint64_t vocabulary = 50'257;
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
  std::string workers = "2";
  std::string storage = "runs";
  troupe::trainer_config trainer;
};

void describe_model(CLI::App& cli, options& o) {
  auto* group = cli.add_option_group("Model", "These options affect the result");
  auto whole = [&](const char* option, const char* key, const char* text,
                   const CLI::Validator& valid = troupe::apps::positive_number()) {
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
  whole("--block-size", "block_size", "Characters of context");
  whole("--layers", "layers", "Transformer blocks");
  whole("--heads", "heads", "Attention heads per block");
  whole("--embedding", "embedding", "Size of a character's embedding, a multiple of the heads");
  group
      ->add_option_function<double>(
          "--dropout", [&o](const double& x) { o.model["dropout"] = x; }, "Dropout rate")
      ->check(CLI::Range(0.0, 0.99))
      ->default_str(o.model["dropout"].dump());
  whole("--batch", "batch", "Windows of text in each step's batch");
  real("--learning-rate", "learning_rate", "Highest learning rate, reached after the warm-up");
  real("--min-learning-rate", "min_learning_rate", "Final learning rate");
  whole("--warmup-steps", "warmup_steps", "Steps in which the learning rate increases", CLI::NonNegativeNumber);
  whole("--decay-steps", "decay_steps", "Step at which the learning rate reaches its final value");
  real("--weight-decay", "weight_decay", "Weight decay of AdamW for matrices");
  real("--beta2", "beta2", "beta2 of AdamW");
  real("--gradient-clip", "gradient_clip", "Limit on the norm of the gradient; 0: none");
}

void describe(CLI::App& cli, options& o) {
  auto& run = o.trainer.run;
  run.steps = published_steps;
  // Three of the batch's 12 windows for each shard, and up to four workers.
  o.trainer.scaling.shards = 4;
  cli.add_option("--text", o.text, "A text file, or a directory of text files; the last tenth is for validation");
  auto* tokens = cli.add_option("--tokens", o.tokens,
                                "A file of 16-bit tokens to train on, as nanoGPT's prepare.py writes it; may be larger "
                                "than memory");
  cli.add_option("--validation-tokens", o.validation_tokens, "A file of tokens for validation (with --tokens)")
      ->needs(tokens);
  cli.add_option("--vocabulary", o.vocabulary, "The number of different tokens (with --tokens; default: GPT-2's)")
      ->needs(tokens)
      ->check(troupe::apps::positive_number())
      ->capture_default_str();
  cli.add_option("--steps", run.steps, "The last step; a resumed run continues to it")->capture_default_str();
  cli.add_option("--seed", run.seed, "Determines initial parameters, the order of the data and the generated text")
      ->capture_default_str();
  cli.add_option("--evaluate-every", o.evaluate_every, "Steps between evaluations of the validation loss")
      ->capture_default_str()
      ->check(troupe::apps::positive_number());
  cli.add_option("--sample", o.sample, "Characters to generate at the end; 0: none")->capture_default_str();
  cli.add_option("--temperature", o.temperature, "Sampling temperature; 0: always the likeliest character")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  cli.add_option("--prompt", o.prompt, "Text to continue (default: a newline)");
  cli.add_option("--sample-from", o.sample_from,
                 "Do not train; generate text from this checkpoint, or from the latest one in this run directory");
  cli.add_flag("--quiet", o.quiet, "Show no progress and no text");
  describe_model(cli, o);

  auto* group = cli.add_option_group("Run");
  group->add_option("--workers", o.workers, "Worker processes, or a range such as 1-4; does not affect the result")
      ->check(troupe::apps::worker_range_text())
      ->capture_default_str();
  group->add_option("--shards", o.trainer.scaling.shards, "Logical shards of each batch; affects the result")
      ->capture_default_str();
  group
      ->add_option("--checkpoint-every", o.trainer.checkpoint.every_steps,
                   "Steps between checkpoints; 0: only at the end")
      ->capture_default_str();
  troupe::apps::add_name(*group, run.name);
  group->add_option("--storage", o.storage, "Directory that contains the run's directory")->capture_default_str();
  troupe::apps::add_resume(*group, run);
  troupe::apps::add_mirror(*group, o.trainer.checkpoint.mirror);
  troupe::apps::add_time_limit(*group, run);
  troupe::apps::add_check_every_step(*group, run.check_every_step);
  troupe::apps::add_debug_rank(*group, run.debug_rank);
  troupe::apps::add_ledger(*group, run.keep_ledger);
  troupe::apps::add_monitoring(*group, o.trainer.monitoring);
  troupe::apps::add_verify_determinism(*group, run.verify_determinism);
  troupe::apps::add_nodes(*group, o.trainer.cluster);
  troupe::apps::add_leases(*group, o.trainer.scaling);
  troupe::apps::add_gpus(*group, o.trainer.scaling);
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
    // A metric keeps its value until it is reported again.
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

troupe::expected<std::string> generate_text(const options& o, const std::filesystem::path& checkpoint) {
  auto stored = troupe::serialization::checkpoint::open(checkpoint);
  if (!stored)
    return troupe::fail(std::move(stored.error()));
  auto writer = gpt::writer::open(*stored);
  if (!writer)
    return troupe::fail(std::move(writer.error()));
  return writer->write(o.prompt, o.sample, o.temperature, o.trainer.run.seed);
}

/// Generates text without training. A run's directory means its latest checkpoint.
int write_only(const options& o) {
  auto path = std::filesystem::path{o.sample_from};
  auto all = path / "checkpoints";
  if (std::filesystem::is_directory(all))
    path = troupe::value_or_throw(troupe::serialization::open_latest(all)).found.directory();
  std::printf("%s\n", troupe::value_or_throw(generate_text(o, path)).c_str());
  return 0;
}

void show_validation(const options& o, const gpt::token_windows& text, const troupe::run_result& result) {
  auto found = result.metrics.find("validation_loss");
  if (found == result.metrics.end())
    return;
  if (!o.tokens.empty()) {
    std::printf("validation loss %.4f nats per token\n", found->second);
    return;
  }
  std::printf("validation loss %.4f nats per character (nanoGPT's published figure: %.2f", found->second,
              published_validation_loss);
  if (!text.is_tinyshakespeare)
    std::printf(" for tinyshakespeare; not comparable, because this is another text)\n");
  else if (o.model != options{}.model || result.steps != published_steps)
    std::printf(" for its small CPU configuration, the defaults here; not comparable with other settings)\n");
  else
    std::printf(" for this text and configuration, estimated over some batches; here over the whole last tenth)\n");
}

/// Opens the data as the workers do, so that an error comes before anything starts, and describes it.
gpt::token_windows open_text(const options& o) {
  const auto block = o.model["block_size"].get<std::uint64_t>();
  const auto from_tokens = !o.tokens.empty();
  auto result = troupe::value_or_throw(
      from_tokens ? gpt::open_token_files({o.tokens, o.validation_tokens, o.vocabulary, "not hashed here", {}}, block)
                  : gpt::read_windows(o.text, block));
  if (!o.quiet && from_tokens)
    std::printf("gpt: %llu tokens from %s, of a vocabulary of %llu\n", static_cast<unsigned long long>(result.length),
                o.tokens.c_str(), static_cast<unsigned long long>(result.tokens));
  else if (!o.quiet)
    std::printf("gpt: %llu characters of text from %s, %zu distinct%s\n",
                static_cast<unsigned long long>(result.length), o.text.c_str(), result.characters.size(),
                result.is_tinyshakespeare ? "; this is tinyshakespeare" : "");
  std::fflush(stdout);
  return result;
}

int run(const troupe::app& program, const troupe::function& train, options& o) {
  auto heads = o.model["heads"].get<std::uint64_t>();
  if (o.model["embedding"].get<std::uint64_t>() % heads != 0)
    throw troupe::exception{
        troupe::errc::invalid_argument,
        fmt::format("--embedding {} is not a multiple of --heads {}", o.model["embedding"].dump(), heads)};
  const auto text = open_text(o);
  o.trainer.scaling.num_workers = troupe::value_or_throw(troupe::parse_worker_range(o.workers));
  o.trainer.run.storage_path = o.storage;
  o.trainer.config = o.model;
  o.trainer.options = {{"evaluate_every", o.evaluate_every}};
  if (o.tokens.empty()) {
    o.trainer.options["text"] = std::filesystem::absolute(o.text).string();
  } else {
    o.trainer.config["vocabulary"] = o.vocabulary;
    o.trainer.options["tokens"] = std::filesystem::absolute(o.tokens).string();
    o.trainer.options["validation_tokens"] = std::filesystem::absolute(o.validation_tokens).string();
  }
  auto trainer = troupe::trainer{program, train, o.trainer};
  trainer.set_callbacks(progress(o));
  auto result = trainer.fit_or_throw();
  if (!o.quiet && o.tokens.empty() && o.sample > 0 && !result.latest_checkpoint.empty()) {
    auto sample = generate_text(o, result.latest_checkpoint);
    if (sample)
      std::printf("\nGenerated text (temperature %.1f):\n%s\n\n", o.temperature, sample->c_str());
    else
      std::fprintf(stderr, "gpt: no text: %s\n", sample.error().message.c_str());
  }
  show_validation(o, text, result);
  std::printf("training loss %s after step %llu, %.1f s in total\nstate %s\n",
              troupe::apps::metric_text(result.metrics, "loss", 4).c_str(),
              static_cast<unsigned long long>(result.steps), result.seconds_total, result.state_sha256.c_str());
  return trainer.exit_code();
}

} // namespace

int main(int argc, char** argv) {
  auto train = troupe::function{"train", gpt::train, {troupe::libtorch::make_framework()}};
  auto program = troupe::app{argc, argv, {train}};
  options o;
  CLI::App cli{
      "Trains a small character-level transformer on text; the defaults are nanoGPT's small configuration for CPUs. "
      "The number of worker processes does not change the result, bit for bit.",
      "gpt"};
  describe(cli, o);
  auto dashboard = troupe::apps::dashboard_option{cli};
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  if (auto code = dashboard.open(o.storage))
    return *code;
  const auto given = (o.text.empty() ? 0 : 1) + (o.tokens.empty() ? 0 : 1) + (o.sample_from.empty() ? 0 : 1);
  if (given != 1) {
    std::fprintf(stderr, "gpt: give one of --text and --tokens, to train, or --sample-from, to generate text; see gpt "
                         "--help\n");
    return troupe::apps::exit_usage;
  }
  if (!o.tokens.empty() && o.validation_tokens.empty()) {
    std::fprintf(stderr, "gpt: --tokens needs --validation-tokens, a file of tokens that are not trained on\n");
    return troupe::apps::exit_usage;
  }
  try {
    return o.sample_from.empty() ? run(program, train, o) : write_only(o);
  } catch (const std::exception& x) {
    std::fprintf(stderr, "gpt: %s\n", x.what());
    return 1;
  }
}
