#include "nodes/dns_records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <array>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <set>
#include <sys/socket.h>
#include <tuple>

namespace troupe::runtime {

namespace {

/// The longest message of DNS.
constexpr std::size_t most_bytes = 65536;
constexpr int seconds_for_an_answer = 2;
constexpr int attempts = 2;

/// The state of glibc's resolver, for one thread.
class resolver {
 public:
  resolver() : works_(::res_ninit(&state_) == 0) {
    state_.retrans = seconds_for_an_answer;
    state_.retry = attempts;
  }
  resolver(const resolver&) = delete;
  resolver& operator=(const resolver&) = delete;
  ~resolver() {
    if (works_)
      ::res_nclose(&state_);
  }

  [[nodiscard]] bool works() const noexcept { return works_; }

  [[nodiscard]] bool ask_only(const endpoint& server) {
    auto& address = state_.nsaddr_list[0];
    address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(server.port);
    state_.nscount = 1;
    return ::inet_pton(AF_INET, server.host.c_str(), &address.sin_addr) == 1;
  }

  /// The message with the answer. Fails as `find_services` does.
  expected<std::vector<unsigned char>> query(const std::string& name) {
    std::vector<unsigned char> result(most_bytes);
    const auto size =
        ::res_nsearch(&state_, name.c_str(), ns_c_in, ns_t_srv, result.data(), static_cast<int>(most_bytes));
    if (size >= 0) {
      result.resize(static_cast<std::size_t>(size));
      return result;
    }
    if (state_.res_h_errno == HOST_NOT_FOUND || state_.res_h_errno == NO_DATA)
      return fail(errc::not_found, fmt::format("the name {} has no SRV records", name));
    return fail(errc::unreachable, fmt::format("no name server says which SRV records {} has", name));
  }

 private:
  struct __res_state state_ = {};
  bool works_;
};

bool is_less(const endpoint& a, const endpoint& b) {
  return std::tie(a.host, a.port) < std::tie(b.host, b.port);
}

expected<std::vector<endpoint>> sorted(std::vector<endpoint> all) {
  std::ranges::sort(all, is_less);
  const auto twice = std::ranges::unique(all);
  all.erase(twice.begin(), twice.end());
  return all;
}

/// Port, then name, after priority and weight: RFC 2782.
std::optional<endpoint> read_service(const ns_msg& message, const ns_rr& record) {
  constexpr std::size_t fixed_bytes = 6;
  constexpr std::size_t port_at = 4;
  if (ns_rr_type(record) != ns_t_srv || ns_rr_rdlen(record) <= fixed_bytes)
    return std::nullopt;
  const auto* data = ns_rr_rdata(record);
  std::array<char, NS_MAXDNAME> name{};
  if (::ns_name_uncompress(ns_msg_base(message), ns_msg_end(message), data + fixed_bytes, name.data(), name.size()) < 0)
    return std::nullopt;
  const auto port = static_cast<std::uint16_t>(ns_get16(data + port_at));
  const auto host = std::string{name.data()};
  // A root name says that there is no such service.
  return host.empty() || host == "." || port == 0 ? std::nullopt : std::optional{endpoint{host, port}};
}

} // namespace

expected<std::vector<endpoint>> find_services(const std::string& name, const std::optional<endpoint>& server) {
  resolver names;
  if (!names.works() || (server && !names.ask_only(*server)))
    return fail(errc::unreachable, "the system's resolver of names does not work: see /etc/resolv.conf");
  TROUPE_TRY(const auto answer, names.query(name));
  ns_msg message;
  if (::ns_initparse(answer.data(), static_cast<int>(answer.size()), &message) != 0)
    return fail(errc::unreachable, fmt::format("a name server answers nonsense about {}", name));
  std::vector<endpoint> result;
  for (int i = 0; i < ns_msg_count(message, ns_s_an); ++i) {
    ns_rr record;
    if (::ns_parserr(&message, ns_s_an, i, &record) != 0)
      break;
    if (auto found = read_service(message, record))
      result.push_back(std::move(*found));
  }
  if (result.empty())
    return fail(errc::not_found, fmt::format("the name {} has no SRV records", name));
  return sorted(std::move(result));
}

expected<std::vector<endpoint>> find_addresses(const endpoint& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const auto code = ::getaddrinfo(host.host.c_str(), nullptr, &wanted, &found); code != 0)
    return fail(errc::not_found, fmt::format("the name {} has no address ({})", host.host, ::gai_strerror(code)));
  const auto all = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>{found, ::freeaddrinfo};
  const auto is_of_v4 = [](const addrinfo& x) { return x.ai_family == AF_INET; };
  auto has_v4 = false;
  for (const auto* each = found; each != nullptr; each = each->ai_next)
    has_v4 = has_v4 || is_of_v4(*each);
  std::vector<endpoint> result;
  for (const auto* each = found; each != nullptr; each = each->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (is_of_v4(*each) == has_v4 &&
        ::getnameinfo(each->ai_addr, each->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0)
      result.push_back({text.data(), host.port});
  }
  return sorted(std::move(result));
}

} // namespace troupe::runtime
