#include "prediction_file.hpp"
#include "prediction_settings.hpp"

#include <troupe/inference/batch_predictor.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::inference {

namespace fs = std::filesystem;

class batch_predictor::impl {
 public:
  impl(const app& program, const function& predict, batch_prediction_config config)
      : config_(checked(std::move(config))), trainer_(program, predict, trainer_configuration()) {}

  static batch_prediction_config checked(batch_prediction_config config) {
    if (config.block_rows == 0)
      throw exception{errc::invalid_argument, "batch_prediction_config.block_rows is 0: give at least 1"};
    if (!config.output.empty()) {
      (void)value_or_throw(format_of(config.output));
      if (config.existing == serialization::existing_file::keep && fs::exists(config.output))
        throw exception{
            errc::already_exists,
            fmt::format("{} already exists: choose another name, or allow replacing it", config.output.string())};
    }
    config.checkpoint = fs::absolute(config.checkpoint);
    return config;
  }

  trainer_config trainer_configuration() const {
    auto model = value_or_throw(serialization::checkpoint::open(config_.checkpoint));
    auto settings = prediction_settings{value_or_throw(serialization::state_sha256(model)),
                                        config_.preprocessor,
                                        config_.block_rows,
                                        config_.trainer.config,
                                        config_.checkpoint.string(),
                                        config_.trainer.options};
    auto result = config_.trainer;
    result.run.steps = 0;
    result.load_checkpoint.clear();
    result.config = config_of(settings);
    result.options = options_of(settings);
    if (result.run.resume == resume_mode::automatic && is_of_another_model(result.run, settings.model_sha256))
      result.run.resume = resume_mode::restart;
    return result;
  }

  /// Whether the run of this name predicts with another model, such as this one before it was trained further. It does
  /// not go on with this one: it is moved aside.
  static bool is_of_another_model(const run_config& run, const std::string& model) {
    if (run.name.empty())
      return false;
    const auto latest = serialization::open_latest(run.storage_path / run.name / "checkpoints");
    if (!latest)
      return false;
    const auto theirs = nlohmann::json::parse(latest->found.content().configuration_json, nullptr, false);
    return theirs.is_object() && theirs.contains("block_rows") && theirs.contains("model_sha256") &&
           theirs["model_sha256"] != model;
  }

  void install_callbacks() {
    auto all = callbacks_;
    if (progress_)
      all.progress = [this](const run_progress& what) {
        if (auto done = what.metrics.find("rows"); done != what.metrics.end())
          progress_(static_cast<std::uint64_t>(done->second),
                    static_cast<std::uint64_t>(what.metrics.at("rows_of_all")));
        if (callbacks_.progress)
          callbacks_.progress(what);
      };
    trainer_.set_callbacks(std::move(all));
  }

  expected<prediction_result> run() {
    install_callbacks();
    prediction_result result;
    result.run = trainer_.fit();
    if (result.run.status == run_status::failed)
      return fail(result.run.reason);
    if (result.run.status == run_status::stopped || config_.output.empty())
      return result;
    TROUPE_TRY(auto predictions, serialization::checkpoint::open(result.run.latest_checkpoint));
    TROUPE_TRY(auto rows, write_predictions(predictions, config_.output, config_.existing));
    result.rows = rows;
    return result;
  }

  batch_prediction_config config_;
  troupe::trainer trainer_;
  run_callbacks callbacks_;
  std::function<void(std::uint64_t, std::uint64_t)> progress_;
};

batch_predictor::batch_predictor(const app& program, const function& predict, batch_prediction_config config)
    : impl_(std::make_unique<impl>(program, predict, std::move(config))) {}

batch_predictor::~batch_predictor() = default;

void batch_predictor::set_progress(std::function<void(std::uint64_t done, std::uint64_t all)> function) {
  impl_->progress_ = std::move(function);
}

void batch_predictor::set_callbacks(run_callbacks callbacks) {
  impl_->callbacks_ = std::move(callbacks);
}

expected<prediction_result> batch_predictor::run() {
  return impl_->run();
}

void batch_predictor::stop() {
  impl_->trainer_.stop();
}

int batch_predictor::exit_code() const noexcept {
  return impl_->trainer_.exit_code();
}

} // namespace troupe::inference
