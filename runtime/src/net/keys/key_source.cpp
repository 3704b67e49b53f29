#include "net/keys/key_source.hpp"

#include "net/keys/key_files.hpp"

#include <fmt/format.h>

#include <sys/stat.h>
#include <utility>

namespace troupe::runtime {

expected<std::shared_ptr<key_source>> key_source::make(tls_files files, log_function log) {
  auto result = std::make_shared<key_source>(std::move(files), std::move(log));
  result->seen_ = result->look();
  TROUPE_TRY(result->context_, tls_context::make(result->files_));
  return result;
}

std::shared_ptr<const tls_context> key_source::current() {
  const auto lock = std::lock_guard{mutex_};
  const auto now = look();
  if (now == seen_)
    return context_;
  seen_ = now;
  auto made = check_files(files_, "copy all files of this host again").and_then([&](validity) {
    return tls_context::make(files_);
  });
  if (made)
    context_ = std::move(*made);
  log(made ? fmt::format("the keys have changed: {} counts for new connections", files_.certificate.string())
           : fmt::format("the keys have changed and cannot be used, so those before stay in use: {}",
                         made.error().message));
  return context_;
}

key_source::versions key_source::look() const {
  versions result;
  const std::array paths{files_.certificate, files_.key, files_.ca, revocation_path(files_.ca)};
  for (std::size_t i = 0; i < paths.size(); ++i) {
    struct stat status {};
    if (::stat(paths[i].c_str(), &status) == 0)
      result[i] = {status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  }
  return result;
}

} // namespace troupe::runtime
