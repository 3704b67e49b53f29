#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <stop_token>

namespace troupe::runtime {

/// Copies a file as long as it is now, though it may grow meanwhile, over one that may exist. Returns once the copy is
/// on the device. Fails with `errc::not_found`, `errc::io_error`, or `errc::aborted` if `stop` is requested.
[[nodiscard]] expected<void> copy_file(const std::filesystem::path& from, const std::filesystem::path& to,
                                       const std::stop_token& stop);

} // namespace troupe::runtime
