#pragma once

#include <troupe/actors/decisions/run_end.hpp>
#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace troupe::actors {

/// What a run is to do next. It outlasts the attempts of the run.
struct run_course {
  enum class request : std::uint8_t {
    none,
    pause,
    /// A stop was commanded: no generation is held any more, and nobody joins.
    stop,
  };

  /// How many workers are wanted.
  std::uint32_t workers = 1;
  request asked = request::none;
  /// Known once a training function has returned: the others are about to.
  std::optional<run_end> end;

  [[nodiscard]] bool is_ending() const noexcept { return asked == request::stop || end; }
};

/// What an attempt is doing. Each alternative carries what means something then, and nothing else.
namespace attempt_phase {

/// Not all processes have joined.
struct starting {};

/// All members were told to come to the next boundary between steps, and to report there.
struct regroup_request {
  std::string cause;
  /// The number of the checkpoint command that has to be agreed on before all leave.
  std::optional<std::uint64_t> checkpoint;
};

struct training {
  std::optional<regroup_request> asked;
};

/// A generation has ended, and the next is not formed yet.
struct regrouping {
  enum class group : std::uint8_t {
    /// Its members come to a boundary by themselves.
    intact,
    /// Its collective operations were made to fail.
    aborted,
  };
  enum class loss : std::uint8_t {
    explained,
    /// A worker found its group gone. The loss behind that is yet to be reported, and is the same failure.
    unexplained,
  };
  enum class forming : std::uint8_t {
    open,
    /// All have reported, and the run is paused or has too few workers.
    held,
  };
  /// Members wait at a boundary for joiners that are about to come there.
  struct follower_wait {
    /// Set by the first tick.
    std::optional<run_time> since;
  };

  std::string cause;
  std::optional<std::uint64_t> checkpoint;
  loss reported = loss::explained;
  group before = group::intact;
  forming next = forming::open;
  std::optional<follower_wait> waits;
};

/// Nobody is left who has the state: the run starts again from its latest checkpoint.
struct lost {
  std::string why;
};

/// What the members report cannot be.
struct contradicted {
  worker_id worker;
  error reason;
};

/// All that had the state have returned.
struct completed {};

} // namespace attempt_phase

using any_attempt_phase = std::variant<attempt_phase::starting, attempt_phase::training, attempt_phase::regrouping,
                                       attempt_phase::lost, attempt_phase::contradicted, attempt_phase::completed>;

} // namespace troupe::actors
