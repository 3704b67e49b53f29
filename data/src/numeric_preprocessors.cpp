#include "column_preprocessor.hpp"

#include <troupe/data/evaluation.hpp>

#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::data {

namespace {

/// How many samples are fetched at a time during a fit.
constexpr std::uint64_t piece_samples = 1024;

/// Maps numbers to f32 numbers, feature by feature.
class numeric_preprocessor : public column_preprocessor {
 public:
  using column_preprocessor::column_preprocessor;

 protected:
  [[nodiscard]] expected<column_spec> output_column(const column_spec& column) const override {
    TROUPE_TRY(check(column));
    for (const auto* what : learned())
      TROUPE_TRY(kept(column, what));
    return column_spec{column.name, dtype::f32, column.shape, {}};
  }

  /// The names of what `fit` keeps for each feature.
  [[nodiscard]] virtual std::vector<const char*> learned() const { return {}; }

  [[nodiscard]] expected<void> check(const column_spec& column) const {
    if (column.categories || !is_readable(column.type))
      return fail(errc::mismatch, fmt::format("{}: column '{}' is {}, and this takes numbers: encode it", kind(),
                                              column.name, column.categories ? "categorical" : describe(column)));
    return {};
  }

  /// The index of each column's first feature; the last entry is the total.
  [[nodiscard]] std::vector<std::size_t> features_of(const data_set& training) const {
    std::vector<std::size_t> result{0};
    for (const auto& name : columns()) {
      const auto& column = training.columns()[value_or_throw(index_of(training.columns(), name))];
      value_or_throw(check(column));
      result.push_back(result.back() + column.elements());
    }
    return result;
  }

  /// Calls `f(feature, value)` for every number of these samples that is not NaN.
  template <class F>
  void for_each_number(exact_reduction& reduction, const data_set& training, std::span<const std::uint64_t> samples,
                       F f) const {
    for_each_batch(reduction, training, samples, piece_samples, [&](const batch& piece) {
      std::size_t first = 0;
      for (const auto& name : columns()) {
        auto index = piece.index_of(name);
        const auto& column = piece.columns()[index];
        auto elements = column.elements();
        with_numbers(column.type, piece.bytes(index), [&](auto numbers) {
          for (std::size_t i = 0; i < numbers.size(); ++i)
            if (auto value = static_cast<double>(numbers[i]); !std::isnan(value))
              f(first + i % elements, value);
        });
        first += elements;
      }
    });
  }

  [[nodiscard]] exception cannot_learn(const std::vector<std::size_t>& begins, std::size_t feature,
                                       const std::string& why) const {
    std::size_t c = 0;
    while (begins[c + 1] <= feature)
      ++c;
    return exception{errc::invalid_argument, fmt::format("{}: column '{}', number {} of a sample: {}", kind(),
                                                         columns()[c], feature - begins[c], why)};
  }

  /// The features' means over the training data, the same bits for any number of workers; also sets `counts`.
  [[nodiscard]] std::vector<double> means(const data_set& training, exact_reduction& reduction,
                                          const std::vector<std::size_t>& begins, std::vector<double>& counts) const {
    auto features = begins.back();
    auto sums = reduction.sum(training.size(), 2 * features,
                              [&](std::span<const std::uint64_t> samples, std::span<double> out) {
                                for_each_number(reduction, training, samples, [&](std::size_t feature, double value) {
                                  out[feature] += value;
                                  out[features + feature] += 1;
                                });
                              });
    counts.assign(sums.begin() + static_cast<std::ptrdiff_t>(features), sums.end());
    sums.resize(features);
    for (std::size_t i = 0; i < features; ++i) {
      if (counts[i] == 0)
        throw cannot_learn(begins, i, "all values are missing");
      sums[i] /= counts[i];
      if (!std::isfinite(sums[i]))
        throw cannot_learn(begins, i, "the mean is not finite: check for infinite values");
    }
    return sums;
  }

  /// Stores a number for each feature, column by column.
  void keep(const std::vector<std::size_t>& begins, const char* what, const std::vector<double>& values) {
    for (std::size_t c = 0; c < columns().size(); ++c)
      set_state(columns()[c] + "." + what,
                std::span<const double>{values}.subspan(begins[c], begins[c + 1] - begins[c]));
  }

  /// What was stored for a column; fails if nothing was, or for another shape.
  [[nodiscard]] expected<std::span<const double>> kept(const column_spec& column, const char* what) const {
    auto name = column.name + "." + what;
    if (find_state(name) == nullptr)
      return not_fitted(column);
    auto values = state_values<double>(name);
    if (values.size() != column.elements())
      return fail(errc::mismatch, fmt::format("{}: column '{}' is {}, and this was fitted on {} numbers per sample",
                                              kind(), column.name, describe(column), values.size()));
    return values;
  }

  /// Calls `f(value, feature)` for every number and writes the result.
  template <class F>
  static void map(const column_spec& column, std::span<const std::byte> from, std::span<std::byte> to, F f) {
    auto elements = column.elements();
    auto* out = reinterpret_cast<float*>(to.data());
    with_numbers(column.type, from, [&](auto numbers) {
      for (std::size_t i = 0; i < numbers.size(); i += elements)
        for (std::size_t feature = 0; feature < elements; ++feature)
          out[i + feature] = static_cast<float>(f(static_cast<double>(numbers[i + feature]), feature));
    });
  }
};

/// f(x) = (x - offset) / scale + shift, feature by feature. Offset and scale are learned.
class linear_scaler : public numeric_preprocessor {
 public:
  using numeric_preprocessor::numeric_preprocessor;

 protected:
  [[nodiscard]] virtual double shift() const noexcept { return 0; }

  [[nodiscard]] std::vector<const char*> learned() const override { return {"offset", "scale"}; }

  [[nodiscard]] expected<void> apply(const column_spec& column, std::span<const std::byte> from,
                                     std::span<std::byte> to) const override {
    auto offset = value_or_throw(kept(column, "offset"));
    auto scale = value_or_throw(kept(column, "scale"));
    auto add = shift();
    map(column, from, to, [&](double x, std::size_t i) { return (x - offset[i]) / scale[i] + add; });
    return {};
  }

  [[nodiscard]] expected<column_spec> inverse_column(const column_spec& column) const override {
    return output_column(column);
  }

  [[nodiscard]] expected<void> apply_inverse(const column_spec& column, std::span<const std::byte> from,
                                             std::span<std::byte> to) const override {
    auto offset = value_or_throw(kept(column, "offset"));
    auto scale = value_or_throw(kept(column, "scale"));
    auto subtract = shift();
    map(column, from, to, [&](double x, std::size_t i) { return (x - subtract) * scale[i] + offset[i]; });
    return {};
  }
};

class standard final : public linear_scaler {
 public:
  using linear_scaler::linear_scaler;

  void fit(const data_set& training, exact_reduction& reduction) override {
    auto begins = features_of(training);
    std::vector<double> counts;
    auto mean = means(training, reduction, begins, counts);
    auto deviation =
        reduction.sum(training.size(), mean.size(), [&](std::span<const std::uint64_t> samples, std::span<double> out) {
          for_each_number(reduction, training, samples, [&](std::size_t feature, double value) {
            auto difference = value - mean[feature];
            out[feature] += difference * difference;
          });
        });
    for (std::size_t i = 0; i < deviation.size(); ++i) {
      deviation[i] = std::sqrt(deviation[i] / counts[i]);
      if (!std::isfinite(deviation[i]))
        throw cannot_learn(begins, i, "the variance is not finite: the values are too large");
      if (deviation[i] == 0)
        deviation[i] = 1;
    }
    keep(begins, "offset", mean);
    keep(begins, "scale", deviation);
  }

 protected:
  [[nodiscard]] std::string_view kind() const noexcept override { return "standard_scaler"; }
};

class min_max final : public linear_scaler {
 public:
  min_max(std::vector<std::string> columns, double low, double high)
      : linear_scaler(std::move(columns)), low_(low), high_(high) {
    if (!(low < high) || !std::isfinite(high - low))
      throw exception{errc::invalid_argument,
                      fmt::format("min_max_scaler: {} to {} is not a range: low must be below high", low, high)};
  }

  void fit(const data_set& training, exact_reduction& reduction) override {
    auto begins = features_of(training);
    auto features = begins.back();
    constexpr auto infinity = std::numeric_limits<double>::infinity();
    auto find = [&](std::span<const std::uint64_t> samples, std::span<double> out) {
      auto least = out.first(features);
      auto most = out.subspan(features);
      std::ranges::fill(least, infinity);
      std::ranges::fill(most, -infinity);
      for_each_number(reduction, training, samples, [&](std::size_t feature, double value) {
        least[feature] = std::min(least[feature], value);
        most[feature] = std::max(most[feature], value);
      });
    };
    std::vector<double> least(features, infinity);
    std::vector<double> most(features, -infinity);
    for (const auto& found : reduction.collect(training.size(), 2 * features, find))
      for (std::size_t i = 0; i < features; ++i) {
        least[i] = std::min(least[i], found[i]);
        most[i] = std::max(most[i], found[features + i]);
      }
    for (std::size_t i = 0; i < features; ++i) {
      if (least[i] > most[i])
        throw cannot_learn(begins, i, "all values are missing");
      most[i] = (most[i] - least[i]) / (high_ - low_);
      if (!std::isfinite(least[i]) || !std::isfinite(most[i]))
        throw cannot_learn(begins, i, "the range is not finite: check for infinite values");
      if (most[i] == 0)
        most[i] = 1;
    }
    keep(begins, "offset", least);
    keep(begins, "scale", most);
  }

 protected:
  [[nodiscard]] std::string_view kind() const noexcept override { return "min_max_scaler"; }
  [[nodiscard]] nlohmann::json options() const override { return {{"low", low_}, {"high", high_}}; }
  [[nodiscard]] double shift() const noexcept override { return low_; }

 private:
  double low_;
  double high_;
};

class imputer final : public numeric_preprocessor {
 public:
  using numeric_preprocessor::numeric_preprocessor;

  void fit(const data_set& training, exact_reduction& reduction) override {
    auto begins = features_of(training);
    std::vector<double> counts;
    keep(begins, "mean", means(training, reduction, begins, counts));
  }

 protected:
  [[nodiscard]] std::string_view kind() const noexcept override { return "mean_imputer"; }

  [[nodiscard]] std::vector<const char*> learned() const override { return {"mean"}; }

  [[nodiscard]] expected<void> apply(const column_spec& column, std::span<const std::byte> from,
                                     std::span<std::byte> to) const override {
    auto mean = value_or_throw(kept(column, "mean"));
    map(column, from, to, [&](double x, std::size_t i) { return std::isnan(x) ? mean[i] : x; });
    return {};
  }
};

/// A preprocessor that learns nothing; fitting checks that the columns exist.
class fixed_preprocessor : public numeric_preprocessor {
 public:
  using numeric_preprocessor::numeric_preprocessor;

  void fit(const data_set& training, exact_reduction&) override { (void)features_of(training); }
};

class normalising final : public fixed_preprocessor {
 public:
  normalising(std::vector<std::string> columns, vector_norm norm)
      : fixed_preprocessor(std::move(columns)), norm_(norm) {}

 protected:
  [[nodiscard]] std::string_view kind() const noexcept override { return "normaliser"; }
  [[nodiscard]] nlohmann::json options() const override {
    return {{"norm", norm_ == vector_norm::l1 ? "l1" : norm_ == vector_norm::l2 ? "l2" : "max"}};
  }

  [[nodiscard]] expected<void> apply(const column_spec& column, std::span<const std::byte> from,
                                     std::span<std::byte> to) const override {
    auto elements = column.elements();
    auto* out = reinterpret_cast<float*>(to.data());
    with_numbers(column.type, from, [&](auto numbers) {
      for (std::size_t i = 0; i < numbers.size(); i += elements) {
        auto length = length_of(numbers.subspan(i, elements));
        for (std::size_t j = i; j < i + elements; ++j)
          out[j] = static_cast<float>(static_cast<double>(numbers[j]) / (length == 0 ? 1 : length));
      }
    });
    return {};
  }

 private:
  template <class Numbers>
  [[nodiscard]] double length_of(Numbers numbers) const {
    double result = 0;
    for (auto number : numbers) {
      auto x = std::abs(static_cast<double>(number));
      if (norm_ == vector_norm::max)
        result = std::max(result, x);
      else
        result += norm_ == vector_norm::l1 ? x : x * x;
    }
    return norm_ == vector_norm::l2 ? std::sqrt(result) : result;
  }

  vector_norm norm_;
};

class rescaling final : public fixed_preprocessor {
 public:
  rescaling(std::vector<std::string> columns, double factor) : fixed_preprocessor(std::move(columns)), factor_(factor) {
    if (!std::isfinite(factor) || factor == 0)
      throw exception{errc::invalid_argument,
                      fmt::format("rescaler: a factor of {}: choose a finite one other than 0", factor)};
  }

 protected:
  [[nodiscard]] std::string_view kind() const noexcept override { return "rescaler"; }
  [[nodiscard]] nlohmann::json options() const override { return {{"factor", factor_}}; }

  [[nodiscard]] expected<void> apply(const column_spec& column, std::span<const std::byte> from,
                                     std::span<std::byte> to) const override {
    map(column, from, to, [this](double x, std::size_t) { return x * factor_; });
    return {};
  }

  [[nodiscard]] expected<column_spec> inverse_column(const column_spec& column) const override {
    return output_column(column);
  }

  [[nodiscard]] expected<void> apply_inverse(const column_spec& column, std::span<const std::byte> from,
                                             std::span<std::byte> to) const override {
    map(column, from, to, [this](double x, std::size_t) { return x / factor_; });
    return {};
  }

 private:
  double factor_;
};

} // namespace

preprocessor_ptr standard_scaler(std::vector<std::string> columns) {
  return std::make_shared<standard>(std::move(columns));
}

preprocessor_ptr min_max_scaler(std::vector<std::string> columns, double low, double high) {
  return std::make_shared<min_max>(std::move(columns), low, high);
}

preprocessor_ptr mean_imputer(std::vector<std::string> columns) {
  return std::make_shared<imputer>(std::move(columns));
}

preprocessor_ptr normaliser(std::vector<std::string> columns, vector_norm norm) {
  return std::make_shared<normalising>(std::move(columns), norm);
}

preprocessor_ptr rescaler(std::vector<std::string> columns, double factor) {
  return std::make_shared<rescaling>(std::move(columns), factor);
}

} // namespace troupe::data
