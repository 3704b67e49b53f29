#pragma once

#include <troupe/collectives/tcp_communicator.hpp>
#include <troupe/messages/begin.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <optional>
#include <string_view>

namespace troupe::runtime {

/// How the workers of a run connect to each other over TCP.
struct data_plane {
  run_id run;
  collectives::run_secret secret{};
  bool encrypted = true;
  /// As in `tcp_options`.
  std::optional<std::chrono::milliseconds> answer_deadline = {};
  std::optional<port_range> ports = {};

  /// For one of the run's groups, which `group` names.
  [[nodiscard]] collectives::tcp_options options(std::string_view group) const {
    collectives::tcp_options result;
    result.secret = secret;
    result.encrypted = encrypted;
    result.answer_deadline = answer_deadline;
    result.ports = ports;
    result.tag = fmt::format("{}/{}", run, group);
    result.report = [](std::string_view line) {
      std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
    };
    return result;
  }
};

/// As the driver has it.
[[nodiscard]] inline data_plane data_plane_of(const begin_training& begin, const collectives::run_secret& secret) {
  const auto& settings = begin.settings;
  data_plane result{begin.run, secret, settings.encrypt_data_plane};
  result.ports = settings.ports;
  if (settings.answer_timeout_ms > 0)
    result.answer_deadline = std::chrono::milliseconds{settings.answer_timeout_ms};
  return result;
}

} // namespace troupe::runtime
