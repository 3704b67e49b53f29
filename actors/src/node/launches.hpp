#pragma once

#include <troupe/actors/decisions/device_ledger.hpp>
#include <troupe/actors/node.hpp>
#include <troupe/actors/process_launcher.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>

#include <string>
#include <vector>

namespace troupe::actors {

/// One launch request per worker, with GPUs from the ledger; takes none if it fails. Fails with `errc::unsatisfiable`
/// if there are too few, and with `errc::invalid_argument` for environment variables other than torchrun's: the dynamic
/// linker and the shell obey some, and a driver may start only the programs of this node.
[[nodiscard]] expected<std::vector<launch_request>> make_launches(const start_workers& request,
                                                                  const std::string& secret, device_ledger& devices);

/// The names of a node's GPUs: as configured, then their numbers.
[[nodiscard]] std::vector<std::string> names_of_devices(const node_config& config);

/// " on GPU 0, 1"; empty without.
[[nodiscard]] std::string on_devices(const std::vector<std::string>& devices);

} // namespace troupe::actors
