#include <troupe/inference/table_predictor.hpp>

#include <troupe/data/dense_model.hpp>
#include <troupe/data/labelled_table.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace troupe::inference {

namespace {

class table_predictor final : public predictor {
 public:
  /// `label` is null for classes.
  table_predictor(data::preprocessor_ptr inputs, data::dense_model model, data::preprocessor_ptr label)
      : inputs_(std::move(inputs)), model_(std::move(model)), label_(std::move(label)), outputs_(model_.classes()) {
    if (outputs_.empty())
      outputs_.emplace_back("label");
  }

  const std::vector<std::string>& outputs() const noexcept override { return outputs_; }

  expected<void> predict(data::batch& rows, std::span<float> out) override {
    TROUPE_TRY(inputs_->transform(rows));
    try {
      model_.predict(rows, out);
    } catch (const exception& x) {
      return fail(x.reason());
    }
    return label_ == nullptr ? expected<void>{} : to_amounts(out);
  }

 private:
  expected<void> to_amounts(std::span<float> out) {
    const auto columns = std::array{data::column_spec{"label", dtype::f32, {}, {}}};
    amounts_.reset(columns, out.size());
    std::ranges::copy(out, amounts_.values<float>("label").begin());
    TROUPE_TRY(label_->inverse(amounts_));
    std::ranges::copy(amounts_.values<float>("label"), out.begin());
    return {};
  }

  data::preprocessor_ptr inputs_;
  data::dense_model model_;
  data::preprocessor_ptr label_;
  std::vector<std::string> outputs_;
  data::batch amounts_;
};

} // namespace

expected<predictor_ptr> load_table_predictor(const serialization::checkpoint& source, std::string_view inputs,
                                             std::string_view model) {
  TROUPE_TRY(auto prepare, data::load_preprocessor(source, inputs));
  TROUPE_TRY(auto loaded, data::dense_model::load(source, {}, model));
  data::preprocessor_ptr label;
  if (loaded.outputs() == 1) {
    TROUPE_TRY(label, data::load_preprocessor(source, data::label_scaler_name(inputs)));
  }
  return std::make_unique<table_predictor>(std::move(prepare), std::move(loaded), std::move(label));
}

} // namespace troupe::inference
