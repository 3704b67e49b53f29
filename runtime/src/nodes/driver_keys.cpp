#include "nodes/driver_keys.hpp"

#include "net/host_name.hpp"

#include <troupe/runtime/node_host.hpp>

#include <filesystem>
#include <utility>

namespace troupe::runtime {

namespace {

std::filesystem::path directory_of(const cluster_config& cluster) {
  return cluster.keys.empty() ? default_key_directory() : cluster.keys;
}

} // namespace

expected<std::optional<tls_files>> keys_towards(const endpoint& where, const cluster_config& cluster) {
  if (cluster.insecure)
    return std::nullopt;
  auto keys = is_loopback(where.host)
                  ? loopback_keys(directory_of(cluster))
                  : cluster_keys(directory_of(cluster), local_host_name(), certificate_role::driver);
  if (!keys)
    return fail(std::move(keys.error()));
  return std::optional{std::move(*keys)};
}

expected<tls_files> keys_for(const cluster_config& cluster) {
  const auto directory = directory_of(cluster);
  for (const auto& text : cluster.nodes)
    if (auto where = parse_endpoint(text); where && !is_loopback(where->host))
      return cluster_keys(directory, local_host_name(), certificate_role::driver);
  if (cluster.discover.is_set())
    if (auto keys = cluster_keys(directory, local_host_name(), certificate_role::driver))
      return keys;
  return loopback_keys(directory);
}

} // namespace troupe::runtime
