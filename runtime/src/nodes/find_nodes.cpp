#include <troupe/runtime/nodes.hpp>

#include "nodes/dns_records.hpp"
#include "process/own_environment.hpp"
#include "process/program_runner.hpp"

#include <troupe/runtime/program.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

constexpr auto script_limit = 10s;

expected<std::vector<named_node>> read_hosts(const std::string& path) {
  auto in = std::ifstream{path};
  const auto text = std::string{std::istreambuf_iterator<char>{in}, {}};
  if (!in)
    return fail(errc::io_error, fmt::format("{}: the host file cannot be read", path));
  return parse_hosts(path, text);
}

/// By a shell: the file may be a script of any language.
expected<std::vector<named_node>> run_script(const std::string& path) {
  TROUPE_TRY(const auto shell, program_file::open("/bin/sh"));
  TROUPE_TRY(auto runner, program_runner::make());
  process_spec spec;
  spec.program_fd = shell.fd();
  spec.program = path;
  spec.argv = {"sh", "-c", R"(exec "$0")", path.find('/') == std::string::npos ? "./" + path : path};
  spec.env = environment_with({});
  TROUPE_TRY(const auto ran, runner.run(spec, {}, script_limit));
  if (ran.how.exit_code != 0)
    return fail(errc::unreachable, fmt::format("{} says no nodes: {}{}{}", path, ran.how.describe(),
                                               ran.err.empty() ? "" : ": ", fmt::join(ran.err, "; ")));
  return parse_hosts(path, fmt::format("{}", fmt::join(ran.out, "\n")));
}

expected<std::vector<named_node>> look_up(const std::string& name) {
  const auto mark = name.rfind(':');
  auto found = expected<std::vector<endpoint>>{};
  if (mark == std::string::npos) {
    found = find_services(name);
  } else {
    TROUPE_TRY(const auto where, parse_endpoint(name));
    found = find_addresses(where);
  }
  if (!found)
    return fail(std::move(found.error()));
  std::vector<named_node> result;
  for (const auto& each : *found)
    result.push_back({to_string(each)});
  return result;
}

} // namespace

expected<std::vector<named_node>> find_nodes(const node_source& source) {
  switch (source.what) {
  case node_source::kind::none:
    break;
  case node_source::kind::hosts_file:
    return read_hosts(source.where);
  case node_source::kind::dns_name:
    return look_up(source.where);
  case node_source::kind::script:
    return run_script(source.where);
  }
  return std::vector<named_node>{};
}

expected<std::vector<std::string>> addresses_of(const cluster_config& cluster) {
  if (!cluster.discover.is_set())
    return cluster.nodes;
  TROUPE_TRY(auto found, find_nodes(cluster.discover));
  std::vector<std::string> result;
  for (auto& each : found)
    result.push_back(std::move(each.address));
  return result;
}

expected<void> complete_nodes(cluster_config& cluster) {
  if (const auto* gone = std::getenv("TROUPE_CLUSTER"); gone != nullptr && *gone != '\0')
    return fail(errc::invalid_argument,
                "the variable TROUPE_CLUSTER has gone: name the nodes themselves in TROUPE_NODES "
                "(HOST:PORT,... or dns:NAME), or a host file in TROUPE_HOSTS");
  if (!cluster.is_embedded())
    return {};
  if (const auto* nodes = std::getenv("TROUPE_NODES"); nodes != nullptr && *nodes != '\0') {
    if (auto named = name_nodes(cluster, nodes); !named)
      return fail(named.error().code, "TROUPE_NODES: " + named.error().message);
  } else if (const auto* hosts = std::getenv("TROUPE_HOSTS"); hosts != nullptr && *hosts != '\0') {
    cluster.discover = {node_source::kind::hosts_file, hosts};
  }
  return {};
}

} // namespace troupe::runtime
