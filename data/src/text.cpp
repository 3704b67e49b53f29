#include <troupe/data/text.hpp>

#include "content_hash.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <system_error>
#include <utility>

namespace troupe::data {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t largest_block_bytes = 1024;
constexpr std::size_t blocks_per_period = 10;
constexpr std::size_t training_blocks = blocks_per_period - 1;
constexpr std::size_t largest_text_bytes = std::size_t{1} << 30U;

} // namespace

text_windows::text_windows(std::shared_ptr<const std::vector<std::uint8_t>> bytes, std::size_t context,
                           std::size_t block_bytes, part which)
    : bytes_(std::move(bytes)),
      context_(context),
      block_bytes_(block_bytes),
      part_(which),
      columns_{{"context", dtype::u8, {context}, {}}, {"target", dtype::u8, {}, {}}} {}

std::uint64_t text_windows::period_bytes() const noexcept {
  return blocks_per_period * block_bytes_;
}

std::uint64_t text_windows::part_begin() const noexcept {
  return part_ == part::training ? 0 : training_blocks * block_bytes_;
}

std::uint64_t text_windows::part_bytes() const noexcept {
  return part_ == part::training ? training_blocks * block_bytes_ : block_bytes_;
}

std::uint64_t text_windows::size() const noexcept {
  auto windows_in = [this](std::uint64_t bytes) { return bytes > context_ ? bytes - context_ : 0; };
  auto rest = bytes_->size() % period_bytes();
  auto last = rest > part_begin() ? std::min(rest - part_begin(), part_bytes()) : 0;
  return bytes_->size() / period_bytes() * windows_in(part_bytes()) + windows_in(last);
}

std::uint64_t text_windows::place(std::uint64_t index) const noexcept {
  auto windows = part_bytes() - context_;
  return index / windows * period_bytes() + part_begin() + index % windows;
}

std::uint64_t text_windows::position(std::uint64_t index) const {
  if (index >= size())
    throw exception{errc::invalid_argument,
                    fmt::format("window {} of a text with {}: windows are numbered from 0", index, size())};
  return place(index);
}

expected<void> text_windows::read(std::span<const std::uint64_t> samples, batch& out) const {
  auto context = out.values<std::uint8_t>("context");
  auto target = out.values<std::uint8_t>("target");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    auto window = bytes().subspan(place(samples[i]), context_ + 1);
    std::ranges::copy(window.first(context_), context.subspan(i * context_, context_).begin());
    target[i] = window.back();
  }
  return {};
}

std::string text_windows::fingerprint() const {
  content_hash hash;
  hash.add(std::string_view{"troupe text windows 1"});
  hash.add(std::uint64_t{bytes_->size()});
  hash.add(std::uint64_t{block_bytes_});
  hash.add(std::uint64_t{context_});
  hash.add(std::uint64_t{static_cast<std::uint8_t>(part_)});
  hash.add(std::as_bytes(bytes()));
  return hash.digest();
}

struct split_text_access {
  static split_text split(std::vector<std::uint8_t> bytes, std::size_t context, std::size_t block) {
    auto shared = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
    auto make = [&](text_windows::part which) {
      return std::shared_ptr<const text_windows>{new text_windows{shared, context, block, which}};
    };
    return {make(text_windows::part::training), make(text_windows::part::held_out)};
  }
};

expected<split_text> make_text(std::vector<std::uint8_t> bytes, std::size_t context) {
  auto block = std::min(largest_block_bytes, bytes.size() / blocks_per_period);
  if (context == 0 || context >= largest_block_bytes)
    return fail(errc::invalid_argument, fmt::format("a context of {} bytes: it must be from 1 to 1023", context));
  if (block <= context)
    return fail(
        errc::invalid_argument,
        fmt::format("{} bytes are too few to train and hold out a tenth with a context of {} bytes: give a text "
                    "of at least {} bytes",
                    bytes.size(), context, blocks_per_period * (context + 1)));
  return split_text_access::split(std::move(bytes), context, block);
}

namespace {

error with_path(const fs::path& path, std::error_code why) {
  errno = why.value();
  return system_error(path.string());
}

/// Appends a file's bytes; reads to the end, whatever the file's size says.
expected<void> append_file(const fs::path& path, std::vector<std::uint8_t>& bytes) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rb"), &std::fclose};
  if (!file)
    return fail(system_error(path.string()));
  constexpr std::size_t piece = std::size_t{1} << 16U;
  for (;;) {
    const auto before = bytes.size();
    bytes.resize(before + piece);
    const auto count = std::fread(bytes.data() + before, 1, piece, file.get());
    const bool failed = count < piece && std::ferror(file.get()) != 0;
    if (failed)
      return fail(system_error(path.string()));
    bytes.resize(before + count);
    if (bytes.size() > largest_text_bytes)
      return fail(errc::invalid_argument,
                  fmt::format("{}: the text has more than 1 GiB, and must fit into memory: give "
                              "a part of it",
                              path.string()));
    if (count < piece)
      return {};
  }
}

expected<std::vector<fs::path>> regular_files_below(const fs::path& directory) {
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
    return fail(with_path(directory, why));
  std::sort(result.begin(), result.end(), [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return result;
}

expected<std::vector<fs::path>> files_of(const fs::path& path) {
  std::error_code why;
  const auto status = fs::status(path, why);
  if (why)
    return fail(with_path(path, why));
  if (!fs::is_directory(status))
    return std::vector{path};
  auto files = regular_files_below(path);
  if (files && files->empty())
    return fail(errc::not_found, fmt::format("{}: the directory holds no regular file: give a text or a directory of "
                                             "texts",
                                             path.string()));
  return files;
}

} // namespace

expected<split_text> read_text(const fs::path& path, std::size_t context) {
  TROUPE_TRY(auto files, files_of(path));
  std::vector<std::uint8_t> bytes;
  for (const auto& file : files) {
    if (!bytes.empty())
      bytes.push_back('\n');
    TROUPE_TRY(append_file(file, bytes));
  }
  auto result = make_text(std::move(bytes), context);
  if (!result)
    return fail(result.error().code, fmt::format("{}: {}", path.string(), result.error().message));
  return result;
}

} // namespace troupe::data
