// Predicts for a whole file with a checkpoint of charlm (for a text), trees or learn_table (for a CSV table) or mnist
// (for an IDX file of images), or with an ONNX model (for any of the last two, or an array). Writes one line, or one
// row of an array, for each row of the file.
#include "jobs.hpp"

#include <command_line.hpp>

#include <troupe/inference/batch_predictor.hpp>
#include <troupe/lightgbm.hpp>
#include <troupe/onnxruntime.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/tensorflow.hpp>
#include <troupe/troupe.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>

namespace {

using namespace troupe;

inference::prediction_job make_job(const inference::prediction_request& request) {
  auto kind = value_or_throw(predict::kind_of(request.model));
  if (kind == predict::model_kind::onnx)
    return predict::make_onnx_job(request);
  if (kind == predict::model_kind::keras)
    return predict::make_keras_job(request);
  if (kind == predict::model_kind::table)
    return predict::make_table_job(request);
  return kind == predict::model_kind::charlm ? predict::make_charlm_job(request)
                                             : predict::make_trees_job(request, kind);
}

/// A run's directory means its latest checkpoint.
std::filesystem::path checkpoint_in(const std::filesystem::path& path) {
  auto all = path / "checkpoints";
  return std::filesystem::is_directory(all) ? value_or_throw(serialization::open_latest(all)).found.directory() : path;
}

/// Returns the kind of the checkpoint. Throws `exception` for errors that can be found before workers are started.
predict::model_kind check(const inference::batch_prediction_config& config) {
  auto kind = value_or_throw(predict::kind_of(value_or_throw(serialization::checkpoint::open(config.checkpoint))));
  auto library = config.trainer.options.at("lightgbm_library").get<std::string>();
  if (kind != predict::model_kind::lightgbm && !library.empty())
    throw exception{errc::invalid_argument,
                    fmt::format("--lightgbm-library: {} does not contain a LightGBM model: omit the option",
                                config.checkpoint.string())};
  // Workers on this host would fail, so report a missing library now.
  if (kind == predict::model_kind::lightgbm && config.trainer.cluster.is_embedded())
    if (auto found = lightgbm::find_library(library); !found)
      throw exception{found.error().code, fmt::format("{}; or use --lightgbm-library PATH", found.error().message)};
  if ((kind == predict::model_kind::keras) == config.trainer.options.at("keras_model").get<std::string>().empty())
    throw exception{errc::invalid_argument,
                    kind == predict::model_kind::keras
                        ? "the checkpoint is of a Keras model: name the exported model with --keras-model DIRECTORY"
                        : "--keras-model: the checkpoint is not of a Keras model: omit the option"};
  if (kind == predict::model_kind::keras && config.trainer.cluster.is_embedded())
    value_or_throw(tensorflow::find_library());
  const auto onnxruntime = config.trainer.options.at("onnxruntime_library").get<std::string>();
  if (kind == predict::model_kind::onnx && config.trainer.cluster.is_embedded())
    if (auto found = onnxruntime::find_library(onnxruntime); !found)
      throw exception{found.error().code, fmt::format("{}; or use --onnxruntime-library PATH", found.error().message)};
  return kind;
}

/// The default name of the run. The same command resumes its run; another model, file or output is another run.
std::string name_of_run(const inference::batch_prediction_config& config, const std::string& file) {
  auto name = "predict-" + config.output.stem().string();
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '_' && c != '-'; }, '_');
  auto all = config.checkpoint.string() + '\n' + file + '\n' + std::filesystem::absolute(config.output).string();
  return fmt::format("{}-{:08x}", name.substr(0, 60), serialization::xxh3(std::as_bytes(std::span{all})) & 0xffffffffu);
}

int run(const app& program, const function& predict_rows, inference::batch_prediction_config config) {
  config.checkpoint = std::filesystem::absolute(checkpoint_in(config.checkpoint));
  auto& name = config.trainer.run.name;
  if (name.empty())
    name = name_of_run(config, config.trainer.options.at("file").get<std::string>());
  // Workers for mnist need LibTorch, which this program does not link. Their function has the same name.
  auto is_mnist = check(config) == predict::model_kind::mnist;
  auto with_torch =
      is_mnist ? std::optional{app{program.argc(), program.argv(), worker_program{"mnist-worker"}}} : std::nullopt;
  auto predictor = inference::batch_predictor{is_mnist ? *with_torch : program, predict_rows, std::move(config)};
  if (::isatty(STDERR_FILENO) == 1)
    predictor.set_progress([](std::uint64_t done, std::uint64_t all) {
      std::fprintf(stderr, "\r%llu of %llu rows%s", static_cast<unsigned long long>(done),
                   static_cast<unsigned long long>(all), done == all ? "\n" : "");
    });
  auto result = predictor.run();
  if (!result) {
    std::fprintf(stderr, "predict: %s\n", result.error().message.c_str());
    return 1;
  }
  if (result->run.status == run_status::completed)
    std::printf("%llu rows in %.1f s\n", static_cast<unsigned long long>(result->rows), result->run.seconds_total);
  else
    std::printf("stopped; the same command continues\n");
  return predictor.exit_code();
}

} // namespace

int main(int argc, char** argv) {
  auto predict_rows = inference::prediction_function("predict", make_job);
  auto program = app{argc, argv, {predict_rows}};
  inference::batch_prediction_config config;
  config.trainer.checkpoint.every_steps = 16;
  auto workers = std::uint32_t{2};
  std::string checkpoint;
  std::string onnx;
  std::string output;
  std::string file;
  std::string lightgbm_library;
  std::string onnxruntime_library;
  std::string keras_model;
  std::string storage = "runs";
  auto replace = false;
  CLI::App cli{"Predicts for every row of a file with a checkpoint of charlm, trees or mnist, or with an ONNX model.",
               "predict"};
  auto* models = cli.add_option_group("model", "What to predict with");
  models->add_option("--checkpoint", checkpoint, "A checkpoint, or a run's directory");
  models->add_option("--onnx", onnx, "An ONNX model");
  models->require_option(1);
  cli.add_option(
         "--file", file,
         "A text for charlm, a CSV table for trees, IDX images for mnist; for an ONNX model a CSV table, an NPY "
         "array or IDX images")
      ->required();
  cli.add_option("--output", output, "What to write: a name that ends in .csv or .npy")->required();
  cli.add_flag("--replace", replace, "Replace an existing output");
  cli.add_option("--block", config.block_rows, "Rows that the workers predict between two synchronisations")
      ->capture_default_str();
  cli.add_option("--lightgbm-library", lightgbm_library,
                 "For a LightGBM model: the path of lib_lightgbm.so on each host (default: $TROUPE_LIGHTGBM, else that "
                 "of a Python package in the usual places)");
  cli.add_option(
      "--onnxruntime-library", onnxruntime_library,
      "For an ONNX model: the path of libonnxruntime.so on each host (default: $TROUPE_ONNXRUNTIME, else that "
      "of a Python package in the usual places)");
  cli.add_option(
      "--keras-model", keras_model,
      "For a checkpoint of keras: the exported model's directory on each host; TensorFlow's library is that of "
      "$TROUPE_TENSORFLOW, else of a Python package in the usual places");
  cli.add_option("--workers", workers, "Worker processes")->capture_default_str();
  apps::add_nodes(cli, config.trainer.cluster);
  apps::add_leases(cli, config.trainer.scaling);
  cli.add_option("--storage", storage, "Directory that contains the run's directory")->capture_default_str();
  cli.add_option("--name", config.trainer.run.name,
                 "Name of the run's directory (default: derived from output, checkpoint and file)");
  if (auto code = apps::parse_command_line(cli, argc, argv))
    return *code;
  config.output = output;
  config.existing = replace ? serialization::existing_file::replace : serialization::existing_file::keep;
  config.trainer.scaling.num_workers = workers;
  config.trainer.run.storage_path = storage;
  try {
    for (auto* each : {&lightgbm_library, &onnxruntime_library, &keras_model})
      if (!each->empty())
        *each = std::filesystem::absolute(*each).string();
    config.trainer.options = {{"file", std::filesystem::absolute(file).string()},
                              {"lightgbm_library", lightgbm_library},
                              {"onnxruntime_library", onnxruntime_library},
                              {"keras_model", keras_model}};
    // Beside the runs, whose hosts need it under the same path as any checkpoint.
    config.checkpoint =
        onnx.empty() ? std::filesystem::path{checkpoint}
                     : value_or_throw(onnxruntime::store_model(onnx, std::filesystem::path{storage} / "onnx-models"));
    return run(program, predict_rows, std::move(config));
  } catch (const std::exception& x) {
    std::fprintf(stderr, "predict: %s\n", x.what());
    return 1;
  }
}
