#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>
#include <troupe/serialization/files/file_system.hpp>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::serialization {

/// A committed checkpoint, opened for reading. A value: it holds the manifest and opens files as needed, in the file
/// system passed to `open`, which must outlive it. Several threads may read at once.
class checkpoint {
 public:
  /// Reads the manifest and checks that all parts exist with their sizes. Fails with `errc::not_found` if the directory
  /// does not exist, `errc::damaged`, `errc::unsupported_version` or `errc::io_error`.
  [[nodiscard]] static expected<checkpoint> open(const std::filesystem::path& directory,
                                                 file_system& files = local_files(),
                                                 read_back source = read_back::cached);

  [[nodiscard]] const std::filesystem::path& directory() const noexcept { return directory_; }
  [[nodiscard]] const manifest& content() const noexcept { return content_; }

  /// The index of a tensor by name.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;

  /// Copies a tensor's bytes to `target`, which must have exactly its size, and verifies the copy. Fails with
  /// `errc::not_found`, `errc::invalid_argument` (size), `errc::damaged` (naming tensor, chunk, file and offset) or
  /// `errc::io_error`; the content of `target` is then undefined. Chunks are read on at most `threads` threads; 0 means
  /// the number of processors, up to 8.
  [[nodiscard]] expected<void> read_tensor(std::size_t index, std::span<std::byte> target, unsigned threads = 0) const;
  [[nodiscard]] expected<void> read_tensor(std::string_view name, std::span<std::byte> target,
                                           unsigned threads = 0) const;

  /// The same for all tensors, in the manifest's order; small tensors share the threads as well.
  [[nodiscard]] expected<void> read_tensors(std::span<const std::span<std::byte>> targets, unsigned threads = 0) const;

  /// Passes a tensor's verified bytes to `consume`, chunk by chunk in order. Needs memory for one chunk. Fails as
  /// `read_tensor` does.
  [[nodiscard]] expected<void> read_chunks(std::size_t index,
                                           const std::function<void(std::span<const std::byte>)>& consume) const;

  /// Reads all bytes, including padding. Fails with `errc::damaged` at the first difference, naming tensor, chunk, file
  /// and offset, or with `errc::io_error`. Threads as in `read_tensor`; their number does not affect which difference
  /// is reported.
  [[nodiscard]] expected<void> verify(read_back source = read_back::cached, unsigned threads = 0) const;

  /// The same on the calling thread; fails with `errc::aborted` soon after `stop` is requested.
  [[nodiscard]] expected<void> verify(read_back source, const std::stop_token& stop) const;

 private:
  checkpoint(std::filesystem::path directory, manifest content, file_system& files);

  [[nodiscard]] expected<const stored_tensor*> tensor_at(std::size_t index) const;
  [[nodiscard]] expected<void> verify_with(read_back source, unsigned threads, const std::stop_token& stop) const;
  [[nodiscard]] expected<void> read_chunk(const stored_tensor& tensor, std::size_t chunk,
                                          std::span<std::byte> target) const;
  [[nodiscard]] expected<void> check_target(const stored_tensor& tensor, std::span<const std::byte> target) const;

  /// The target of a chunk's bytes.
  struct chunk_place {
    const stored_tensor* tensor = nullptr;
    std::size_t chunk = 0;
    std::span<std::byte> target;
  };

  [[nodiscard]] static std::vector<chunk_place> places_of(const stored_tensor& tensor, std::span<std::byte> target);
  [[nodiscard]] expected<void> read_places(std::span<const chunk_place> places, unsigned threads) const;

  std::filesystem::path directory_;
  manifest content_;
  file_system* files_;
  std::map<std::string, std::size_t, std::less<>> index_by_name_;
};

/// A checkpoint that could not be used. `why` has `errc::damaged` if its bytes are wrong; with any other code it could
/// not be read, and may be valid.
struct unusable_checkpoint {
  std::filesystem::path directory;
  error why;

  /// "step-00000020: ..."
  [[nodiscard]] std::string text() const { return directory.filename().string() + ": " + why.message; }
};

/// The result of `open_latest`.
struct latest_checkpoint {
  checkpoint found;
  /// The newer checkpoints that could not be used, newest first.
  std::vector<unusable_checkpoint> passed_over;
};

/// The newest checkpoint under `checkpoints_directory` that verifies. Fails with `errc::not_found` if there is no
/// checkpoint, and with `errc::damaged`, listing each with its damage, if none verifies.
[[nodiscard]] expected<latest_checkpoint> open_latest(const std::filesystem::path& checkpoints_directory,
                                                      file_system& files = local_files());

} // namespace troupe::serialization
