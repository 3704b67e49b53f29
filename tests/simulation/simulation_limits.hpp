#pragma once

#include "worker_model.hpp"

#include <chrono>
#include <cstdint>
#include <string>

namespace troupe::simulation {

/// No schedule takes so many turns.
constexpr std::uint64_t most_turns = 60'000;

/// More failures than there are in any schedule.
constexpr std::uint32_t plenty = 1'000'000;

constexpr auto turn_length = std::chrono::milliseconds{10};

/// Of a run that waits only a short time for whoever is silent.
constexpr auto longest_wait = std::chrono::milliseconds{3'000};

/// How long a joiner may take, and the processes of an attempt together.
constexpr auto joiner_limit = std::chrono::milliseconds{4'000};
constexpr auto start_limit = std::chrono::milliseconds{15'000};

/// Nobody has anything to do for so many ticks: nobody ever will.
constexpr std::uint32_t most_idle_ticks = 200;

inline std::string text(std::uint64_t x) {
  return std::to_string(x);
}

inline std::string name_of(const worker_model& x) {
  return "worker " + text(x.id().value);
}

} // namespace troupe::simulation
