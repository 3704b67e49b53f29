#include "nodes.hpp"

#include "cluster_options.hpp"
#include "nodes/list.hpp"

#include <troupe/config.hpp>
#include <troupe/runtime/nodes.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::tool {

namespace {

using namespace std::chrono_literals;

constexpr auto exit_codes =
    "Exit codes: 0 success, 1 no node answers, or the one that is meant does not, 2 wrong usage.";

struct nodes_arguments {
  cluster_config cluster;
  std::string node;
  std::uint32_t patience_s = 600;
  bool waits = false;
  bool json = false;
};

int complain(const char* command, const error& reason, int code = 1) {
  fmt::print(stderr, "troupe {}: {}\n", command, reason.message);
  return code;
}

/// The cluster's nodes, and what they say.
expected<std::vector<runtime::asked_node>> ask_all(const cluster_config& cluster) {
  TROUPE_TRY(const auto addresses, runtime::addresses_of(cluster));
  return runtime::ask_nodes(addresses, cluster);
}

int list_nodes(nodes_arguments& given) {
  if (const auto complete = complete_cluster(given.cluster); !complete)
    return complain("nodes", complete.error(), 2);
  const auto nodes = ask_all(given.cluster);
  if (!nodes)
    return complain("nodes", nodes.error());
  fmt::print("{}", given.json ? json_of(*nodes) : table_of(*nodes));
  auto answering = 0;
  for (const auto& each : *nodes)
    if (each.report)
      ++answering;
    else
      fmt::print(stderr, "{}: {}\n", each.address, each.report.error().message);
  return answering > 0 ? 0 : 1;
}

/// The address of the node that is meant. An address needs no list of nodes.
expected<std::string> address_of(nodes_arguments& given) {
  if (const auto where = parse_endpoint(given.node); where && where->port != 0)
    return given.node;
  TROUPE_TRY(complete_cluster(given.cluster));
  TROUPE_TRY(const auto nodes, ask_all(given.cluster));
  return find_node(nodes, given.node);
}

std::string workers_text(std::uint32_t count) {
  return count == 1 ? "1 worker" : fmt::format("{} workers", count);
}

/// Asks until the node has no worker any more.
int await_drained(const std::string& address, const nodes_arguments& given) {
  for (auto last = ~0U;; std::this_thread::sleep_for(500ms)) {
    const auto now = runtime::drain(address, std::chrono::seconds{given.patience_s}, given.cluster);
    if (!now)
      return complain("drain", now.error());
    const auto workers = runtime::workers_of(*now);
    if (workers == 0)
      break;
    if (std::exchange(last, workers) != workers)
      fmt::print(stderr, "{} still has {}\n", address, workers_text(workers));
  }
  fmt::print("{} is drained: it has no workers, and takes none until `troupe resume {}`\n", address, address);
  return 0;
}

int drain_node(nodes_arguments& given) {
  const auto address = address_of(given);
  if (!address)
    return complain("drain", address.error());
  const auto now = runtime::drain(*address, std::chrono::seconds{given.patience_s}, given.cluster);
  if (!now)
    return complain("drain", now.error());
  if (given.waits)
    return await_drained(*address, given);
  const auto workers = runtime::workers_of(*now);
  fmt::print("{} takes no new workers{}\n", *address,
             workers == 0 ? ""
                          : fmt::format("; its {} are replaced on other nodes, or leave within {} s. `troupe nodes` "
                                        "shows how far that is",
                                        workers_text(workers), given.patience_s));
  return 0;
}

int resume_node(nodes_arguments& given) {
  const auto address = address_of(given);
  if (!address)
    return complain("resume", address.error());
  const auto now = runtime::resume(*address, given.cluster);
  if (!now)
    return complain("resume", now.error());
  fmt::print("{} takes workers again\n", *address);
  return 0;
}

} // namespace

void add_nodes(CLI::App& app, command& chosen) {
  // Shared with the callbacks, because the options write to it.
  auto given = std::make_shared<nodes_arguments>();
  const auto add = [&](const char* name, const char* description, int (*run)(nodes_arguments&)) {
    auto* added = app.add_subcommand(name, description);
    add_cluster_options(*added, given->cluster);
    added->footer(exit_codes);
    added->callback([given, run, &chosen] { chosen = [given, run] { return run(*given); }; });
    return added;
  };
  add("nodes", "List nodes: what they offer, who uses them, when their certificates expire", list_nodes)
      ->add_flag("--json", given->json, "Print one JSON document, for scripts");
  auto* drains = add("drain",
                     "Have a node take no new workers: runs replace those that it has on other nodes, between steps; "
                     "its caf-node goes on, until `troupe resume` or its next start",
                     drain_node);
  drains->add_option("NODE", given->node, "Its HOST:PORT, or its host if there is one node on it")->required();
  drains->add_option("--patience", given->patience_s, "Seconds after which workers leave that could not be replaced")
      ->check(CLI::Range(0U, 7U * 24 * 3600))
      ->capture_default_str();
  drains->add_flag("--wait", given->waits, "Return once it has no workers");
  add("resume", "Have a drained node take workers again", resume_node)
      ->add_option("NODE", given->node, "Its HOST:PORT, or its host if there is one node on it")
      ->required();
}

} // namespace troupe::tool
