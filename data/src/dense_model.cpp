#include <troupe/data/dense_model.hpp>

#include <troupe/data/evaluation.hpp>
#include <troupe/random.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/train_context.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::data {

namespace {

const column_spec& find_column(const data_set& set, const std::string& name) {
  const auto columns = set.columns();
  const auto found = std::ranges::find(columns, name, &column_spec::name);
  if (found == columns.end()) {
    std::vector<std::string> names;
    for (const auto& each : columns)
      names.push_back(each.name);
    throw exception{errc::not_found, fmt::format("a dense model needs the column '{}': the data set has {}", name,
                                                 fmt::join(names, ", "))};
  }
  return *found;
}

std::uint64_t count_inputs(const data_set& set, const std::string& name) {
  const auto& column = find_column(set, name);
  if (column.type != dtype::f32 || column.elements() == 0)
    throw exception{errc::mismatch,
                    fmt::format("a dense model learns from f32, and column '{}' is {}", name, describe(column))};
  return column.elements();
}

/// The classes of a label, or none for an amount.
std::vector<std::string> classes_of(const data_set& set, const std::string& name) {
  const auto& column = find_column(set, name);
  if (column.elements() != 1 || (!column.categories && column.type != dtype::f32))
    throw exception{errc::mismatch,
                    fmt::format("a dense model learns a class, in a column of i64 codes with categories, or an amount, "
                                "f32; column '{}' is {}",
                                name, describe(column))};
  if (column.categories && column.categories->size() < 2)
    throw exception{errc::mismatch,
                    fmt::format("column '{}' has only one class: a model needs at least two to tell apart", name)};
  return column.categories ? *column.categories : std::vector<std::string>{};
}

/// Where the state's values have the names of a model's classes.
constexpr auto all_classes = "dense_model_classes";

/// Empty if the checkpoint does not have them.
std::vector<std::string> stored_classes(const serialization::checkpoint& source, std::string_view name) {
  const auto values = nlohmann::json::parse(source.content().values_json, nullptr, false);
  const auto place = nlohmann::json::json_pointer{} / all_classes / std::string{name};
  if (!values.is_object() || !values.contains(place) || !values.at(place).is_array())
    return {};
  std::vector<std::string> result;
  for (const auto& each : values.at(place))
    result.push_back(each.is_string() ? each.get<std::string>() : each.dump());
  return result;
}

std::vector<std::uint64_t> sizes_of(const data_set& set, const dense_model_options& options) {
  std::vector<std::uint64_t> result{count_inputs(set, options.inputs)};
  result.insert(result.end(), options.hidden.begin(), options.hidden.end());
  result.push_back(std::max<std::uint64_t>(classes_of(set, options.label).size(), 1));
  if (std::ranges::find(result, std::uint64_t{0}) != result.end())
    throw exception{errc::invalid_argument, "dense_model_options::hidden has a layer of size 0"};
  return result;
}

std::string name_of_layer(std::string_view name, std::size_t index, const char* what) {
  return fmt::format("{}/layer {}/{}", name, index, what);
}

} // namespace

dense_model::dense_model(const std::vector<std::uint64_t>& sizes, dense_model_options options)
    : options_(std::move(options)) {
  std::uint64_t first = 0;
  values_.emplace_back(sizes.front());
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    layers_.push_back({sizes[i - 1], sizes[i], first});
    first += (sizes[i - 1] + 1) * sizes[i];
    values_.emplace_back(sizes[i]);
  }
  derivatives_ = values_;
  parameters_.resize(first);
}

dense_model::dense_model(const data_set& training, std::uint64_t seed, const dense_model_options& options)
    : dense_model(sizes_of(training, options), options) {
  classes_ = classes_of(training, options.label);
  mean_.resize(parameters_.size());
  variance_.resize(parameters_.size());
  for (std::size_t i = 0; i + 1 < layers_.size(); ++i) {
    auto random = random_stream{seed, name_of_layer("dense model", i, "weights")};
    const auto scale = std::sqrt(2.0 / static_cast<double>(layers_[i].inputs));
    for (auto& x : weights_of(layers_[i]))
      x = static_cast<float>(scale * random.normal());
  }
}

std::span<float> dense_model::weights_of(const layer& x) noexcept {
  return std::span{parameters_}.subspan(x.first, x.inputs * x.outputs);
}

std::span<float> dense_model::bias_of(const layer& x) noexcept {
  return std::span{parameters_}.subspan(x.first + x.inputs * x.outputs, x.outputs);
}

void dense_model::track(tracked_state& state, std::string_view name) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto& each = layers_[i];
    state.track(name_of_layer(name, i, "weights"), weights_of(each), {each.inputs, each.outputs});
    state.track(name_of_layer(name, i, "bias"), bias_of(each), {each.outputs});
  }
  state.values()[all_classes][std::string{name}] = classes_;
  state.track(fmt::format("{}/adam/mean", name), mean_);
  state.track(fmt::format("{}/adam/variance", name), variance_);
}

expected<dense_model> dense_model::load(const serialization::checkpoint& source, dense_model_options options,
                                        std::string_view name) {
  std::vector<std::uint64_t> sizes;
  const auto& tensors = source.content().tensors;
  for (std::size_t i = 0;; ++i) {
    const auto found = source.find(name_of_layer(name, i, "weights"));
    if (!found)
      break;
    const auto& spec = tensors[*found].spec;
    if (spec.type != dtype::f32 || spec.shape.size() != 2 || (!sizes.empty() && spec.shape[0] != sizes.back()))
      return fail(errc::mismatch, fmt::format("{}: tensor '{}' is not a layer of a dense model",
                                              source.directory().string(), spec.name));
    if (sizes.empty())
      sizes.push_back(spec.shape[0]);
    sizes.push_back(spec.shape[1]);
  }
  if (sizes.empty())
    return fail(errc::not_found, fmt::format("{} has no dense model '{}'", source.directory().string(), name));
  auto result = dense_model{sizes, std::move(options)};
  result.classes_ = stored_classes(source, name);
  for (std::size_t i = 0; i < result.layers_.size(); ++i) {
    const auto& each = result.layers_[i];
    TROUPE_TRY(source.read_tensor(name_of_layer(name, i, "weights"), std::as_writable_bytes(result.weights_of(each))));
    TROUPE_TRY(source.read_tensor(name_of_layer(name, i, "bias"), std::as_writable_bytes(result.bias_of(each))));
  }
  return result;
}

std::span<const float> dense_model::rows(const batch& samples) const {
  const auto result = samples.values<float>(options_.inputs);
  if (result.size() != samples.size() * inputs())
    throw exception{errc::mismatch,
                    fmt::format("column '{}' has {} numbers for each sample, and the model {} inputs", options_.inputs,
                                result.size() / std::max<std::size_t>(samples.size(), 1), inputs())};
  return result;
}

double dense_model::label_of(const batch& samples, std::size_t sample) const {
  if (!has_classes())
    return static_cast<double>(samples.values<float>(options_.label)[sample]);
  const auto result = samples.values<std::int64_t>(options_.label)[sample];
  if (result < 0 || static_cast<std::uint64_t>(result) >= outputs())
    throw exception{errc::invalid_argument,
                    fmt::format("a label of class {}: the model has {} classes, from 0", result, outputs())};
  return static_cast<double>(result);
}

void dense_model::forward(std::span<const float> input) {
  std::ranges::copy(input, values_.front().begin());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto& each = layers_[i];
    const auto* weight = parameters_.data() + each.first;
    auto& out = values_[i + 1];
    std::copy_n(weight + each.inputs * each.outputs, each.outputs, out.begin());
    for (const auto x : values_[i]) {
      // Most of what ReLU leaves is zero.
      if (x != 0)
        for (std::size_t j = 0; j < out.size(); ++j)
          out[j] += x * weight[j];
      weight += each.outputs;
    }
    if (i + 1 < layers_.size())
      for (auto& x : out)
        x = std::max(x, 0.0f);
  }
}

namespace {

/// Returns the logarithm of the sum that the values' exponentials were divided by.
double to_probabilities(std::span<float> values) {
  const auto largest = static_cast<double>(*std::ranges::max_element(values));
  double total = 0;
  for (const auto x : values)
    total += std::exp(static_cast<double>(x) - largest);
  for (auto& x : values)
    x = static_cast<float>(std::exp(static_cast<double>(x) - largest) / total);
  return largest + std::log(total);
}

} // namespace

double dense_model::differentiate(double label) {
  auto& out = derivatives_.back();
  out = values_.back();
  if (!has_classes()) {
    const auto difference = static_cast<double>(out[0]) - label;
    out[0] = static_cast<float>(difference);
    return difference * difference / 2;
  }
  const auto own = static_cast<std::size_t>(label);
  const auto value = static_cast<double>(out[own]);
  const auto loss = to_probabilities(out) - value;
  out[own] -= 1;
  return loss;
}

double dense_model::add_gradient(const batch& samples, std::span<float> gradient) {
  if (gradient.size() != parameters_.size())
    throw exception{errc::invalid_argument, fmt::format("a gradient of {} elements: the model has {} parameters",
                                                        gradient.size(), parameters_.size())};
  const auto all = rows(samples);
  double loss = 0;
  for (std::size_t n = 0; n < samples.size(); ++n) {
    forward(all.subspan(n * inputs(), inputs()));
    loss += differentiate(label_of(samples, n));
    for (auto i = layers_.size(); i-- > 0;)
      backward(i, gradient);
  }
  return loss;
}

void dense_model::backward(std::size_t index, std::span<float> gradient) {
  const auto& each = layers_[index];
  const auto& out = derivatives_[index + 1];
  auto* weight_gradient = gradient.data() + each.first;
  const auto* weight = parameters_.data() + each.first;
  for (std::size_t i = 0; i < each.inputs; ++i, weight_gradient += each.outputs, weight += each.outputs) {
    const auto x = values_[index][i];
    // A hidden value of 0 was cut off by ReLU, and passes nothing on.
    float sum = 0;
    if (x != 0)
      for (std::size_t j = 0; j < out.size(); ++j) {
        weight_gradient[j] += x * out[j];
        sum += weight[j] * out[j];
      }
    derivatives_[index][i] = sum;
  }
  for (std::size_t j = 0; j < out.size(); ++j)
    weight_gradient[j] += out[j];
}

void dense_model::add_gradient(const batch& samples, shard& target) {
  target.add("loss", add_gradient(samples, target.gradient()));
}

void dense_model::apply(std::span<const float> gradient, std::uint64_t step) {
  constexpr double beta1 = 0.9;
  constexpr double beta2 = 0.999;
  constexpr double epsilon = 1e-8;
  if (gradient.size() != parameters_.size() || mean_.size() != parameters_.size())
    throw exception{errc::invalid_argument, "a dense model takes the gradient of its own parameters, and one that was "
                                            "loaded takes none"};
  const auto at = static_cast<double>(step);
  const auto rate = options_.learning_rate * std::sqrt(1 - std::pow(beta2, at)) / (1 - std::pow(beta1, at));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto g = static_cast<double>(gradient[i]);
    mean_[i] = static_cast<float>(beta1 * static_cast<double>(mean_[i]) + (1 - beta1) * g);
    variance_[i] = static_cast<float>(beta2 * static_cast<double>(variance_[i]) + (1 - beta2) * g * g);
    parameters_[i] -= static_cast<float>(rate * static_cast<double>(mean_[i]) /
                                         (std::sqrt(static_cast<double>(variance_[i])) + epsilon));
  }
}

void dense_model::predict(const batch& samples, std::span<float> out) {
  if (out.size() != samples.size() * outputs())
    throw exception{errc::invalid_argument, fmt::format("space for {} predictions: {} samples have {} each", out.size(),
                                                        samples.size(), outputs())};
  const auto all = rows(samples);
  for (std::size_t n = 0; n < samples.size(); ++n) {
    forward(all.subspan(n * inputs(), inputs()));
    const auto own = out.subspan(n * outputs(), outputs());
    std::ranges::copy(values_.back(), own.begin());
    if (has_classes())
      to_probabilities(own);
  }
}

metric_map dense_model::evaluate(train_context& ctx, const data_set& set, std::string_view prefix) {
  // The loss, and hits, or the labels' sum and sum of squares.
  const auto sums = data::evaluate(ctx, set, 3, [this](const batch& samples, std::span<double> sums) {
    const auto all = rows(samples);
    for (std::size_t n = 0; n < samples.size(); ++n) {
      const auto label = label_of(samples, n);
      forward(all.subspan(n * inputs(), inputs()));
      const auto& out = values_.back();
      const auto likeliest = static_cast<double>(std::ranges::max_element(out) - out.begin());
      sums[0] += differentiate(label);
      sums[1] += has_classes() ? (likeliest == label ? 1 : 0) : label;
      sums[2] += has_classes() ? 0 : label * label;
    }
  });
  const auto n = static_cast<double>(set.size());
  metric_map result{{fmt::format("{}loss", prefix), sums[0] / n}};
  const auto spread = sums[2] - sums[1] * sums[1] / n;
  if (has_classes())
    result.emplace(fmt::format("{}accuracy", prefix), sums[1] / n);
  else if (spread > 0)
    result.emplace(fmt::format("{}r2", prefix), 1 - 2 * sums[0] / spread);
  return result;
}

} // namespace troupe::data
