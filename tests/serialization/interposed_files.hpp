#pragma once

#include <troupe/serialization/files/file_system.hpp>

#include <functional>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

namespace troupe::serialization {

enum class operation : std::uint8_t {
  open,
  create,
  look_at,
  list,
  make_directory,
  rename,
  link,
  remove,
  sync_directory,
  size,
  reserve,
  write,
  read,
  sync,
  drop_cached,
};

/// The fate of one operation.
struct verdict {
  enum class kind : std::uint8_t { carried_out, left_out, failed };

  kind what = kind::carried_out;
  /// The `errno` value if it fails. A failing write has written half of its bytes.
  int cause = 0;
  /// Called after the operation was executed.
  std::function<void()> afterwards = {};
};

/// A file system that asks about every operation before forwarding it to another one. Skipped operations report
/// success.
class interposed_files : public file_system {
 public:
  /// For a rename, the path is the new one.
  using judge = std::function<verdict(operation, const std::filesystem::path&)>;

  interposed_files(file_system& below, judge decide) : below_(below), decide_(std::move(decide)) {}

  expected<std::unique_ptr<file>> open(const std::filesystem::path& path) override {
    auto cause = ask(operation::open, path).cause;
    if (cause != 0)
      return fail(file_error(cause, "opening", path));
    return wrapped(below_.open(path));
  }

  expected<std::unique_ptr<file>> create(const std::filesystem::path& path) override {
    auto cause = ask(operation::create, path).cause;
    if (cause != 0)
      return fail(file_error(cause, "creating", path));
    return wrapped(below_.create(path));
  }

  expected<std::optional<entry_kind>> look_at(const std::filesystem::path& path) override {
    auto cause = ask(operation::look_at, path).cause;
    if (cause != 0)
      return fail(file_error(cause, "looking at", path));
    return below_.look_at(path);
  }

  expected<std::vector<directory_entry>> list(const std::filesystem::path& path) override {
    auto cause = ask(operation::list, path).cause;
    if (cause != 0)
      return fail(file_error(cause, "listing", path));
    return below_.list(path);
  }

  expected<void> make_directory(const std::filesystem::path& path) override {
    return judged(operation::make_directory, "creating the directory", path,
                  [&] { return below_.make_directory(path); });
  }

  expected<void> rename(const std::filesystem::path& from, const std::filesystem::path& to, if_taken what) override {
    return judged(operation::rename, "renaming " + from.string() + " to", to,
                  [&] { return below_.rename(from, to, what); });
  }

  expected<bool> link(const std::filesystem::path& from, const std::filesystem::path& to) override {
    auto decided = ask(operation::link, to);
    if (decided.what == verdict::kind::failed && means_no_links(decided.cause))
      return false;
    if (decided.what == verdict::kind::failed)
      return fail(file_error(decided.cause, "linking " + from.string() + " to", to));
    if (decided.what == verdict::kind::left_out)
      return true;
    return below_.link(from, to);
  }

  expected<void> remove(const std::filesystem::path& path) override {
    return judged(operation::remove, "removing", path, [&] { return below_.remove(path); });
  }

  expected<void> sync_directory(const std::filesystem::path& path) override {
    return judged(operation::sync_directory, "syncing", path, [&] { return below_.sync_directory(path); });
  }

 private:
  class interposed_file : public file {
   public:
    interposed_file(interposed_files& files, std::unique_ptr<file> below)
        : file(below->path()), files_(files), below_(std::move(below)) {}

    expected<std::uint64_t> size_bytes() const override {
      auto cause = files_.ask(operation::size, path()).cause;
      if (cause != 0)
        return fail(file_error(cause, "looking at", path()));
      return below_->size_bytes();
    }

    expected<void> reserve(std::uint64_t size_bytes) override {
      return files_.judged(operation::reserve, "reserving " + std::to_string(size_bytes) + " bytes for", path(),
                           [&] { return below_->reserve(size_bytes); });
    }

    expected<void> write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) override {
      auto result =
          files_.judged(operation::write, "writing", path(), [&] { return below_->write_at(offset_bytes, bytes); });
      if (!result)
        std::ignore = below_->write_at(offset_bytes, bytes.first(bytes.size() / 2));
      return result;
    }

    expected<void> read_at(std::uint64_t offset_bytes, std::span<std::byte> target) const override {
      return files_.judged(operation::read, "reading", path(), [&] { return below_->read_at(offset_bytes, target); });
    }

    expected<void> sync() override {
      return files_.judged(operation::sync, "syncing", path(), [&] { return below_->sync(); });
    }

    void drop_cached() const noexcept override {
      if (files_.ask(operation::drop_cached, path()).what == verdict::kind::carried_out)
        below_->drop_cached();
    }

   private:
    interposed_files& files_;
    std::unique_ptr<file> below_;
  };

  verdict ask(operation what, const std::filesystem::path& path) { return decide_(what, path); }

  expected<std::unique_ptr<file>> wrapped(expected<std::unique_ptr<file>> opened) {
    if (!opened)
      return opened;
    return std::make_unique<interposed_file>(*this, std::move(*opened));
  }

  template <class CarryOut>
  expected<void> judged(operation what, std::string_view doing, const std::filesystem::path& path, CarryOut carry_out) {
    auto decided = ask(what, path);
    if (decided.what == verdict::kind::failed)
      return fail(file_error(decided.cause, doing, path));
    if (decided.what == verdict::kind::left_out)
      return {};
    auto result = carry_out();
    if (decided.afterwards)
      decided.afterwards();
    return result;
  }

  file_system& below_;
  judge decide_;
};

} // namespace troupe::serialization
