#include "images/encoded_images.hpp"

#include "content_hash.hpp"
#include "images/decode.hpp"
#include "images/resize.hpp"

#include <fmt/format.h>
#include <utility>

namespace troupe::data {

namespace {

class encoded_images final : public image_set {
 public:
  encoded_images(std::unique_ptr<const image_source> source, const image_options& options, category_names categories,
                 std::string fingerprint)
      : source_(std::move(source)), shaper_(options), fingerprint_(std::move(fingerprint)) {
    columns_.push_back({"image", dtype::u8, {options.height, options.width, options.channels}, {}});
    if (source_->label(0))
      columns_.push_back({"label", dtype::i64, {}, std::move(categories)});
  }

  [[nodiscard]] std::uint64_t size() const noexcept override { return source_->size(); }
  [[nodiscard]] std::span<const column_spec> columns() const noexcept override { return columns_; }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::uint64_t ignored() const noexcept override { return source_->ignored(); }

  [[nodiscard]] std::string name(std::uint64_t sample) const override {
    if (sample >= size())
      throw exception{errc::invalid_argument,
                      fmt::format("image {} of {}: images are numbered from 0", sample, size())};
    return source_->name(sample);
  }

 protected:
  [[nodiscard]] expected<void> read(std::span<const std::uint64_t> samples, batch& out) const override {
    auto shaper = shaper_;
    std::vector<std::byte> buffer;
    pixels image;
    auto values = out.values<std::uint8_t>("image");
    const auto sample_values = columns_.front().elements();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      TROUPE_TRY(auto encoded, source_->read(samples[i], buffer));
      auto shaped = decode_image(encoded, image).and_then([&] {
        return shaper.shape(image, values.subspan(i * sample_values, sample_values));
      });
      if (!shaped)
        return fail(shaped.error().code, fmt::format("{}: {}", source_->name(samples[i]), shaped.error().message));
    }
    if (columns_.size() == 1)
      return {};
    auto labels = out.values<std::int64_t>("label");
    for (std::size_t i = 0; i < samples.size(); ++i)
      labels[i] = *source_->label(samples[i]);
    return {};
  }

 private:
  std::unique_ptr<const image_source> source_;
  /// Copied for each fetch.
  image_shaper shaper_;
  std::vector<column_spec> columns_;
  std::string fingerprint_;
};

void add_options(content_hash& hash, const image_options& options, const category_names& categories) {
  hash.add(std::string_view{"troupe images 1"});
  for (auto value : {options.height, options.width, options.channels})
    hash.add(std::uint64_t{value});
  hash.add(std::uint64_t{static_cast<std::uint8_t>(options.fit)});
  hash.add(std::uint64_t{static_cast<std::uint8_t>(options.fingerprint)});
  hash.add(std::uint64_t{categories ? categories->size() : 0});
  if (categories)
    for (const auto& name : *categories)
      hash.add(std::string_view{name});
}

expected<std::string> fingerprint_of(const image_source& source, const image_options& options,
                                     const category_names& categories) {
  content_hash hash;
  add_options(hash, options, categories);
  TROUPE_TRY(auto decoder, decoder_digest());
  hash.add(std::string_view{decoder});
  hash.add(source.size());
  std::vector<std::byte> buffer;
  for (std::uint64_t i = 0; i < source.size(); ++i) {
    hash.add(std::string_view{source.key(i)});
    hash.add(source.size_bytes(i));
    hash.add(static_cast<std::uint64_t>(source.label(i).value_or(-1)));
    if (options.fingerprint != image_fingerprint::content)
      continue;
    TROUPE_TRY(auto encoded, source.read(i, buffer));
    hash.add(encoded);
    if (options.heartbeat)
      options.heartbeat();
  }
  return hash.digest();
}

} // namespace

expected<void> check(const image_options& options) {
  auto in_range = [](std::uint32_t side) { return side > 0 && side <= largest_image_side; };
  if (!in_range(options.height) || !in_range(options.width))
    return fail(errc::invalid_argument, fmt::format("images of {} x {} pixels (height x width): set both in "
                                                    "image_options, from 1 to {}",
                                                    options.height, options.width, largest_image_side));
  if (options.channels != 1 && options.channels != 3)
    return fail(errc::invalid_argument,
                fmt::format("images of {} channels: image_options::channels is 1 or 3", options.channels));
  return {};
}

expected<image_set_ptr> make_image_set(std::unique_ptr<const image_source> source, const image_options& options,
                                       category_names categories) {
  TROUPE_TRY(auto fingerprint, fingerprint_of(*source, options, categories));
  return std::make_shared<encoded_images>(std::move(source), options, std::move(categories), std::move(fingerprint));
}

} // namespace troupe::data
