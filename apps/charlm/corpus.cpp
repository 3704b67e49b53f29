#include <charlm/corpus.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <openssl/evp.h>
#include <system_error>
#include <utility>

namespace charlm {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t largest_block_bytes = 1024;
constexpr std::size_t blocks_per_period = 10;
constexpr std::size_t training_blocks = blocks_per_period - 1;
constexpr std::size_t largest_corpus_bytes = std::size_t{1} << 30U;

/// One part of the text: in every period, `length` bytes from `offset` on.
struct part {
  std::uint64_t period;
  std::uint64_t offset;
  std::uint64_t length;
  std::uint64_t context;

  [[nodiscard]] std::uint64_t windows_in(std::uint64_t bytes) const { return bytes > context ? bytes - context : 0; }

  [[nodiscard]] std::uint64_t windows(std::uint64_t total_bytes) const {
    const auto rest = total_bytes % period;
    const auto last = rest > offset ? std::min(rest - offset, length) : 0;
    return total_bytes / period * windows_in(length) + windows_in(last);
  }

  [[nodiscard]] std::uint64_t position(std::uint64_t index) const {
    return index / windows_in(length) * period + offset + index % windows_in(length);
  }
};

part training_part(const corpus& text) {
  const std::uint64_t block = text.block_bytes();
  return {blocks_per_period * block, 0, training_blocks * block, text.context()};
}

part held_out_part(const corpus& text) {
  const std::uint64_t block = text.block_bytes();
  return {blocks_per_period * block, training_blocks * block, block, text.context()};
}

std::uint64_t position_in(const part& p, std::uint64_t total_bytes, std::uint64_t index) {
  const auto samples = p.windows(total_bytes);
  if (index >= samples)
    throw troupe::failure{troupe::errc::invalid_argument,
                          "corpus: sample " + std::to_string(index) + " of " + std::to_string(samples)};
  return p.position(index);
}

} // namespace

std::uint64_t corpus::training_samples() const noexcept {
  return training_part(*this).windows(bytes_.size());
}

std::uint64_t corpus::held_out_samples() const noexcept {
  return held_out_part(*this).windows(bytes_.size());
}

std::uint64_t corpus::training_position(std::uint64_t index) const {
  return position_in(training_part(*this), bytes_.size(), index);
}

std::uint64_t corpus::held_out_position(std::uint64_t index) const {
  return position_in(held_out_part(*this), bytes_.size(), index);
}

std::string corpus::fingerprint() const {
  const auto split = "charlm corpus 1: " + std::to_string(bytes_.size()) + " bytes, blocks of " +
                     std::to_string(block_bytes_) + ", context " + std::to_string(context_) + "\n";
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (!hash || EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) != 1 ||
      EVP_DigestUpdate(hash.get(), split.data(), split.size()) != 1 ||
      EVP_DigestUpdate(hash.get(), bytes_.data(), bytes_.size()) != 1 ||
      EVP_DigestFinal_ex(hash.get(), digest.data(), &size) != 1)
    throw troupe::failure{troupe::errc::internal, "corpus: OpenSSL does not compute SHA-256"};
  std::string result;
  for (unsigned int i = 0; i < size; ++i) {
    constexpr std::string_view digits = "0123456789abcdef";
    result += digits[digest[i] / 16U];
    result += digits[digest[i] % 16U];
  }
  return result;
}

troupe::expected<corpus> make_corpus(std::vector<std::uint8_t> bytes, std::size_t context) {
  const auto block = std::min(largest_block_bytes, bytes.size() / blocks_per_period);
  if (context == 0 || context >= largest_block_bytes)
    return troupe::fail(troupe::errc::invalid_argument,
                        "a context of " + std::to_string(context) + " bytes: it must be from 1 to 1023");
  if (block <= context)
    return troupe::fail(troupe::errc::invalid_argument,
                        std::to_string(bytes.size()) +
                            " bytes are too few to train and to hold a tenth out with a context of " +
                            std::to_string(context) + " bytes: give a text of at least " +
                            std::to_string(blocks_per_period * (context + 1)) + " bytes");
  corpus result;
  result.bytes_ = std::move(bytes);
  result.context_ = context;
  result.block_bytes_ = block;
  return result;
}

namespace {

troupe::error with_path(const fs::path& path, std::error_code why) {
  errno = why.value();
  return troupe::system_error(path.string());
}

/// Appends a file's bytes; reads to the end, whatever size the file claims to have.
troupe::expected<void> append_file(const fs::path& path, std::vector<std::uint8_t>& bytes) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rb"), &std::fclose};
  if (!file)
    return troupe::fail(troupe::system_error(path.string()));
  constexpr std::size_t piece = std::size_t{1} << 16U;
  for (;;) {
    const auto before = bytes.size();
    bytes.resize(before + piece);
    const auto count = std::fread(bytes.data() + before, 1, piece, file.get());
    const bool failed = count < piece && std::ferror(file.get()) != 0;
    if (failed)
      return troupe::fail(troupe::system_error(path.string()));
    bytes.resize(before + count);
    if (bytes.size() > largest_corpus_bytes)
      return troupe::fail(troupe::errc::invalid_argument,
                          path.string() +
                              ": the text has more than 1 GiB, and it is held in memory: give a part of it");
    if (count < piece)
      return {};
  }
}

troupe::expected<std::vector<fs::path>> regular_files_below(const fs::path& directory) {
  std::vector<fs::path> result;
  std::error_code why;
  fs::recursive_directory_iterator entry{directory, why};
  while (!why && entry != fs::recursive_directory_iterator{}) {
    if (fs::is_regular_file(entry->symlink_status(why)))
      result.push_back(entry->path());
    if (!why)
      entry.increment(why);
  }
  if (why)
    return troupe::fail(with_path(directory, why));
  std::sort(result.begin(), result.end(), [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return result;
}

troupe::expected<std::vector<fs::path>> files_of(const fs::path& path) {
  std::error_code why;
  const auto status = fs::status(path, why);
  if (why)
    return troupe::fail(with_path(path, why));
  if (!fs::is_directory(status))
    return std::vector{path};
  auto files = regular_files_below(path);
  if (files && files->empty())
    return troupe::fail(troupe::errc::not_found,
                        path.string() + ": the directory holds no regular file: give a text or a directory of texts");
  return files;
}

} // namespace

troupe::expected<corpus> load_corpus(const fs::path& path, std::size_t context) {
  auto files = files_of(path);
  if (!files)
    return troupe::fail(std::move(files.error()));
  std::vector<std::uint8_t> bytes;
  for (const auto& file : *files) {
    if (!bytes.empty())
      bytes.push_back('\n');
    if (auto done = append_file(file, bytes); !done)
      return troupe::fail(std::move(done.error()));
  }
  auto result = make_corpus(std::move(bytes), context);
  if (!result)
    return troupe::fail(result.error().code, path.string() + ": " + result.error().message);
  return result;
}

namespace {

using byte_counts = std::array<std::uint64_t, 256>;

/// Calls `f` with each byte of the training part and whether the byte before it belongs to the same stretch.
template <class F>
void for_each_training_byte(const corpus& text, F f) {
  const auto bytes = text.bytes();
  const auto p = training_part(text);
  for (std::uint64_t start = 0; start < bytes.size(); start += p.period)
    for (std::uint64_t i = start; i < std::min<std::uint64_t>(start + p.length, bytes.size()); ++i)
      f(i, i > start);
}

/// Byte frequencies of the training part, each count raised by one.
std::array<double, 256> smoothed_frequencies(const corpus& text) {
  byte_counts counts;
  counts.fill(1);
  std::uint64_t total = counts.size();
  for_each_training_byte(text, [&](std::uint64_t i, bool) {
    ++counts[text.bytes()[i]];
    ++total;
  });
  std::array<double, 256> result;
  for (std::size_t b = 0; b < result.size(); ++b)
    result[b] = static_cast<double>(counts[b]) / static_cast<double>(total);
  return result;
}

/// The mean of -log `probability(i)` over the held-out targets, `i` being where the target stands.
template <class F>
double cross_entropy(const corpus& text, F probability) {
  double sum = 0.0;
  for (std::uint64_t i = 0; i < text.held_out_samples(); ++i)
    sum -= std::log(probability(text.held_out_position(i) + text.context()));
  return sum / static_cast<double>(text.held_out_samples());
}

} // namespace

double unigram_entropy(const corpus& text) {
  const auto frequency = smoothed_frequencies(text);
  return cross_entropy(text, [&](std::uint64_t i) { return frequency[text.bytes()[i]]; });
}

double bigram_entropy(const corpus& text) {
  const auto bytes = text.bytes();
  const auto frequency = smoothed_frequencies(text);
  std::vector<byte_counts> pairs(256, byte_counts{});
  byte_counts firsts{};
  for_each_training_byte(text, [&](std::uint64_t i, bool has_previous) {
    if (has_previous) {
      ++pairs[bytes[i - 1]][bytes[i]];
      ++firsts[bytes[i - 1]];
    }
  });
  return cross_entropy(text, [&](std::uint64_t i) {
    const auto first = bytes[i - 1];
    const auto seen = static_cast<double>(pairs[first][bytes[i]]) + bigram_prior_bytes * frequency[bytes[i]];
    return seen / (static_cast<double>(firsts[first]) + bigram_prior_bytes);
  });
}

} // namespace charlm
