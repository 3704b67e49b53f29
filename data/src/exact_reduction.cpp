#include <troupe/data/exact_reduction.hpp>

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/leaf_accumulator.hpp>

#include <algorithm>
#include <map>
#include <numeric>

namespace troupe::data {

namespace {

/// Shard v has the samples from floor(v n / V) to floor((v + 1) n / V) - 1.
std::uint64_t begin_of(std::uint64_t shard, std::uint64_t samples, std::uint32_t shards) {
  __extension__ using wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<wide>(shard) * samples / shards);
}

/// The shard with this first sample: the last shard that begins here, since shards before it at this point are empty.
std::uint32_t shard_of(std::uint64_t first_sample, std::uint64_t samples, std::uint32_t shards) {
  std::uint32_t low = 0;
  auto high = shards;
  while (high - low > 1) {
    auto middle = low + (high - low) / 2;
    (begin_of(middle, samples, shards) <= first_sample ? low : high) = middle;
  }
  return low;
}

/// A double holds this many bytes exactly, also after adding zeros.
constexpr std::size_t bytes_per_number = 6;

std::size_t numbers_for(std::size_t bytes) {
  return (bytes + bytes_per_number - 1) / bytes_per_number;
}

void write_bytes(std::string_view bytes, std::span<double> numbers) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto place = static_cast<double>(std::uint64_t{1} << 8 * (i % bytes_per_number));
    numbers[i / bytes_per_number] += place * static_cast<unsigned char>(bytes[i]);
  }
}

std::string read_bytes(std::span<const double> numbers, std::size_t size) {
  std::string result;
  for (std::size_t i = 0; i < size; ++i)
    result += static_cast<char>(
        static_cast<std::uint64_t>(numbers[i / bytes_per_number]) >> 8 * (i % bytes_per_number) & 0xffu);
  return result;
}

} // namespace

std::vector<std::vector<double>> exact_reduction::collect(std::uint64_t samples, std::size_t numbers,
                                                          const contribution& function) {
  auto all = sum(samples, numbers * shards(), [&](std::span<const std::uint64_t> own, std::span<double> sums) {
    // Each shard has its own range; the other shards add zero to it.
    if (!own.empty())
      function(own, sums.subspan(shard_of(own.front(), samples, shards()) * numbers, numbers));
  });
  std::vector<std::vector<double>> result;
  for (std::uint32_t v = 0; v < shards(); ++v)
    if (begin_of(v, samples, shards()) < begin_of(v + 1, samples, shards()))
      result.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(v * numbers),
                          all.begin() + static_cast<std::ptrdiff_t>((v + 1) * numbers));
  return result;
}

std::vector<std::string>
exact_reduction::collect_bytes(std::uint64_t samples,
                               const std::function<std::string(std::span<const std::uint64_t> samples)>& function) {
  // This worker's results by the first sample of their shard. Another worker may own the shard in the second pass.
  std::map<std::uint64_t, std::string> found;
  auto found_for = [&](std::span<const std::uint64_t> own) -> const std::string& {
    auto place = found.find(own.front());
    if (place == found.end())
      place = found.emplace(own.front(), function(own)).first;
    return place->second;
  };
  auto sizes = collect(samples, 1, [&](std::span<const std::uint64_t> own, std::span<double> size) {
    size[0] = static_cast<double>(found_for(own).size());
  });
  std::size_t largest = 0;
  for (const auto& size : sizes)
    largest = std::max(largest, static_cast<std::size_t>(size[0]));
  auto numbers =
      collect(samples, std::max<std::size_t>(numbers_for(largest), 1),
              [&](std::span<const std::uint64_t> own, std::span<double> out) { write_bytes(found_for(own), out); });
  std::vector<std::string> result;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    result.push_back(read_bytes(numbers[i], static_cast<std::size_t>(sizes[i][0])));
  return result;
}

std::vector<double> context_reduction::sum(std::uint64_t samples, std::size_t number_of_sums,
                                           const contribution& function) {
  return ctx_.evaluate(samples, number_of_sums, function);
}

std::vector<double> local_reduction::sum(std::uint64_t samples, std::size_t number_of_sums,
                                         const contribution& function) {
  auto layout = collectives::bucket_layout{{{dtype::f64, number_of_sums}}};
  auto sums = value_or_throw(collectives::leaf_accumulator::make(layout, shards_));
  sums.begin({0, shards_});
  std::vector<std::uint64_t> own;
  for (std::uint32_t v = 0; v < shards_; ++v) {
    auto bucket = sums.next(shard_id{v});
    own.resize(begin_of(v + 1, samples, shards_) - begin_of(v, samples, shards_));
    std::iota(own.begin(), own.end(), begin_of(v, samples, shards_));
    function(own, {reinterpret_cast<double*>(bucket.data()), number_of_sums});
  }
  sums.end();
  // A single subtree covers all shards, so it is the whole tree.
  const auto* first = reinterpret_cast<const double*>(sums.partials().front().data);
  return {first, first + number_of_sums};
}

} // namespace troupe::data
