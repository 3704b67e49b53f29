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

/// Samples with numbers from 0, each with the same named columns. A data set of one's own derives from this. All
/// members may be called from several threads at once, and give the same in all processes.
class data_set {
 public:
  data_set() = default;
  data_set(const data_set&) = delete;
  data_set& operator=(const data_set&) = delete;
  virtual ~data_set() = default;

  /// The number of samples.
  [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;

  /// Does not change.
  [[nodiscard]] virtual std::span<const column_spec> columns() const noexcept = 0;

  /// Equal for equal content, different for any other: workers compare it, and it stands in checkpoints.
  [[nodiscard]] virtual std::string fingerprint() const = 0;

  /// Fills `out` with these samples, in this order; a sample may come twice. Fails with `errc::invalid_argument` for a
  /// sample that there is not, and as the data set does; `out` then holds anything.
  [[nodiscard]] expected<void> fetch(std::span<const std::uint64_t> samples, batch& out) const;

 protected:
  /// Writes the values. `out` has room for `samples.size()` samples of `columns()`, and every sample exists.
  [[nodiscard]] virtual expected<void> read(std::span<const std::uint64_t> samples, batch& out) const = 0;
};

using data_set_ptr = std::shared_ptr<const data_set>;

/// A data set of columns that lie in memory or in a mapped file. Its fingerprint is the XXH3 of names, types, shapes,
/// categories and values, wherever they come from: a file and its compressed form have the same. Fails with
/// `errc::invalid_argument` for no columns, a name that comes twice, or columns of different lengths.
[[nodiscard]] expected<data_set_ptr> make_table(std::vector<column> columns);

/// The columns of several data sets side by side: images and their labels. Fails with `errc::invalid_argument` where
/// they differ in size or have a column name in common.
[[nodiscard]] expected<data_set_ptr> zip(std::vector<data_set_ptr> parts);

/// The samples of several data sets, one after the other. Fails with `errc::mismatch` where the columns (types, shapes
/// and categories included) differ.
[[nodiscard]] expected<data_set_ptr> concatenate(std::vector<data_set_ptr> parts);

/// These samples of a data set, in this order. Fails with `errc::invalid_argument` for one that there is not.
[[nodiscard]] expected<data_set_ptr> subset(data_set_ptr whole, std::vector<std::uint64_t> samples);

/// `count` samples from number `first` on. Fails with `errc::invalid_argument` where there are fewer.
[[nodiscard]] expected<data_set_ptr> slice(data_set_ptr whole, std::uint64_t first, std::uint64_t count);

/// Two parts of a data set without a sample in common.
struct split_data_set {
  data_set_ptr training;
  data_set_ptr validation;
};

/// Which samples a split holds out.
enum class split_by : std::uint8_t {
  /// Drawn by a permutation that is keyed by a seed, computed and not stored. For samples that do not depend on their
  /// neighbours.
  permutation,
  /// The last ones. For series, and for data that was shuffled when it was written.
  tail,
};

/// Holds out floor(fraction x size) samples for validation. Depends on sizes and seed alone. A split by file is two
/// data sets. Fails with `errc::invalid_argument` where one part would be empty.
[[nodiscard]] expected<split_data_set> split(const data_set_ptr& whole, double validation_fraction,
                                             split_by how = split_by::permutation, std::uint64_t seed = 0);

/// A fingerprint for what is made of other data: the XXH3 of a text, 32 hexadecimal digits.
[[nodiscard]] std::string fingerprint_of(std::string_view text);

} // namespace troupe::data
