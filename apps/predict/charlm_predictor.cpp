#include "models.hpp"

#include <charlm/model.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

namespace predict {

namespace {

using namespace troupe;

class charlm_predictor final : public inference::predictor {
 public:
  explicit charlm_predictor(charlm::model model) : model_(std::move(model)) {}

  const std::vector<std::string>& outputs() const noexcept override { return outputs_; }

  expected<void> predict(data::batch& rows, std::span<float> out) override {
    auto width = model_.shape().context;
    auto contexts = rows.values<std::uint8_t>("context");
    auto targets = rows.values<std::uint8_t>("target");
    std::array<float, charlm::byte_values> logits{};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      model_.predict(contexts.subspan(i * width, width), logits);
      auto largest = std::ranges::max_element(logits);
      double total = 0;
      for (auto each : logits)
        total += std::exp(static_cast<double>(each) - static_cast<double>(*largest));
      out[2 * i] = static_cast<float>(largest - logits.begin());
      out[2 * i + 1] =
          static_cast<float>(static_cast<double>(logits[targets[i]]) - static_cast<double>(*largest) - std::log(total));
    }
    return {};
  }

 private:
  std::vector<std::string> outputs_{"likeliest_byte", "log_probability"};
  charlm::model model_;
};

std::uint64_t dimension(const serialization::checkpoint& from, const char* tensor, std::size_t which) {
  auto index = from.find(tensor);
  if (!index || from.content().tensors[*index].spec.shape.size() != 2)
    throw exception{errc::not_found,
                    fmt::format("{} does not contain a model of charlm: it has no tensor '{}' of two dimensions",
                                from.directory().string(), tensor)};
  return from.content().tensors[*index].spec.shape[which];
}

} // namespace

loaded_model load_charlm_model(const serialization::checkpoint& source) {
  auto shape = charlm::model_shape{};
  shape.embedding = dimension(source, "embedding", 1);
  shape.hidden = dimension(source, "hidden.weight", 0);
  shape.context = dimension(source, "hidden.weight", 1) / std::max<std::size_t>(1, shape.embedding);
  auto model = charlm::model{shape};
  for (auto& tensor : model.tensors())
    value_or_throw(source.read_tensor(tensor.name, std::as_writable_bytes(tensor.values)));
  return {std::make_unique<charlm_predictor>(std::move(model)),
          {{"context", dtype::u8, {shape.context}, {}}, {"target", dtype::u8, {}, {}}}};
}

} // namespace predict
