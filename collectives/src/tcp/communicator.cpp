#include "transport/communicator.hpp"
#include "tcp/address.hpp"
#include "tcp/connect.hpp"
#include "tcp/forming.hpp"
#include "tcp/transport.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <sys/resource.h>
#include <system_error>
#include <utility>

namespace troupe::collectives {

namespace {

expected<void> check_options(const tcp_options& options) {
  if (options.world_size == 0 || options.rank.value >= options.world_size)
    return fail(errc::invalid_argument, fmt::format("{}: a rank must be below the world size", tcp::describe(options)));
  if (options.deadline <= std::chrono::milliseconds{0} || options.connect_deadline <= std::chrono::milliseconds{0})
    return fail(errc::invalid_argument, fmt::format("{}: deadlines must be positive", tcp::describe(options)));
  if (options.ports && (options.ports->first == 0 || options.ports->last < options.ports->first))
    return fail(errc::invalid_argument, fmt::format("{}: the ports from {} to {} are no range", tcp::describe(options),
                                                    options.ports->first, options.ports->last));
  return {};
}

/// What a process opens besides the connections of a group.
constexpr rlim_t other_descriptors = 256;

/// Two connections to each peer must fit into the limit of descriptors, which is raised as far as the system allows.
expected<void> make_room(const tcp_options& options, rlim_t peers) {
  const auto wanted = 2 * peers + other_descriptors;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
    return {};
  const auto allowed = limit.rlim_max;
  limit.rlim_cur = wanted;
  if (allowed >= wanted && ::setrlimit(RLIMIT_NOFILE, &limit) == 0)
    return {};
  return fail(errc::unsatisfiable,
              fmt::format("{}: connections to {} ranks need {} descriptors, and this process may open {}: raise the "
                          "hard limit (ulimit -Hn, LimitNOFILE of the node's service), or use fewer workers",
                          tcp::describe(options), peers, wanted, allowed));
}

expected<tcp::member_addresses> exchange_addresses(const tcp_options& options, const std::vector<bool>& is_peer,
                                                   const tcp::address& own, const address_exchange& exchange) {
  TROUPE_TRY(const auto blobs, exchange(tcp::encode(options, own)));
  if (blobs.size() != options.world_size)
    return fail(errc::mismatch, fmt::format("{}: the exchange returned {} blobs; it must return one for each rank",
                                            tcp::describe(options), blobs.size()));
  tcp::member_addresses result(options.world_size);
  for (std::uint32_t peer = 0; peer < options.world_size; ++peer) {
    TROUPE_TRY(auto at, tcp::decode(options, peer, blobs[peer]));
    if (is_peer[peer])
      result[peer] = at;
  }
  return result;
}

expected<std::unique_ptr<transport>> form(const tcp_options& options, tcp::listener own,
                                          const tcp::member_addresses& members) {
  try {
    TROUPE_TRY(auto peers, tcp::form_group(options, std::move(own), members));
    return std::make_unique<tcp::tcp_transport>(
        tcp::tcp_transport::settings{options.rank.value, options.generation, options.deadline, options.answer_deadline},
        std::move(peers));
  } catch (const exception& x) {
    return fail(x.reason());
  } catch (const std::system_error& x) {
    return fail(errc::unreachable, fmt::format("{}: no thread is left ({}); raise the limit of processes",
                                               tcp::describe(options), x.what()));
  }
}

} // namespace

expected<std::unique_ptr<transport>> connect_tcp(const tcp_options& options, const std::vector<bool>& is_peer,
                                                 const address_exchange& exchange) {
  TROUPE_TRY(check_options(options));
  TROUPE_TRY(make_room(options, static_cast<rlim_t>(std::ranges::count(is_peer, true))));
  TROUPE_TRY(const auto host, tcp::resolve_own_host(options.host));
  TROUPE_TRY(auto own, tcp::listen_at(host, options.ports));
  TROUPE_TRY(const auto members, exchange_addresses(options, is_peer, own.at, exchange));
  return form(options, std::move(own), members);
}

expected<std::unique_ptr<communicator>> make_tcp_communicator(const tcp_options& options,
                                                              const address_exchange& exchange) {
  auto is_peer = std::vector<bool>(options.world_size, true);
  if (options.rank.value < options.world_size)
    is_peer[options.rank.value] = false;
  TROUPE_TRY(auto connected, connect_tcp(options, is_peer, exchange));
  return std::make_unique<transport_communicator>(std::move(connected), options.generation);
}

} // namespace troupe::collectives
