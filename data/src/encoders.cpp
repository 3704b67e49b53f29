#include "column_preprocessor.hpp"
#include "csv_rows.hpp"

#include <troupe/data/evaluation.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace troupe::data {

namespace {

constexpr std::uint64_t piece_samples = 4096;

/// The categories of one column: texts in byte order, or integers by value.
struct category_set {
  std::set<std::string> texts;
  std::set<std::int64_t> integers;
};

void append_number(std::string& out, std::int64_t number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

std::int64_t take_number(std::string_view& in) {
  std::int64_t result = 0;
  std::memcpy(&result, in.data(), sizeof(result));
  in.remove_prefix(sizeof(result));
  return result;
}

/// Encodes a shard's categories as bytes, to exchange them between workers.
std::string packed(const std::vector<category_set>& sets) {
  std::string result;
  for (const auto& [texts, integers] : sets) {
    append_number(result, static_cast<std::int64_t>(texts.size()));
    for (const auto& text : texts) {
      append_number(result, static_cast<std::int64_t>(text.size()));
      result += text;
    }
    append_number(result, static_cast<std::int64_t>(integers.size()));
    for (auto number : integers)
      append_number(result, number);
  }
  return result;
}

void unpack_into(std::vector<category_set>& sets, std::string_view in) {
  for (auto& [texts, integers] : sets) {
    for (auto count = take_number(in); count > 0; --count) {
      auto size = static_cast<std::size_t>(take_number(in));
      texts.emplace(in.substr(0, size));
      in.remove_prefix(size);
    }
    for (auto count = take_number(in); count > 0; --count)
      integers.insert(take_number(in));
  }
}

/// The learned categories of one column, as stored: ascending.
struct category_view {
  std::span<const std::int64_t> integers;
  /// Where each text ends in `bytes`.
  std::span<const std::int64_t> ends;
  std::span<const std::uint8_t> bytes;
  bool of_texts = false;

  [[nodiscard]] std::size_t size() const noexcept { return of_texts ? ends.size() : integers.size(); }

  [[nodiscard]] std::string_view text(std::size_t i) const noexcept {
    auto begin = i == 0 ? std::size_t{0} : static_cast<std::size_t>(ends[i - 1]);
    return {reinterpret_cast<const char*>(bytes.data()) + begin, static_cast<std::size_t>(ends[i]) - begin};
  }

  /// The index of a category; `size()` if it is not known.
  [[nodiscard]] std::size_t find(std::string_view wanted) const noexcept {
    std::size_t low = 0;
    for (auto high = size(); low < high;) {
      auto middle = low + (high - low) / 2;
      if (text(middle) < wanted)
        low = middle + 1;
      else
        high = middle;
    }
    return low < size() && text(low) == wanted ? low : size();
  }

  [[nodiscard]] std::size_t find(std::int64_t wanted) const noexcept {
    auto found = std::ranges::lower_bound(integers, wanted);
    return found != integers.end() && *found == wanted ? static_cast<std::size_t>(found - integers.begin()) : size();
  }
};

/// Maps categories to their indices; the derived class encodes the indices.
class encoder : public column_preprocessor {
 public:
  encoder(std::vector<std::string> columns, unknown_category unknown)
      : column_preprocessor(std::move(columns)), unknown_(unknown) {}

  void fit(const data_set& training, exact_reduction& reduction) final {
    std::vector<bool> of_texts;
    for (const auto& name : columns()) {
      const auto& column = training.columns()[value_or_throw(index_of(training.columns(), name))];
      value_or_throw(check(column));
      of_texts.push_back(column.categories != nullptr);
    }
    std::vector<category_set> all(columns().size());
    auto found = reduction.collect_bytes(training.size(), [&](std::span<const std::uint64_t> samples) {
      return packed(categories_of(reduction, training, samples));
    });
    for (const auto& each : found)
      unpack_into(all, each);
    for (std::size_t c = 0; c < all.size(); ++c)
      keep(columns()[c], all[c], of_texts[c]);
  }

  [[nodiscard]] expected<void> adopt_state(const std::string& prefix,
                                           const std::map<std::string, state_tensor>& tensors) final {
    TROUPE_TRY(column_preprocessor::adopt_state(prefix, tensors));
    for (const auto& name : columns()) {
      TROUPE_TRY(auto kept, categories({name, dtype::i64, {}, {}}));
      auto end = std::int64_t{0};
      for (auto next : kept.ends)
        if (std::exchange(end, next) > next)
          return fail(mismatch(name, "has inconsistent categories in the checkpoint"));
      if (static_cast<std::size_t>(end) != kept.bytes.size())
        return fail(mismatch(name, "has inconsistent categories in the checkpoint"));
    }
    return {};
  }

 protected:
  [[nodiscard]] nlohmann::json options() const final {
    return {{"unknown", unknown_ == unknown_category::refused ? "refused" : "own_category"}};
  }

  [[nodiscard]] bool has_own_category() const noexcept { return unknown_ == unknown_category::own_category; }

  [[nodiscard]] expected<category_view> categories(const column_spec& column) const {
    category_view result;
    result.of_texts = find_state(column.name + ".ends") != nullptr;
    if (result.of_texts) {
      result.ends = state_values<std::int64_t>(column.name + ".ends");
      result.bytes = state_values<std::uint8_t>(column.name + ".texts");
    } else {
      result.integers = state_values<std::int64_t>(column.name + ".integers");
    }
    if (result.size() == 0)
      return not_fitted(column);
    return result;
  }

  /// The categories for a column to be encoded.
  [[nodiscard]] expected<category_view> categories_for(const column_spec& column) const {
    TROUPE_TRY(check(column));
    auto result = categories(column);
    if (result && result->of_texts != (column.categories != nullptr))
      return fail(mismatch(column.name,
                           fmt::format("has {}, and this was fitted on {}", column.categories ? "texts" : "integers",
                                       column.categories ? "integers" : "texts")));
    return result;
  }

  /// Calls `f(sample, index)` for each sample; an unknown category has the index `size()`.
  template <class F>
  [[nodiscard]] expected<void> for_each_number(const column_spec& column, std::span<const std::byte> from, F f) const {
    TROUPE_TRY(auto known, categories_for(column));
    constexpr auto not_looked_up = std::numeric_limits<std::size_t>::max();
    std::vector<std::size_t> number_of_code(column.categories ? column.categories->size() : 0, not_looked_up);
    auto find = [&](std::int64_t value) {
      if (!column.categories)
        return known.find(value);
      if (value < 0 || static_cast<std::size_t>(value) >= number_of_code.size())
        return known.size();
      auto& number = number_of_code[static_cast<std::size_t>(value)];
      if (number == not_looked_up)
        number = known.find((*column.categories)[static_cast<std::size_t>(value)]);
      return number;
    };
    return with_numbers(column.type, from, [&](auto values) -> expected<void> {
      for (std::size_t i = 0; i < values.size(); ++i) {
        auto value = static_cast<std::int64_t>(values[i]);
        auto number = find(value);
        if (number == known.size() && !has_own_category())
          return fail(errc::invalid_argument,
                      fmt::format("{}: column '{}': {} was not in the training data: clean the data, or encode with "
                                  "unknown_category::own_category",
                                  kind(), column.name, show(column, value)));
        f(i, number);
      }
      return {};
    });
  }

  /// The column that the inverse makes, with the texts of its codes.
  [[nodiscard]] static column_spec decoded_column(const column_spec& column, const category_view& known) {
    auto result = column_spec{column.name, dtype::i64, {}, {}};
    if (known.of_texts) {
      auto names = std::make_shared<std::vector<std::string>>();
      for (std::size_t i = 0; i < known.size(); ++i)
        names->emplace_back(known.text(i));
      result.categories = std::move(names);
    }
    return result;
  }

  [[nodiscard]] static std::int64_t decoded(const category_view& known, std::size_t number) {
    if (number >= known.size())
      return -1;
    return known.of_texts ? static_cast<std::int64_t>(number) : known.integers[number];
  }

 private:
  [[nodiscard]] error mismatch(const std::string& column, std::string_view what) const {
    return {errc::mismatch, fmt::format("{}: column '{}' {}", kind(), column, what)};
  }

  [[nodiscard]] expected<void> check(const column_spec& column) const {
    if (!column.shape.empty())
      return fail(mismatch(column.name, fmt::format("is {}, and only single numbers are encoded", describe(column))));
    if (column.type == dtype::f32 || column.type == dtype::f64 || !is_readable(column.type))
      return fail(mismatch(column.name, fmt::format("is {}, and only texts and integers are encoded: read it as "
                                                    "categorical",
                                                    describe(column))));
    return {};
  }

  static std::string show(const column_spec& column, std::int64_t value) {
    if (!column.categories)
      return fmt::to_string(value);
    if (value < 0 || static_cast<std::size_t>(value) >= column.categories->size())
      return "a missing value";
    return show_field((*column.categories)[static_cast<std::size_t>(value)]);
  }

  [[nodiscard]] std::vector<category_set> categories_of(exact_reduction& reduction, const data_set& training,
                                                        std::span<const std::uint64_t> samples) const {
    std::vector<category_set> result(columns().size());
    for_each_batch(reduction, training, samples, piece_samples, [&](const batch& piece) {
      for (std::size_t c = 0; c < columns().size(); ++c) {
        auto index = piece.index_of(columns()[c]);
        const auto& column = piece.columns()[index];
        with_numbers(column.type, piece.bytes(index), [&](auto values) {
          for (auto value : values)
            result[c].integers.insert(static_cast<std::int64_t>(value));
        });
      }
    });
    // Codes are specific to this data set, so they are replaced by their texts.
    for (std::size_t c = 0; c < columns().size(); ++c) {
      const auto& column = training.columns()[value_or_throw(index_of(training.columns(), columns()[c]))];
      if (!column.categories)
        continue;
      for (auto code : std::exchange(result[c].integers, {}))
        if (code >= 0 && static_cast<std::size_t>(code) < column.categories->size())
          result[c].texts.insert((*column.categories)[static_cast<std::size_t>(code)]);
    }
    return result;
  }

  void keep(const std::string& column, const category_set& found, bool of_texts) {
    if ((of_texts ? found.texts.size() : found.integers.size()) == 0)
      throw exception{errc::invalid_argument, fmt::format("{}: column '{}': all values are missing", kind(), column)};
    if (!of_texts) {
      auto integers = std::vector<std::int64_t>(found.integers.begin(), found.integers.end());
      set_state(column + ".integers", std::span<const std::int64_t>{integers});
      return;
    }
    std::vector<std::uint8_t> bytes;
    std::vector<std::int64_t> ends;
    for (const auto& text : found.texts) {
      bytes.insert(bytes.end(), text.begin(), text.end());
      ends.push_back(static_cast<std::int64_t>(bytes.size()));
    }
    set_state(column + ".texts", std::span<const std::uint8_t>{bytes});
    set_state(column + ".ends", std::span<const std::int64_t>{ends});
  }

  unknown_category unknown_;
};

class ordinal final : public encoder {
 public:
  using encoder::encoder;

 protected:
  [[nodiscard]] std::string_view kind() const noexcept override { return "ordinal_encoder"; }

  [[nodiscard]] expected<column_spec> output_column(const column_spec& column) const override {
    TROUPE_TRY(categories_for(column));
    return column_spec{column.name, dtype::i64, {}, {}};
  }

  [[nodiscard]] expected<void> apply(const column_spec& column, std::span<const std::byte> from,
                                     std::span<std::byte> to) const override {
    auto* out = reinterpret_cast<std::int64_t*>(to.data());
    return for_each_number(column, from,
                           [&](std::size_t i, std::size_t number) { out[i] = static_cast<std::int64_t>(number); });
  }

  [[nodiscard]] expected<column_spec> inverse_column(const column_spec& column) const override {
    TROUPE_TRY(auto known, categories(column));
    if (column.type != dtype::i64 || !column.shape.empty())
      return fail(errc::mismatch, fmt::format("ordinal_encoder: column '{}' is {}, and must be i64 for the inverse",
                                              column.name, describe(column)));
    return decoded_column(column, known);
  }

  [[nodiscard]] expected<void> apply_inverse(const column_spec& column, std::span<const std::byte> from,
                                             std::span<std::byte> to) const override {
    auto known = value_or_throw(categories(column));
    auto* out = reinterpret_cast<std::int64_t*>(to.data());
    with_numbers_of<std::int64_t>(from, [&](auto numbers) {
      for (std::size_t i = 0; i < numbers.size(); ++i)
        out[i] = decoded(known, static_cast<std::size_t>(numbers[i]));
    });
    return {};
  }
};

class one_hot final : public encoder {
 public:
  using encoder::encoder;

 protected:
  [[nodiscard]] std::string_view kind() const noexcept override { return "one_hot_encoder"; }

  [[nodiscard]] std::uint64_t width(const category_view& known) const noexcept {
    return known.size() + (has_own_category() ? 1 : 0);
  }

  [[nodiscard]] expected<column_spec> output_column(const column_spec& column) const override {
    TROUPE_TRY(auto known, categories_for(column));
    return column_spec{column.name, dtype::f32, {width(known)}, {}};
  }

  [[nodiscard]] expected<void> apply(const column_spec& column, std::span<const std::byte> from,
                                     std::span<std::byte> to) const override {
    auto columns = width(value_or_throw(categories_for(column)));
    std::ranges::fill(to, std::byte{0});
    auto* out = reinterpret_cast<float*>(to.data());
    return for_each_number(column, from, [&](std::size_t i, std::size_t number) { out[i * columns + number] = 1.0f; });
  }

  [[nodiscard]] expected<column_spec> inverse_column(const column_spec& column) const override {
    TROUPE_TRY(auto known, categories(column));
    if (column.type != dtype::f32 || column.shape != std::vector{width(known)})
      return fail(errc::mismatch, fmt::format("one_hot_encoder: column '{}' is {}, and must be f32[{}] for the inverse",
                                              column.name, describe(column), width(known)));
    return decoded_column(column, known);
  }

  /// Decodes the largest number of each vector; of equal ones the first.
  [[nodiscard]] expected<void> apply_inverse(const column_spec& column, std::span<const std::byte> from,
                                             std::span<std::byte> to) const override {
    auto known = value_or_throw(categories(column));
    auto columns = width(known);
    auto* out = reinterpret_cast<std::int64_t*>(to.data());
    with_numbers_of<float>(from, [&](auto numbers) {
      for (std::size_t i = 0; i < numbers.size() / columns; ++i) {
        auto own = numbers.subspan(i * columns, columns);
        out[i] = decoded(known, static_cast<std::size_t>(std::ranges::max_element(own) - own.begin()));
      }
    });
    return {};
  }
};

} // namespace

preprocessor_ptr one_hot_encoder(std::vector<std::string> columns, unknown_category unknown) {
  return std::make_shared<one_hot>(std::move(columns), unknown);
}

preprocessor_ptr ordinal_encoder(std::vector<std::string> columns, unknown_category unknown) {
  return std::make_shared<ordinal>(std::move(columns), unknown);
}

} // namespace troupe::data
