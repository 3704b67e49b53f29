#pragma once

#include "node/local_launcher.hpp"

#include <troupe/actors/trainer.hpp>
#include <troupe/app.hpp>
#include <troupe/error.hpp>
#include <troupe/runtime/keys.hpp>

#include <caf/fwd.hpp>

#include <memory>
#include <optional>
#include <string>

namespace troupe::runtime {

/// Starts a node inside the driver, with a port of its own: the same code path as any other node. It starts processes
/// of `program`, or, with `in_process`, runs that function on threads of this process.
[[nodiscard]] expected<std::unique_ptr<actors::connected_node>>
start_own_node(caf::actor_system& system, const std::optional<tls_files>& keys, const std::string& program,
               const std::optional<function>& in_process);

} // namespace troupe::runtime
