#pragma once

#include <troupe/actors/handles.hpp>
#include <troupe/app.hpp>
#include <troupe/config.hpp>

#include <caf/fwd.hpp>

#include <filesystem>
#include <functional>
#include <string>

/// Troupe inside a larger actor system: the host program has its own `main`, configuration and type-id block, and the
/// trainer is one of its actors.
///
///     int main(int argc, char** argv) {
///       auto train = troupe::function{"train", body};
///       troupe::run_if_worker({train});
///       troupe::init_meta_objects();                  // beside the host's own
///       my_config config;
///       troupe::value_or_throw(troupe::prepare(config, cluster));
///       caf::actor_system system{config};
///       auto trainer = troupe::spawn_trainer(system, train, trainer_config);
namespace troupe {

/// Registers Troupe's messages and actor handles, and those of CAF's modules. Once, before the first actor system.
void init_meta_objects();

/// Gives an actor system what Troupe's connections need, before it is made: CAF's I/O module, and the keys for
/// `cluster`. Without nodes in `cluster`, connections of the system do not end for silence (CAF ends them after 30 s),
/// so that a debugger may hold a worker. Changes nothing else. Fails with `errc::not_authenticated` or
/// `errc::not_found`.
[[nodiscard]] expected<void> prepare(caf::actor_system_config& config, const cluster_config& cluster);

/// Spawns a trainer in a prepared system. Give `train` to `run_if_worker`, too. The workers' output goes to
/// `show_output`, or to standard error. The workers run the program at `worker_path`, or this one if that is empty.
/// Throws `exception` if the program cannot be opened.
[[nodiscard]] actors::trainer_actor
spawn_trainer(caf::actor_system& system, const function& train, trainer_config config,
              std::function<void(rank_id, const std::string& line)> show_output = {},
              const std::filesystem::path& worker_path = {});

} // namespace troupe
