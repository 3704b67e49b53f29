#pragma once

#include <troupe/data/data_set.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::data {

/// How an image of another size becomes `height` x `width`.
enum class image_fit : std::uint8_t {
  /// Scaled, keeping its proportions, until both sides are long enough; then the centre is cut out.
  crop,
  /// Each side is scaled by itself.
  stretch,
  /// An image of another size is an error.
  exact,
};

/// What a fingerprint of images notices. Both know the names, order, labels and sizes in bytes of all images.
enum class image_fingerprint : std::uint8_t {
  /// Every changed byte. All files are read once when the data set is made: minutes for 100 GB.
  content,
  /// Not an image that was replaced by another one of as many bytes: for data that does not change, or has a version
  /// in its path.
  names_and_sizes,
};

/// How images become samples.
struct image_options {
  /// The pixels of every sample; from 1 to 16384.
  std::uint32_t height = 0;
  std::uint32_t width = 0;
  /// 3 for red, green, blue; 1 for grey.
  std::uint32_t channels = 3;
  image_fit fit = image_fit::crop;
  image_fingerprint fingerprint = image_fingerprint::content;
  /// The names of the classes, by code. Empty: an image folder's own. A program that reads a second folder passes the
  /// first one's, so that codes mean the same.
  std::vector<std::string> categories = {};
  /// Called after each file while the data set is made, so that a worker that reads for minutes is not taken for a
  /// hang:
  /// `[&] { ctx.heartbeat(); }`. May be empty.
  std::function<void()> heartbeat = {};
};

/// Encoded images that are decoded when they are fetched, on the threads of the loader. Column "image": u8 {height,
/// width, channels}, the channels of a pixel side by side. Column "label": i64.
///
/// JPEG (grey or colour, sequential or progressive) and PNG (every kind) are recognised by their first bytes. They are
/// converted in this order, in integers, so that all hosts get the same bits:
/// - 16 bits become 8 by rounding v / 257; palettes become their colours; alpha, gamma, colour profiles and the
///   orientation in EXIF data are ignored;
/// - colour to grey: (19595 R + 38470 G + 7471 B + 32768) >> 16 (ITU-R 601, as in Pillow); grey to colour: three equal
///   channels;
/// - size: bilinear interpolation whose triangle is as wide as the reduction (antialiased, as in Pillow and
///   torchvision), horizontally first, with weights of 22 bits. A crop keeps floor((scaled - wanted) / 2) on the left
///   and top.
///
/// `fetch` fails with `errc::damaged`, naming the image, for one that is truncated or damaged, even if a viewer would
/// show a part of it; with `errc::invalid_argument` for CMYK, for more than 16384 pixels per side or 2^27 in total
/// (before memory is allocated for them), and for another size with `image_fit::exact`; and with `errc::mismatch` for a
/// file that has changed its size since the data set was made.
///
/// The fingerprint also covers the options and the bits that this host's libjpeg makes of built-in images: hosts whose
/// decoders differ do not train together.
class image_set : public data_set {
 public:
  /// Where a sample comes from, for messages: a path, or "SHARD: MEMBER". Throws `exception`
  /// (`errc::invalid_argument`) for a sample that does not exist.
  [[nodiscard]] virtual std::string name(std::uint64_t sample) const = 0;

  /// Files, links and members of archives that are not part of the data set.
  [[nodiscard]] virtual std::uint64_t ignored() const noexcept = 0;
};

using image_set_ptr = std::shared_ptr<const image_set>;

/// Images in one directory per class, as in torchvision's ImageFolder: `path/CLASS/**/*.{jpg,jpeg,png}` in lower or
/// upper case. Class names in byte order are the codes; samples are ordered by class, then by the bytes of their paths.
/// Column "label" has the names as its `categories`. Other files, files outside of the classes, and symbolic links
/// inside of `path` are ignored and counted. Keeps the paths in memory, and no image; the files must not change during
/// the run.
///
/// Fails with `errc::invalid_argument` for options out of range, with `errc::not_found` for a class without images or
/// no class, with `errc::mismatch` for a class that is not among the given categories, and with `errc::io_error` (or
/// `errc::not_found`), naming the path, for what cannot be read.
[[nodiscard]] expected<image_set_ptr> read_image_folder(const std::filesystem::path& path,
                                                        const image_options& options);

} // namespace troupe::data
