#include <troupe/inference/table_predictor.hpp>

#include <troupe/data/dense_model.hpp>
#include <troupe/data/labelled_table.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
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

/// The categories of a column, if it has texts.
data::category_names learned_texts(const std::string& name, std::span<const tensor_view> learned) {
  const auto find = [&](const std::string& what) {
    return std::ranges::find(learned, name + what, [](const tensor_view& each) { return each.spec.name; });
  };
  const auto ends = find(".ends");
  const auto texts = find(".texts");
  if (ends == learned.end() || texts == learned.end())
    return nullptr;
  std::vector<std::string> result;
  std::size_t begin = 0;
  for (std::uint64_t i = 0; i < ends->spec.elements(); ++i) {
    std::int64_t end = 0;
    std::memcpy(&end, ends->data + i * sizeof end, sizeof end);
    const auto size = static_cast<std::size_t>(end) - begin;
    result.emplace_back(reinterpret_cast<const char*>(texts->data) + begin, size);
    begin += size;
  }
  return std::make_shared<const std::vector<std::string>>(std::move(result));
}

/// The columns that a part of a chain is the first to take.
void append_columns(std::vector<data::column_spec>& target, const nlohmann::json& part, const std::string& prefix,
                    std::span<const tensor_view> learned) {
  const auto kind = part.at("kind").get<std::string>();
  if (kind != "standard_scaler" && kind != "one_hot_encoder")
    return;
  for (const auto& name : part.at("columns").get<std::vector<std::string>>()) {
    auto texts = kind == "one_hot_encoder" ? learned_texts(prefix + name, learned) : nullptr;
    const auto is_number = kind == "standard_scaler";
    target.push_back({name, is_number ? dtype::f64 : dtype::i64, {}, std::move(texts)});
  }
}

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

expected<std::vector<data::column_spec>> table_columns(const serialization::checkpoint& source,
                                                       std::string_view inputs) {
  TROUPE_TRY(auto prepare, data::load_preprocessor(source, inputs));
  std::vector<tensor_view> learned;
  prepare->list_state({}, learned);
  std::vector<data::column_spec> result;
  try {
    const auto parts = prepare->description().at("parts");
    for (std::size_t i = 0; i < parts.size(); ++i)
      append_columns(result, parts[i], fmt::format("{}.", i), learned);
  } catch (const nlohmann::json::exception&) {
    result.clear();
  }
  if (result.empty())
    return fail(errc::mismatch, fmt::format("preprocessor '{}' in {} is not one of data::prepare", inputs,
                                            source.directory().string()));
  return result;
}

} // namespace troupe::inference
