#include "images/encoded_images.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace troupe::data {

namespace fs = std::filesystem;

namespace {

error with_path(const fs::path& path, std::error_code why) {
  errno = why.value();
  return system_error(path.string());
}

bool is_image_name(const fs::path& path) {
  auto ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

struct image_file {
  /// Relative to the folder: "CLASS/.../NAME".
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t label = 0;
};

/// A file that is closed with this object.
class open_file {
 public:
  explicit open_file(const fs::path& path) : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  open_file(const open_file&) = delete;
  open_file& operator=(const open_file&) = delete;
  ~open_file() {
    if (number_ >= 0)
      ::close(number_);
  }

  /// Reads at most `out.size()` bytes; fewer only at the end of the file. Returns their number, or -1 with `errno`.
  [[nodiscard]] ::ssize_t read(std::span<std::byte> out) const {
    if (number_ < 0)
      return -1; // with the cause from `open`
    std::size_t filled = 0;
    while (filled < out.size()) {
      const auto count = ::read(number_, out.data() + filled, out.size() - filled);
      if (count < 0 && errno == EINTR)
        continue;
      if (count < 0)
        return -1;
      if (count == 0)
        break;
      filled += static_cast<std::size_t>(count);
    }
    return static_cast<::ssize_t>(filled);
  }

 private:
  int number_;
};

/// Reads a file that had this many bytes. Into memory, not mapped: a file that shrinks is an error, and not a SIGBUS.
expected<std::span<const std::byte>> read_whole(const fs::path& path, std::uint64_t bytes,
                                                std::vector<std::byte>& buffer) {
  buffer.resize(bytes + 1); // one more, to see whether it has grown
  const auto file = open_file{path};
  const auto count = file.read(buffer);
  if (count < 0)
    return fail(system_error(path.string()));
  if (static_cast<std::uint64_t>(count) != bytes)
    return fail(errc::mismatch,
                fmt::format("{}: the file had {} bytes when the data set was made, and has {} now: "
                            "start the run again",
                            path.string(), bytes,
                            static_cast<std::uint64_t>(count) < bytes ? std::to_string(count) : "more"));
  return std::span<const std::byte>{buffer}.first(bytes);
}

class image_folder final : public image_source {
 public:
  image_folder(fs::path root, std::vector<image_file> files, std::uint64_t ignored)
      : root_(std::move(root)), files_(std::move(files)), ignored_(ignored) {}

  [[nodiscard]] std::uint64_t size() const noexcept override { return files_.size(); }
  [[nodiscard]] std::string name(std::uint64_t sample) const override { return (root_ / key(sample)).string(); }
  [[nodiscard]] std::string key(std::uint64_t sample) const override { return files_[sample].path; }
  [[nodiscard]] std::uint64_t size_bytes(std::uint64_t sample) const noexcept override { return files_[sample].bytes; }
  [[nodiscard]] std::uint64_t ignored() const noexcept override { return ignored_; }

  [[nodiscard]] std::optional<std::int64_t> label(std::uint64_t sample) const noexcept override {
    return files_[sample].label;
  }

  [[nodiscard]] expected<std::span<const std::byte>> read(std::uint64_t sample,
                                                          std::vector<std::byte>& buffer) const override {
    return read_whole(root_ / files_[sample].path, files_[sample].bytes, buffer);
  }

 private:
  fs::path root_;
  std::vector<image_file> files_;
  std::uint64_t ignored_;
};

/// Finds classes and images.
class folder_scan {
 public:
  folder_scan(const fs::path& root, const image_options& options) : root_(root), options_(options) {}

  expected<void> scan() {
    TROUPE_TRY(find_classes());
    std::int64_t label = 0;
    for (const auto& name : classes_) {
      TROUPE_TRY(auto code, code_of(name, label++));
      TROUPE_TRY(find_images(name, code));
    }
    // Given categories may be in any order.
    std::ranges::stable_sort(files_, {}, &image_file::label);
    return {};
  }

  [[nodiscard]] category_names categories() const {
    return std::make_shared<const std::vector<std::string>>(options_.categories.empty() ? classes_
                                                                                        : options_.categories);
  }

  [[nodiscard]] std::unique_ptr<const image_source> source() {
    return std::make_unique<image_folder>(root_, std::move(files_), ignored_);
  }

 private:
  expected<void> find_classes() {
    std::error_code why;
    auto entry = fs::directory_iterator{root_, why};
    while (!why && entry != fs::directory_iterator{}) {
      if (fs::is_directory(entry->symlink_status(why)))
        classes_.push_back(entry->path().filename().string());
      else
        ++ignored_;
      if (!why)
        entry.increment(why);
    }
    if (why)
      return fail(with_path(root_, why));
    if (classes_.empty())
      return fail(errc::not_found,
                  fmt::format("{}: no directories, expected one for each class, with its images", root_.string()));
    std::ranges::sort(classes_);
    return {};
  }

  [[nodiscard]] expected<std::int64_t> code_of(const std::string& name, std::int64_t own) const {
    if (options_.categories.empty())
      return own;
    auto found = std::ranges::find(options_.categories, name);
    if (found == options_.categories.end())
      return fail(errc::mismatch, fmt::format("{}: the class is none of the {} given categories",
                                              (root_ / name).string(), options_.categories.size()));
    return found - options_.categories.begin();
  }

  expected<void> find_images(const std::string& name, std::int64_t label) {
    const auto before = files_.size();
    const auto directory = root_ / name;
    std::error_code why;
    auto entry = fs::recursive_directory_iterator{directory, why};
    while (!why && entry != fs::recursive_directory_iterator{}) {
      TROUPE_TRY(add(*entry, name, label));
      entry.increment(why);
    }
    if (why)
      return fail(with_path(directory, why));
    if (files_.size() == before)
      return fail(
          errc::not_found,
          fmt::format("{}: the class has no .jpg, .jpeg or .png files (links are not followed)", directory.string()));
    std::sort(files_.begin() + static_cast<std::ptrdiff_t>(before), files_.end(),
              [](const image_file& a, const image_file& b) { return a.path < b.path; });
    return {};
  }

  expected<void> add(const fs::directory_entry& entry, const std::string& name, std::int64_t label) {
    std::error_code why;
    const auto status = entry.symlink_status(why);
    if (why)
      return fail(with_path(entry.path(), why));
    if (fs::is_directory(status))
      return {};
    if (!fs::is_regular_file(status) || !is_image_name(entry.path())) {
      ++ignored_;
      return {};
    }
    const auto bytes = fs::file_size(entry.path(), why);
    if (why)
      return fail(with_path(entry.path(), why));
    const auto below = entry.path().native().substr((root_ / name).native().size());
    files_.push_back({name + below, bytes, label});
    if (options_.heartbeat)
      options_.heartbeat();
    return {};
  }

  const fs::path& root_;
  const image_options& options_;
  std::vector<std::string> classes_;
  std::vector<image_file> files_;
  std::uint64_t ignored_ = 0;
};

} // namespace

expected<image_set_ptr> read_image_folder(const fs::path& path, const image_options& options) {
  TROUPE_TRY(check(options));
  auto found = folder_scan{path, options};
  TROUPE_TRY(found.scan());
  auto source = found.source();
  return make_image_set(std::move(source), options, found.categories());
}

} // namespace troupe::data
