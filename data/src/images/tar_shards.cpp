#include <troupe/data/tar.hpp>

#include "file_bytes.hpp"
#include "images/encoded_images.hpp"
#include "images/tar_archive.hpp"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace troupe::data {

namespace fs = std::filesystem;

namespace {

struct shard {
  std::string path;
  file_bytes content;
};

/// One sample: where its image is, and its label.
struct tar_sample {
  std::string key;
  std::uint32_t shard = 0;
  /// "jpg", "jpeg" or "png" in the archive's letters; empty as long as there is no image.
  std::string ending;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  /// Where the sample begins, for messages.
  std::uint64_t header_offset = 0;
  std::optional<std::int64_t> label;
};

class tar_images final : public image_source {
 public:
  tar_images(std::vector<shard> shards, std::vector<tar_sample> samples, std::uint64_t ignored)
      : shards_(std::move(shards)), samples_(std::move(samples)), ignored_(ignored) {}

  [[nodiscard]] std::uint64_t size() const noexcept override { return samples_.size(); }
  [[nodiscard]] std::string key(std::uint64_t sample) const override { return samples_[sample].key; }
  [[nodiscard]] std::uint64_t size_bytes(std::uint64_t sample) const noexcept override {
    return samples_[sample].bytes;
  }
  [[nodiscard]] std::uint64_t ignored() const noexcept override { return ignored_; }
  [[nodiscard]] std::optional<std::int64_t> label(std::uint64_t sample) const noexcept override {
    return samples_[sample].label;
  }

  [[nodiscard]] std::string name(std::uint64_t sample) const override {
    const auto& own = samples_[sample];
    return fmt::format("{}: {}.{}", shards_[own.shard].path, own.key, own.ending);
  }

  [[nodiscard]] expected<std::span<const std::byte>> read(std::uint64_t sample,
                                                          std::vector<std::byte>& /*buffer*/) const override {
    const auto& own = samples_[sample];
    return shards_[own.shard].content.bytes.subspan(own.offset, own.bytes);
  }

 private:
  std::vector<shard> shards_;
  std::vector<tar_sample> samples_;
  std::uint64_t ignored_;
};

struct member_name {
  std::string key;
  std::string ending;
};

/// Splits at the first dot of the last component. Null for hidden files and names without a dot.
std::optional<member_name> split_name(const std::string& name) {
  const auto slash = name.rfind('/');
  const auto base = slash == std::string::npos ? 0 : slash + 1;
  const auto dot = name.find('.', base);
  if (dot == std::string::npos || dot == base)
    return std::nullopt;
  return member_name{name.substr(0, dot), name.substr(dot + 1)};
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

/// Gathers the samples of all shards.
class shard_scan {
 public:
  explicit shard_scan(const image_options& options) : options_(options) {}

  expected<void> add_shard(const fs::path& path) {
    TROUPE_TRY(auto content, open_bytes(path));
    shards_.push_back({path.string(), std::move(content)});
    by_key_.clear();
    const auto first = samples_.size();
    const auto& own = shards_.back();
    TROUPE_TRY(read_tar(own.content.bytes, own.path, [this](tar_member member) { return add(std::move(member)); }));
    for (auto i = first; i < samples_.size(); ++i)
      if (samples_[i].ending.empty())
        return damaged(samples_[i].header_offset, fmt::format("sample {} has a label and no image", samples_[i].key));
    return {};
  }

  /// Either all samples have labels, or none.
  [[nodiscard]] expected<void> check_all() const {
    if (samples_.empty())
      return fail(errc::not_found, fmt::format("{}: no .jpg, .jpeg or .png files in {}", shards_.front().path,
                                               shards_.size() == 1 ? "the archive" : "this archive and the others"));
    const bool labelled = samples_.front().label.has_value();
    auto odd = std::ranges::find_if(samples_, [&](const auto& x) { return x.label.has_value() != labelled; });
    if (odd == samples_.end())
      return {};
    const auto& without = labelled ? *odd : samples_.front();
    return fail(errc::damaged, fmt::format("{}: byte {}: sample {} has no label (a .cls file), and others have",
                                           shards_[without.shard].path, without.header_offset, without.key));
  }

  [[nodiscard]] bool has_labels() const { return samples_.front().label.has_value(); }

  [[nodiscard]] std::unique_ptr<const image_source> source() {
    return std::make_unique<tar_images>(std::move(shards_), std::move(samples_), ignored_);
  }

 private:
  [[nodiscard]] tl::unexpected<error> damaged(std::uint64_t offset, const std::string& what) const {
    return fail(errc::damaged, fmt::format("{}: byte {}: {}", shards_.back().path, offset, what));
  }

  expected<void> add(tar_member member) {
    if (options_.heartbeat)
      options_.heartbeat();
    auto name = split_name(member.name);
    const auto kind = name ? lower(name->ending) : std::string{};
    const bool is_image = kind == "jpg" || kind == "jpeg" || kind == "png";
    if (!is_image && kind != "cls") {
      ++ignored_;
      return {};
    }
    if (member.kind != tar_member::form::file)
      return damaged(member.header_offset,
                     fmt::format("{} is a link or a device: write the archive with --dereference and "
                                 "--hard-dereference",
                                 member.name));
    auto& sample = sample_of(*name, member);
    return is_image ? set_image(sample, std::move(name->ending), member) : set_label(sample, member);
  }

  tar_sample& sample_of(const member_name& name, const tar_member& member) {
    auto [place, is_new] = by_key_.try_emplace(name.key, samples_.size());
    if (is_new) {
      auto& added = samples_.emplace_back();
      added.key = name.key;
      added.shard = static_cast<std::uint32_t>(shards_.size() - 1);
      added.header_offset = member.header_offset;
    }
    return samples_[place->second];
  }

  expected<void> set_image(tar_sample& sample, std::string ending, const tar_member& member) const {
    if (!sample.ending.empty())
      return damaged(member.header_offset, fmt::format("{} is a second image of sample {}", member.name, sample.key));
    sample.ending = std::move(ending);
    sample.offset = member.offset;
    sample.bytes = member.bytes;
    return {};
  }

  expected<void> set_label(tar_sample& sample, const tar_member& member) const {
    if (sample.label)
      return damaged(member.header_offset, fmt::format("{} is a second label of sample {}", member.name, sample.key));
    auto content = shards_.back().content.text().substr(member.offset, member.bytes);
    auto text = content.substr(0, content.find_last_not_of(" \t\r\n") + 1);
    std::int64_t value = 0;
    auto [end, why] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (why != std::errc{} || end != text.data() + text.size() || value < 0)
      return damaged(member.header_offset,
                     fmt::format("{} holds no label: expected a decimal number from 0 on", member.name));
    const auto classes = options_.categories.size();
    if (classes != 0 && static_cast<std::uint64_t>(value) >= classes)
      return fail(errc::invalid_argument,
                  fmt::format("{}: byte {}: {} holds label {}, and there are {} categories", shards_.back().path,
                              member.header_offset, member.name, value, classes));
    sample.label = value;
    return {};
  }

  const image_options& options_;
  std::vector<shard> shards_;
  std::vector<tar_sample> samples_;
  /// The samples of the shard that is being read.
  std::unordered_map<std::string, std::size_t> by_key_;
  std::uint64_t ignored_ = 0;
};

} // namespace

expected<image_set_ptr> read_tar_shards(const std::vector<fs::path>& shards, const image_options& options) {
  TROUPE_TRY(check(options));
  if (shards.empty())
    return fail(errc::invalid_argument, "no tar files are given");
  auto found = shard_scan{options};
  for (const auto& path : shards)
    TROUPE_TRY(found.add_shard(path));
  TROUPE_TRY(found.check_all());
  category_names categories;
  if (found.has_labels() && !options.categories.empty())
    categories = std::make_shared<const std::vector<std::string>>(options.categories);
  return make_image_set(found.source(), options, std::move(categories));
}

namespace {

constexpr std::size_t most_expanded = 1'000'000;

expected<std::vector<std::string>> list_range(std::string_view first, std::string_view last) {
  auto number = [](std::string_view text) -> std::optional<std::uint64_t> {
    std::uint64_t value = 0;
    auto [end, why] = std::from_chars(text.data(), text.data() + text.size(), value);
    return why == std::errc{} && end == text.data() + text.size() ? std::optional{value} : std::nullopt;
  };
  auto low = number(first);
  auto high = number(last);
  if (!low || !high || *low > *high || *high - *low >= most_expanded)
    return fail(errc::invalid_argument, fmt::format("{{{}..{}}}: expected two ascending numbers, for at most {} files",
                                                    first, last, most_expanded));
  const bool padded = (first.size() > 1 && first.front() == '0') || (last.size() > 1 && last.front() == '0');
  const auto width = padded ? std::max(first.size(), last.size()) : 0;
  std::vector<std::string> result;
  for (auto i = *low; i <= *high; ++i)
    result.push_back(fmt::format("{:0{}}", i, width));
  return result;
}

expected<std::vector<std::string>> list_group(std::string_view group) {
  if (auto dots = group.find(".."); dots != std::string_view::npos)
    return list_range(group.substr(0, dots), group.substr(dots + 2));
  std::vector<std::string> result;
  for (;;) {
    const auto comma = group.find(',');
    result.emplace_back(group.substr(0, comma));
    if (comma == std::string_view::npos)
      return result;
    group.remove_prefix(comma + 1);
  }
}

} // namespace

expected<std::vector<fs::path>> expand_braces(std::string_view pattern) {
  std::vector<std::string> results{""};
  for (auto rest = pattern; !rest.empty();) {
    const auto open = std::min(rest.find_first_of("{}"), rest.size());
    for (auto& result : results)
      result += rest.substr(0, open);
    rest.remove_prefix(open);
    if (rest.empty())
      break;
    const auto close = rest.find_first_of("{}", 1);
    if (rest.front() == '}' || close == std::string_view::npos || rest[close] == '{')
      return fail(errc::invalid_argument, fmt::format("{}: unbalanced or nested braces", pattern));
    TROUPE_TRY(auto group, list_group(rest.substr(1, close - 1)));
    rest.remove_prefix(close + 1);
    if (results.size() * group.size() > most_expanded)
      return fail(errc::invalid_argument, fmt::format("{}: more than {} files", pattern, most_expanded));
    std::vector<std::string> longer;
    for (const auto& result : results)
      for (const auto& item : group)
        longer.push_back(result + item);
    results = std::move(longer);
  }
  return std::vector<fs::path>(results.begin(), results.end());
}

} // namespace troupe::data
