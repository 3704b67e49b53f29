#include <gpt/writer.hpp>

#include <gpt/network.hpp>

#include <troupe/libtorch.hpp>
#include <troupe/random.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace gpt {

using namespace troupe;

namespace {

/// Empty if a score is not finite.
std::optional<std::size_t> draw(std::span<const float> scores, double temperature, random_stream& random) {
  if (!std::ranges::all_of(scores, [](float x) { return std::isfinite(x); }))
    return std::nullopt;
  auto likeliest = static_cast<std::size_t>(std::ranges::max_element(scores) - scores.begin());
  if (temperature <= 0)
    return likeliest;
  std::vector<double> weights;
  double total = 0;
  for (auto each : scores) {
    weights.push_back(std::exp((static_cast<double>(each) - static_cast<double>(scores[likeliest])) / temperature));
    total += weights.back();
  }
  auto left = random.uniform() * total;
  for (std::size_t i = 0; i < weights.size(); ++i)
    if ((left -= weights[i]) < 0)
      return i;
  return likeliest;
}

} // namespace

expected<writer> writer::open(const serialization::checkpoint& source) {
  auto values = nlohmann::json::parse(source.content().values_json, nullptr, false);
  if (!values.is_object() || !values.contains(description_value))
    return fail(errc::not_found, fmt::format("{} does not contain a model of gpt", source.directory().string()));
  try {
    const auto& said = values.at(description_value);
    auto characters = vocabulary{said.at("characters").get<std::vector<std::uint8_t>>()};
    if (characters.size() == 0)
      return fail(errc::unsatisfiable, fmt::format("{}: the model was trained on a file of tokens, and gpt cannot turn "
                                                   "these into text",
                                                   source.directory().string()));
    auto shape = network_shape{static_cast<std::int64_t>(characters.size()), said.at("block_size"), said.at("layers"),
                               said.at("heads"), said.at("embedding")};
    at::set_num_threads(1);
    auto model = std::make_shared<network>(shape, 0.0);
    std::vector<std::string> outputs;
    for (std::size_t token = 0; token < characters.size(); ++token)
      outputs.push_back(fmt::format("score_{}", characters.characters()[token]));
    auto next = [model](const data::batch& rows) {
      return model->forward(libtorch::tensor_of(rows, "tokens").to(torch::kLong)).select(1, -1);
    };
    auto predictor = libtorch::load_predictor(source, model, std::move(outputs), next);
    if (!predictor)
      return fail(std::move(predictor.error()));
    return writer{std::move(characters), static_cast<std::size_t>(shape.block), std::move(*predictor)};
  } catch (const nlohmann::json::exception& x) {
    return fail(errc::damaged, fmt::format("{}: cannot parse the description of gpt's model: {}",
                                           source.directory().string(), x.what()));
  }
}

expected<std::string> writer::write(std::string_view prompt, std::size_t count, double temperature,
                                    std::uint64_t seed) {
  auto start = std::vector<std::uint8_t>{prompt.begin(), prompt.end()};
  if (start.empty())
    start.push_back(characters_.characters().front());
  auto tokens = characters_.encode(start);
  if (!tokens)
    return fail(std::move(tokens.error()));
  auto random = random_stream{seed, "text"};
  std::vector<float> scores(characters_.size());
  std::string result;
  data::batch window;
  while (result.size() < count) {
    auto length = std::min(tokens->size(), block_);
    auto column = data::column_spec{"tokens", dtype::u8, {length}, {}};
    window.reset({&column, 1}, 1);
    std::copy(tokens->end() - static_cast<std::ptrdiff_t>(length), tokens->end(),
              window.values<std::uint8_t>("tokens").begin());
    if (auto predicted = model_->predict(window, scores); !predicted)
      return fail(std::move(predicted.error()));
    auto next = draw(scores, temperature, random);
    if (!next)
      return fail(errc::invalid_argument, "the model's scores are not finite, so its training diverged");
    tokens->push_back(static_cast<std::uint8_t>(*next));
    result += static_cast<char>(characters_.characters()[*next]);
  }
  return result;
}

} // namespace gpt
