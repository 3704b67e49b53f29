#include "links.hpp"

#include "shell.hpp"

#include <fmt/format.h>

#include <unistd.h>

namespace troupe::chaos {

namespace {

constexpr const char* driver_address = "10.77.0.1/24";

} // namespace

std::unique_ptr<private_network> private_network::make(std::size_t nodes, std::string& reason) {
  auto result = std::unique_ptr<private_network>{new private_network{fmt::format("troupe-chaos-{}-", ::getpid())}};
  auto works = [&reason](const std::vector<std::string>& argv) {
    auto complaint = complaint_of(argv);
    if (complaint)
      reason = *complaint;
    return !complaint;
  };
  auto add_space = [&](const std::string& name) {
    if (!works({"ip", "netns", "add", name}))
      return false;
    result->spaces_.push_back(name);
    return works({"ip", "-n", name, "link", "set", "lo", "up"});
  };
  const auto hub = result->hub();
  if (!add_space(hub) || !works({"ip", "-n", hub, "link", "add", "hub", "type", "bridge"}) ||
      !works({"ip", "-n", hub, "addr", "add", driver_address, "dev", "hub"}) ||
      !works({"ip", "-n", hub, "link", "set", "hub", "up"}))
    return nullptr;
  for (std::size_t node = 0; node < nodes; ++node) {
    auto space = result->space_of(node);
    auto link = link_of(node);
    if (!add_space(space) ||
        !works({"ip", "-n", hub, "link", "add", link, "type", "veth", "peer", "name", "up0", "netns", space}) ||
        !works({"ip", "-n", hub, "link", "set", link, "master", "hub", "up"}) ||
        !works({"ip", "-n", space, "addr", "add", address_of(node) + "/24", "dev", "up0"}) ||
        !works({"ip", "-n", space, "link", "set", "up0", "up"}))
      return nullptr;
  }
  return result;
}

private_network::~private_network() {
  for (const auto& space : spaces_)
    (void)complaint_of({"ip", "netns", "del", space});
}

std::vector<std::string> private_network::at_driver() const {
  return {"ip", "netns", "exec", hub()};
}

std::vector<std::string> private_network::at_node(std::size_t node) const {
  return {"ip", "netns", "exec", space_of(node)};
}

std::string private_network::address_of(std::size_t node) {
  return fmt::format("10.77.0.{}", node + 2);
}

void private_network::cut(std::size_t node) const {
  (void)complaint_of({"ip", "-n", hub(), "link", "set", link_of(node), "down"});
}

void private_network::mend(std::size_t node) const {
  (void)complaint_of({"ip", "-n", hub(), "link", "set", link_of(node), "up"});
}

void private_network::cut_control(std::size_t node) const {
  (void)complaint_of({"ip", "-n", hub(), "route", "add", "blackhole", address_of(node) + "/32"});
}

void private_network::mend_control(std::size_t node) const {
  (void)complaint_of({"ip", "-n", hub(), "route", "del", "blackhole", address_of(node) + "/32"});
}

void private_network::cut_data(std::size_t node) const {
  route_around("add", node);
}

void private_network::mend_data(std::size_t node) const {
  route_around("del", node);
}

void private_network::route_around(const char* verb, std::size_t node) const {
  for (std::size_t other = 0; other + 1 < spaces_.size(); ++other)
    if (other != node)
      (void)complaint_of({"ip", "-n", space_of(node), "route", verb, "blackhole", address_of(other) + "/32"});
}

void private_network::reset(std::size_t node) const {
  auto argv = at_driver();
  argv.insert(argv.end(), {"ss", "-K", "dst", address_of(node)});
  (void)complaint_of(argv);
}

} // namespace troupe::chaos
