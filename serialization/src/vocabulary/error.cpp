#include <troupe/error.hpp>

#include <cerrno>
#include <cstring>
#include <fmt/format.h>

namespace troupe {

std::string_view to_string(errc code) noexcept {
  switch (code) {
  case errc::none:
    return "none";
  case errc::invalid_argument:
    return "invalid_argument";
  case errc::unsatisfiable:
    return "unsatisfiable";
  case errc::unreachable:
    return "unreachable";
  case errc::not_authenticated:
    return "not_authenticated";
  case errc::wrong_secret:
    return "wrong_secret";
  case errc::program_mismatch:
    return "program_mismatch";
  case errc::mismatch:
    return "mismatch";
  case errc::worker_lost:
    return "worker_lost";
  case errc::node_lost:
    return "node_lost";
  case errc::aborted:
    return "aborted";
  case errc::timed_out:
    return "timed_out";
  case errc::stale_generation:
    return "stale_generation";
  case errc::io_error:
    return "io_error";
  case errc::damaged:
    return "damaged";
  case errc::unsupported_version:
    return "unsupported_version";
  case errc::not_found:
    return "not_found";
  case errc::already_exists:
    return "already_exists";
  case errc::user_error:
    return "user_error";
  case errc::stopped:
    return "stopped";
  case errc::internal:
    return "internal";
  case errc::device_error:
    return "device_error";
  case errc::connection_refused:
    return "connection_refused";
  case errc::superseded:
    return "superseded";
  case errc::busy:
    return "busy";
  }
  return "unknown";
}

error system_error(std::string_view what) {
  auto code = errno;
  auto message = fmt::format("{}: {}", what, std::strerror(code));
  switch (code) {
  case ENOENT:
    return {errc::not_found, std::move(message)};
  case EEXIST:
    return {errc::already_exists, std::move(message)};
  default:
    return {errc::io_error, std::move(message)};
  }
}

} // namespace troupe
