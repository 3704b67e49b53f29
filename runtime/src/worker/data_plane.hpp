#pragma once

#include <troupe/collectives/tcp_communicator.hpp>
#include <troupe/types.hpp>

#include <cstdio>
#include <fmt/format.h>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// How the workers of a run connect to each other over TCP.
struct data_plane {
  run_id run;
  collectives::run_secret secret{};
  bool encrypted = true;

  /// For one of the run's groups, which `group` names.
  [[nodiscard]] collectives::tcp_options options(std::string_view group) const {
    collectives::tcp_options result;
    result.secret = secret;
    result.encrypted = encrypted;
    result.tag = fmt::format("{}/{}", run, group);
    result.report = [](std::string_view line) {
      std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
    };
    return result;
  }
};

} // namespace troupe::runtime
