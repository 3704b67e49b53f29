#pragma once

#include "driver/kept_processes.hpp"

#include <troupe/actors/handles.hpp>
#include <troupe/app.hpp>

#include <caf/fwd.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace troupe {
struct trainer_config;
}

namespace troupe::runtime {

/// As `troupe::spawn_trainer`. The run has the processes of `kept`, unless that is null.
[[nodiscard]] actors::trainer_actor spawn_trainer_on(caf::actor_system& system, const function& train,
                                                     trainer_config config,
                                                     std::function<void(rank_id, const std::string&)> show_output,
                                                     const std::filesystem::path& worker_path,
                                                     const std::shared_ptr<kept_processes>& kept);

} // namespace troupe::runtime
