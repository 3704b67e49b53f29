#pragma once

#include <troupe/data/batch.hpp>
#include <troupe/data/column.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::data {

/// Samples numbered from 0, all with the same named columns. Derive from this class for your own data. All members are
/// thread-safe, and return the same in all processes.
class data_set {
 public:
  data_set() = default;
  data_set(const data_set&) = delete;
  data_set& operator=(const data_set&) = delete;
  virtual ~data_set() = default;

  /// The number of samples.
  [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;

  /// Constant.
  [[nodiscard]] virtual std::span<const column_spec> columns() const noexcept = 0;

  /// Equal for equal content, different for different content. Workers compare it, and checkpoints store it.
  [[nodiscard]] virtual std::string fingerprint() const = 0;

  /// Fills `out` with these samples in this order; samples may repeat. Fails with `errc::invalid_argument` for a sample
  /// that does not exist, and as the data set does; the content of `out` is then undefined.
  [[nodiscard]] expected<void> fetch(std::span<const std::uint64_t> samples, batch& out) const;

 protected:
  /// Writes the values. `out` has space for `samples.size()` samples of `columns()`, and every sample exists.
  [[nodiscard]] virtual expected<void> read(std::span<const std::uint64_t> samples, batch& out) const = 0;
};

using data_set_ptr = std::shared_ptr<const data_set>;

/// A data set of columns in memory or in a mapped file. Its fingerprint is the XXH3 of names, types, shapes, categories
/// and values, so that a file and its compressed form have the same. Fails with `errc::invalid_argument` for no
/// columns, duplicate names, or columns of different lengths.
[[nodiscard]] expected<data_set_ptr> make_table(std::vector<column> columns);

/// The same with a name in place of the hash over all values, such as "web text, third version": nothing is read before
/// it is needed, which counts for files larger than memory. Different data must have different names: it is what
/// workers and checkpoints compare. Fails for an empty name, too.
[[nodiscard]] expected<data_set_ptr> make_table(std::vector<column> columns, std::string_view name);

/// The columns of several data sets side by side, such as images and their labels. Fails with `errc::invalid_argument`
/// if they differ in size or share a column name.
[[nodiscard]] expected<data_set_ptr> zip(std::vector<data_set_ptr> parts);

/// The samples of several data sets, one after the other. Fails with `errc::mismatch` if the columns (including types,
/// shapes and categories) differ.
[[nodiscard]] expected<data_set_ptr> concatenate(std::vector<data_set_ptr> parts);

/// These samples of a data set, in this order. Fails with `errc::invalid_argument` if one does not exist.
[[nodiscard]] expected<data_set_ptr> subset(data_set_ptr whole, std::vector<std::uint64_t> samples);

/// `count` samples from `first` on. Fails with `errc::invalid_argument` if there are fewer.
[[nodiscard]] expected<data_set_ptr> slice(data_set_ptr whole, std::uint64_t first, std::uint64_t count);

/// Two disjoint parts of a data set.
struct split_data_set {
  data_set_ptr training;
  data_set_ptr validation;
};

/// Which samples a split holds out.
enum class split_by : std::uint8_t {
  /// Drawn by a keyed permutation, which is computed and not stored. For independent samples.
  permutation,
  /// The last ones. For time series, and for data that was shuffled when it was written.
  tail,
};

/// Holds out floor(fraction x size) samples for validation. Depends only on sizes and seed. To split by file, use two
/// data sets. Fails with `errc::invalid_argument` if one part would be empty.
[[nodiscard]] expected<split_data_set> split(const data_set_ptr& whole, double validation_fraction,
                                             split_by how = split_by::permutation, std::uint64_t seed = 0);

/// A fingerprint for data derived from other data: the XXH3 of a text, 32 hexadecimal digits.
[[nodiscard]] std::string fingerprint_of(std::string_view text);

} // namespace troupe::data
