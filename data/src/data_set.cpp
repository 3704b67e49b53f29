#include <troupe/data/data_set.hpp>

#include "content_hash.hpp"
#include "table.hpp"

#include <troupe/data_order.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <utility>

namespace troupe::data {

namespace {

std::string name_of_sample(std::uint64_t sample, std::uint64_t size) {
  return fmt::format("sample {} of a data set of {}: samples are numbered from 0", sample, size);
}

} // namespace

expected<void> data_set::fetch(std::span<const std::uint64_t> samples, batch& out) const {
  for (auto sample : samples)
    if (sample >= size())
      return fail(errc::invalid_argument, name_of_sample(sample, size()));
  out.reset(columns(), samples.size());
  return read(samples, out);
}

std::string fingerprint_of(std::string_view text) {
  content_hash hash;
  hash.add(text);
  return hash.digest();
}

namespace {

std::string fingerprint_of_parts(std::string_view how, const std::vector<data_set_ptr>& parts) {
  content_hash hash;
  hash.add(how);
  for (const auto& part : parts)
    hash.add(std::string_view{part->fingerprint()});
  return hash.digest();
}

class zipped final : public data_set {
 public:
  explicit zipped(std::vector<data_set_ptr> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_)
      columns_.insert(columns_.end(), part->columns().begin(), part->columns().end());
  }

  [[nodiscard]] std::uint64_t size() const noexcept override { return parts_.front()->size(); }
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return columns_; }

  [[nodiscard]] std::string fingerprint() const override { return fingerprint_of_parts("zip", parts_); }

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override {
    std::size_t column = 0;
    batch piece;
    for (const auto& part : parts_) {
      TROUPE_TRY(part->fetch(samples, piece));
      for (std::size_t i = 0; i < part->columns().size(); ++i)
        std::ranges::copy(piece.bytes(i), out.bytes(column++).begin());
    }
    return {};
  }

 private:
  std::vector<data_set_ptr> parts_;
  std::vector<column_spec> columns_;
};

class concatenated final : public data_set {
 public:
  explicit concatenated(std::vector<data_set_ptr> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_)
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + part->size());
  }

  [[nodiscard]] std::uint64_t size() const noexcept override { return ends_.back(); }
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return parts_.front()->columns(); }

  [[nodiscard]] std::string fingerprint() const override { return fingerprint_of_parts("concatenate", parts_); }

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override {
    std::vector<std::uint64_t> own;
    std::vector<std::size_t> places;
    batch piece;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      auto first = p == 0 ? 0 : ends_[p - 1];
      own.clear();
      places.clear();
      for (std::size_t i = 0; i < samples.size(); ++i)
        if (samples[i] >= first && samples[i] < ends_[p]) {
          own.push_back(samples[i] - first);
          places.push_back(i);
        }
      if (own.empty())
        continue;
      TROUPE_TRY(parts_[p]->fetch(own, piece));
      scatter(piece, places, out);
    }
    return {};
  }

 private:
  static void scatter(const batch& piece, std::span<const std::size_t> places, batch& out) {
    for (std::size_t c = 0; c < out.columns().size(); ++c) {
      auto row = out.columns()[c].size_bytes();
      auto from = piece.bytes(c);
      auto to = out.bytes(c);
      for (std::size_t i = 0; i < places.size(); ++i)
        std::ranges::copy(from.subspan(i * row, row), to.subspan(places[i] * row, row).begin());
    }
  }

  std::vector<data_set_ptr> parts_;
  std::vector<std::uint64_t> ends_;
};

expected<void> check_parts(const std::vector<data_set_ptr>& parts) {
  if (parts.empty() || std::ranges::any_of(parts, [](const auto& part) { return part == nullptr; }))
    return fail(errc::invalid_argument, "combining data sets needs at least one, and none may be null");
  return {};
}

expected<void> check_names(std::span<const column_spec> columns) {
  std::vector<std::string_view> names;
  for (const auto& column : columns)
    names.emplace_back(column.name);
  std::ranges::sort(names);
  if (auto twice = std::ranges::adjacent_find(names); twice != names.end())
    return fail(errc::invalid_argument, fmt::format("two columns are named '{}': rename one of them", *twice));
  return {};
}

} // namespace

expected<data_set_ptr> zip(std::vector<data_set_ptr> parts) {
  TROUPE_TRY(check_parts(parts));
  std::vector<column_spec> all;
  std::vector<column> columns;
  auto tables = true;
  for (const auto& part : parts) {
    if (part->size() != parts.front()->size())
      return fail(errc::invalid_argument,
                  fmt::format("data sets of {} and {} samples cannot be zipped: they must have the same size",
                              parts.front()->size(), part->size()));
    all.insert(all.end(), part->columns().begin(), part->columns().end());
    if (const auto* of_memory = dynamic_cast<const table*>(part.get());
        of_memory != nullptr && of_memory->identified() == table::identity::by_content)
      columns.insert(columns.end(), of_memory->contents().begin(), of_memory->contents().end());
    else
      tables = false;
  }
  // A single table saves a copy in each fetch.
  if (tables)
    return make_table(std::move(columns));
  TROUPE_TRY(check_names(all));
  return std::make_shared<const zipped>(std::move(parts));
}

expected<data_set_ptr> concatenate(std::vector<data_set_ptr> parts) {
  TROUPE_TRY(check_parts(parts));
  auto first = parts.front()->columns();
  for (std::size_t p = 1; p < parts.size(); ++p) {
    auto other = parts[p]->columns();
    if (first.size() != other.size())
      return fail(errc::mismatch,
                  fmt::format("data sets of {} and {} columns cannot be concatenated", first.size(), other.size()));
    for (std::size_t c = 0; c < first.size(); ++c)
      if (!(first[c] == other[c]))
        return fail(errc::mismatch,
                    fmt::format("column {} of data set {}, '{}' ({}), differs from '{}' ({}): name, "
                                "type, shape and categories must be equal",
                                c, p, other[c].name, describe(other[c]), first[c].name, describe(first[c])));
  }
  return std::make_shared<const concatenated>(std::move(parts));
}

namespace {

/// Some samples of another data set: sample i is its sample `number(i)`.
class selected : public data_set {
 public:
  selected(data_set_ptr whole, std::uint64_t size, std::string what)
      : whole_(std::move(whole)), size_(size), what_(std::move(what)) {}

  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return whole_->columns(); }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_of(what_ + whole_->fingerprint()); }

 protected:
  [[nodiscard]] virtual std::uint64_t number(std::uint64_t sample) const noexcept = 0;

  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override {
    std::vector<std::uint64_t> numbers;
    numbers.reserve(samples.size());
    for (auto sample : samples)
      numbers.push_back(number(sample));
    return whole_->fetch(numbers, out);
  }

 private:
  data_set_ptr whole_;
  std::uint64_t size_;
  std::string what_;
};

class listed final : public selected {
 public:
  listed(data_set_ptr whole, std::vector<std::uint64_t> samples)
      : selected(std::move(whole), samples.size(), name(samples)), samples_(std::move(samples)) {}

 private:
  static std::string name(const std::vector<std::uint64_t>& samples) {
    content_hash hash;
    hash.add(std::as_bytes(std::span{samples}));
    return fmt::format("subset {} of ", hash.digest());
  }

  [[nodiscard]] std::uint64_t number(std::uint64_t sample) const noexcept override { return samples_[sample]; }

  std::vector<std::uint64_t> samples_;
};

class sliced final : public selected {
 public:
  sliced(data_set_ptr whole, std::uint64_t first, std::uint64_t count)
      : selected(std::move(whole), count, fmt::format("slice {}+{} of ", first, count)), first_(first) {}

 private:
  [[nodiscard]] std::uint64_t number(std::uint64_t sample) const noexcept override { return first_ + sample; }

  std::uint64_t first_;
};

/// A range of a permutation of all samples.
class permuted final : public selected {
 public:
  permuted(const data_set_ptr& whole, std::uint64_t first, std::uint64_t count, std::uint64_t seed)
      : selected(whole, count, fmt::format("permutation {} {}+{} of ", seed, first, count)),
        first_(first),
        order_(whole->size(), seed, epoch) {}

 private:
  // An epoch that no training run reaches, so that the split has its own permutation.
  static constexpr auto epoch = ~std::uint64_t{0};

  [[nodiscard]] std::uint64_t number(std::uint64_t sample) const noexcept override { return order_(first_ + sample); }

  std::uint64_t first_;
  keyed_permutation order_;
};

} // namespace

expected<data_set_ptr> subset(data_set_ptr whole, std::vector<std::uint64_t> samples) {
  for (auto sample : samples)
    if (sample >= whole->size())
      return fail(errc::invalid_argument, name_of_sample(sample, whole->size()));
  return std::make_shared<const listed>(std::move(whole), std::move(samples));
}

expected<data_set_ptr> slice(data_set_ptr whole, std::uint64_t first, std::uint64_t count) {
  if (first > whole->size() || count > whole->size() - first)
    return fail(errc::invalid_argument,
                fmt::format("{} samples from number {} on: the data set has {}", count, first, whole->size()));
  return std::make_shared<const sliced>(std::move(whole), first, count);
}

expected<split_data_set> split(const data_set_ptr& whole, double validation_fraction, split_by how,
                               std::uint64_t seed) {
  auto size = whole->size();
  if (!(validation_fraction > 0 && validation_fraction < 1))
    return fail(errc::invalid_argument,
                fmt::format("a validation fraction of {}: it must be between 0 and 1", validation_fraction));
  auto validation = static_cast<std::uint64_t>(std::floor(validation_fraction * static_cast<double>(size)));
  if (validation == 0 || validation >= size)
    return fail(errc::invalid_argument, fmt::format("a validation fraction of {} of {} samples leaves one part empty: "
                                                    "choose another fraction, or use more samples",
                                                    validation_fraction, size));
  auto training = size - validation;
  if (how == split_by::tail)
    return split_data_set{std::make_shared<const sliced>(whole, 0, training),
                          std::make_shared<const sliced>(whole, training, validation)};
  return split_data_set{std::make_shared<const permuted>(whole, 0, training, seed),
                        std::make_shared<const permuted>(whole, training, validation, seed)};
}

namespace {

/// Copies rows of a size known at compile time.
template <std::size_t RowBytes>
void copy_rows(std::span<const std::uint64_t> samples, const std::byte* from, std::byte* to) noexcept {
  for (auto sample : samples) {
    __builtin_memcpy(to, from + sample * RowBytes, RowBytes);
    to += RowBytes;
  }
}

/// Copies rows of any size; consecutive rows at once.
void copy_rows(std::span<const std::uint64_t> samples, const std::byte* from, std::byte* to,
               std::size_t row_bytes) noexcept {
  for (std::size_t i = 0; i < samples.size();) {
    auto end = i + 1;
    while (end < samples.size() && samples[end] == samples[end - 1] + 1)
      ++end;
    auto bytes = (end - i) * row_bytes;
    __builtin_memcpy(to, from + samples[i] * row_bytes, bytes);
    to += bytes;
    i = end;
  }
}

/// With the values, or with a name in their place.
std::string fingerprint_of(const std::vector<column>& columns, std::optional<std::string_view> name) {
  content_hash hash;
  hash.add(std::string_view{name ? "troupe named table 1" : "troupe table 1"});
  if (name)
    hash.add(*name);
  hash.add(columns.size());
  for (const auto& [spec, bytes, owner] : columns) {
    hash.add(std::string_view{spec.name});
    hash.add(std::uint64_t{static_cast<std::uint8_t>(spec.type)});
    hash.add(spec.shape.size());
    hash.add(std::as_bytes(std::span{spec.shape}));
    hash.add(spec.categories ? spec.categories->size() + 1 : 0);
    if (spec.categories)
      for (const auto& name : *spec.categories)
        hash.add(std::string_view{name});
    hash.add(bytes.size());
    if (!name)
      hash.add(bytes);
  }
  return hash.digest();
}

} // namespace

table::table(std::vector<column> columns, std::string fingerprint, identity identified)
    : columns_(std::move(columns)), fingerprint_(std::move(fingerprint)), identified_(identified) {
  for (const auto& column : columns_)
    specs_.push_back(column.spec);
}

expected<void> table::read(std::span<const std::uint64_t> samples, batch& out) const {
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const auto* from = columns_[c].bytes.data();
    auto* to = out.bytes(c).data();
    switch (auto row_bytes = specs_[c].size_bytes()) {
    case 1:
      copy_rows<1>(samples, from, to);
      break;
    case 4:
      copy_rows<4>(samples, from, to);
      break;
    case 8:
      copy_rows<8>(samples, from, to);
      break;
    default:
      copy_rows(samples, from, to, row_bytes);
    }
  }
  return {};
}

namespace {

expected<void> check_table(const std::vector<column>& columns) {
  if (columns.empty())
    return fail(errc::invalid_argument, "a table has at least one column");
  std::vector<column_spec> specs;
  for (const auto& column : columns) {
    auto row_bytes = column.spec.size_bytes();
    if (row_bytes == 0 || column.bytes.size() % row_bytes != 0)
      return fail(errc::invalid_argument,
                  fmt::format("column '{}' has {} bytes, which is not a whole number of samples of {}",
                              column.spec.name, column.bytes.size(), describe(column.spec)));
    if (column.samples() != columns.front().samples())
      return fail(
          errc::invalid_argument,
          fmt::format("column '{}' has {} samples, and column '{}' {}: all columns of a table must have the same "
                      "number",
                      column.spec.name, column.samples(), columns.front().spec.name, columns.front().samples()));
    specs.push_back(column.spec);
  }
  return check_names(specs);
}

} // namespace

expected<data_set_ptr> make_table(std::vector<column> columns) {
  TROUPE_TRY(check_table(columns));
  auto fingerprint = fingerprint_of(columns, std::nullopt);
  return std::make_shared<const table>(std::move(columns), std::move(fingerprint), table::identity::by_content);
}

expected<data_set_ptr> make_table(std::vector<column> columns, std::string_view name) {
  if (name.empty())
    return fail(errc::invalid_argument, "a table that is not hashed needs a name that identifies its content");
  TROUPE_TRY(check_table(columns));
  auto fingerprint = fingerprint_of(columns, name);
  return std::make_shared<const table>(std::move(columns), std::move(fingerprint), table::identity::by_name);
}

} // namespace troupe::data
