#pragma once

#include <troupe/data/images.hpp>
#include <troupe/error.hpp>

#include <filesystem>
#include <string_view>
#include <vector>

namespace troupe::data {

/// Images in uncompressed tar files, in WebDataset's form: the files of one sample share the name up to the first dot
/// of its last component (the key). `KEY.jpg`, `KEY.jpeg` or `KEY.png` is the image, `KEY.cls` the label in decimal
/// digits. Samples are ordered by shard, then by the first file of each key. Without any `.cls` there is no column
/// "label"; with `image_options::categories` labels are codes of these. Other members are ignored and counted.
///
/// The shards (ustar, GNU and pax, with long names and large sizes) are mapped and indexed once, and then read at
/// random places: memory holds the keys, and whatever pages the system keeps. They must not change during the run:
/// accessing the missing end of a file that has shrunk raises SIGBUS. The fingerprint does not depend on the division
/// into shards.
///
/// Fails with `errc::invalid_argument` for no shards and for options or labels out of range; with `errc::not_found` for
/// no samples; with `errc::damaged`, naming file and byte, for a file that is not a tar archive, is compressed,
/// truncated or damaged, for a sample without image, with two, or without the label that others have, and for images
/// that are stored as links or sparse files; and with `errc::io_error` or `errc::not_found` for what cannot be read.
[[nodiscard]] expected<image_set_ptr> read_tar_shards(const std::vector<std::filesystem::path>& shards,
                                                      const image_options& options);

/// Expands the braces of a list of shards: "train-{000..146}.tar" and "{train,extra}-{0..9}.tar", with leading zeros as
/// written. The last group varies fastest. Fails with `errc::invalid_argument` for unbalanced or nested braces, a range
/// that is not of ascending numbers, and more than 1,000,000 results.
[[nodiscard]] expected<std::vector<std::filesystem::path>> expand_braces(std::string_view pattern);

} // namespace troupe::data
