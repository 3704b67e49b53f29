#include "node/launches.hpp"

#include <troupe/actors/decisions/group_layout.hpp>

#include <fmt/format.h>

namespace troupe::actors {

expected<std::vector<launch_request>> make_launches(const start_workers& request, const std::string& secret,
                                                    device_ledger& devices) {
  for (const auto& each : request.workers)
    for (const auto& [name, value] : each.environment)
      if (!group_layout::is_launch_variable(name))
        return fail(errc::invalid_argument,
                    fmt::format("worker {} is to be started with the environment variable {}; a driver sets torchrun's "
                                "only: set it for caf-node",
                                each.worker, name));
  std::vector<launch_request> result;
  for (const auto& each : request.workers) {
    auto taken = devices.take(request.run, each.worker, each.gpus);
    if (!taken) {
      for (const auto& before : result)
        devices.give_back(request.run, before.worker);
      return fail(std::move(taken.error()));
    }
    result.push_back({request.run, each.worker, secret, request.arguments, each.environment, std::move(*taken)});
  }
  return result;
}

std::vector<std::string> names_of_devices(const node_config& config) {
  auto result = config.devices;
  while (result.size() < config.capacity.gpus)
    result.push_back(fmt::to_string(result.size()));
  return result;
}

std::string on_devices(const std::vector<std::string>& devices) {
  auto text = std::string{};
  for (const auto& each : devices)
    text += (text.empty() ? " on GPU " : ", ") + each;
  return text;
}

} // namespace troupe::actors
