#include <troupe/inference/predictor.hpp>

#include <utility>

namespace troupe::inference {

namespace {

class preprocessed_predictor final : public predictor {
 public:
  preprocessed_predictor(std::shared_ptr<const data::preprocessor> how, predictor_ptr model)
      : how_(std::move(how)), model_(std::move(model)) {}

  const std::vector<std::string>& outputs() const noexcept override { return model_->outputs(); }

  std::string library() const override { return model_->library(); }

  expected<void> predict(data::batch& rows, std::span<float> out) override {
    TROUPE_TRY(how_->transform(rows));
    return model_->predict(rows, out);
  }

  bool is_usable() const noexcept override { return model_->is_usable(); }

 private:
  std::shared_ptr<const data::preprocessor> how_;
  predictor_ptr model_;
};

} // namespace

predictor_ptr preprocessed(std::shared_ptr<const data::preprocessor> how, predictor_ptr model) {
  return std::make_unique<preprocessed_predictor>(std::move(how), std::move(model));
}

expected<std::vector<float>> predict_rows(predictor& model, const data::data_set& set,
                                          std::span<const std::uint64_t> rows) {
  data::batch samples;
  TROUPE_TRY(set.fetch(rows, samples));
  std::vector<float> result(rows.size() * model.outputs().size());
  TROUPE_TRY(model.predict(samples, result));
  return result;
}

} // namespace troupe::inference
