#include "transport/communicator.hpp"
#include "gloo/connect.hpp"
#include "gloo/transport.hpp"

#include <troupe/collectives/gloo_communicator.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <fmt/format.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <mutex>
#include <netdb.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace troupe::collectives {

namespace {

using context_ptr = gloo_transport::context_ptr;

using clock = std::chrono::steady_clock;

/// Precedes a rank's addresses in its blob, and starts the greeting on a connection.
struct blob_header {
  std::uint64_t generation = 0;
  std::uint32_t world_size = 0;
  std::uint32_t rank = 0;
  /// The size of each address. The rank's own entry is zeros.
  std::uint32_t address_bytes = 0;
  std::uint32_t magic = 0x676c6f32;

  bool operator==(const blob_header&) const = default;
};

std::string describe(const gloo_options& options) {
  return fmt::format("rank {} of {}, generation {}", options.rank, options.world_size, options.generation);
}

gloo::transport::Pair& pair_of(const context_ptr& context, std::uint32_t peer) {
  return *context->getPair(static_cast<int>(peer));
}

void ignore_broken_pipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL)
    std::signal(SIGPIPE, SIG_IGN);
}

bool can_bind(const addrinfo& address) {
  const auto socket_fd = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (socket_fd < 0)
    return false;
  const auto result = bind(socket_fd, address.ai_addr, address.ai_addrlen) == 0;
  close(socket_fd);
  return result;
}

/// Gloo uses unallocated memory for a name that does not resolve, and leaks some for an address of another host. Check
/// both before it sees them.
expected<void> check_host(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const auto code = getaddrinfo(host.c_str(), nullptr, &hints, &found); code != 0)
    return fail(errc::unreachable,
                fmt::format("host '{}' does not resolve ({}); set this host's name or address in the trusted network",
                            host, gai_strerror(code)));
  auto is_ours = false;
  for (const auto* x = found; x != nullptr && !is_ours; x = x->ai_next)
    is_ours = can_bind(*x);
  freeaddrinfo(found);
  if (is_ours)
    return {};
  return fail(
      errc::unreachable,
      fmt::format("host '{}' is not an address of this machine; set its own name or address in the trusted network",
                  host));
}

expected<void> check_options(const gloo_options& options) {
  if (options.world_size == 0 || options.rank.value >= options.world_size)
    return fail(errc::invalid_argument, fmt::format("{}: a rank must be below the world size", describe(options)));
  if (options.deadline <= std::chrono::milliseconds{0} || options.connect_deadline <= std::chrono::milliseconds{0})
    return fail(errc::invalid_argument, fmt::format("{}: deadlines must be positive", describe(options)));
  return check_host(options.host);
}

/// One listening pair per peer, each in its own context.
struct open_ports {
  gloo_transport::device_ptr device;
  std::vector<context_ptr> contexts;
};

expected<open_ports> make_ports(const gloo_options& options, const std::vector<bool>& is_peer) {
  open_ports result;
  auto& [device, contexts] = result;
  contexts.resize(options.world_size);
  try {
    device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr{options.host.c_str()});
    for (std::uint32_t peer = 0; peer < options.world_size; ++peer) {
      if (!is_peer[peer])
        continue;
      contexts[peer] =
          device->createContext(static_cast<int>(options.rank.value), static_cast<int>(options.world_size));
      contexts[peer]->setTimeout(options.connect_deadline);
      contexts[peer]->createPair(static_cast<int>(peer));
    }
  } catch (const std::exception& e) {
    return fail(errc::unreachable, fmt::format("{} cannot open ports on '{}': {}; set an address of this host",
                                               describe(options), options.host, e.what()));
  }
  return result;
}

std::string make_blob(const gloo_options& options, const std::vector<context_ptr>& contexts) {
  std::vector<std::vector<char>> addresses(contexts.size());
  auto header = blob_header{options.generation.value, options.world_size, options.rank.value};
  for (std::uint32_t peer = 0; peer < contexts.size(); ++peer) {
    if (contexts[peer])
      addresses[peer] = pair_of(contexts[peer], peer).address().bytes();
    header.address_bytes = std::max(header.address_bytes, static_cast<std::uint32_t>(addresses[peer].size()));
  }
  std::string blob(sizeof(header), '\0');
  std::memcpy(blob.data(), &header, sizeof(header));
  for (auto& address : addresses) {
    address.resize(header.address_bytes);
    blob.append(address.begin(), address.end());
  }
  return blob;
}

/// Reads the address at which `peer` listens for this rank.
expected<std::vector<char>> read_blob(const gloo_options& options, std::uint32_t peer, const std::string& mine,
                                      const std::string& theirs) {
  blob_header header, expected_header;
  std::memcpy(&expected_header, mine.data(), sizeof(expected_header));
  expected_header.rank = peer;
  if (theirs.size() == mine.size())
    std::memcpy(&header, theirs.data(), sizeof(header));
  if (theirs.size() != mine.size() || header != expected_header)
    return fail(errc::mismatch, fmt::format("{}: the blob of rank {} is not from this generation and group; exchange "
                                            "among exactly its members, in rank order",
                                            describe(options), peer));
  const auto first = sizeof(header) + std::size_t{header.address_bytes} * options.rank.value;
  return std::vector<char>(theirs.begin() + static_cast<std::ptrdiff_t>(first),
                           theirs.begin() + static_cast<std::ptrdiff_t>(first + header.address_bytes));
}

/// Larger than the tag of any call.
constexpr std::uint64_t greeting_tag = UINT64_MAX - 1;

/// Ends a connection, or the wait for one, with a FIN, as Gloo does when a wait times out. `Pair::close` would send a
/// reset. Gloo's thread asks a connection it has just accepted for the peer's name; after a reset there is none, and
/// the exception terminates that healthy process.
void close_softly(const context_ptr& context) noexcept {
  try {
    context->createUnboundBuffer(nullptr, 0)->waitRecv(nullptr, std::chrono::milliseconds{0});
  } catch (const std::exception&) {
    return;
  }
}

/// Connects to all peers in parallel, so that the slowest one counts and not the sum. The first failure, and a
/// cancellation, stop the others. The two sides of a connection greet each other. After that, the peer's Gloo has
/// accepted the connection and a reset is harmless.
class connector {
 public:
  connector(const gloo_options& options, const std::vector<context_ptr>& contexts)
      : options_(options), contexts_(contexts), ends_at_(clock::now() + options.connect_deadline) {}

  expected<void> run(const std::vector<std::vector<char>>& addresses) {
    const std::stop_callback on_cancel{options_.cancelled, [this] { cancel(); }};
    std::vector<std::thread> threads;
    for (std::uint32_t peer = 0; peer < contexts_.size(); ++peer)
      if (contexts_[peer])
        threads.emplace_back([this, &addresses, peer] { connect(peer, addresses[peer]); });
    for (auto& x : threads)
      x.join();
    if (first_failure_.code == errc::none)
      return {};
    return fail(std::move(first_failure_));
  }

 private:
  void connect(std::uint32_t peer, const std::vector<char>& address) {
    try {
      pair_of(contexts_[peer], peer).connect(address);
      greet(peer);
    } catch (const std::exception& e) {
      stop({errc::unreachable,
            fmt::format("{} did not connect to rank {}: {}; it may have ended, or a firewall blocks the connection",
                        describe(options_), peer, e.what())});
    }
  }

  void greet(std::uint32_t peer) {
    auto mine = blob_header{options_.generation.value, options_.world_size, options_.rank.value};
    auto theirs = blob_header{};
    const auto rank = static_cast<int>(peer);
    const auto receipt = contexts_[peer]->createUnboundBuffer(&theirs, sizeof(theirs));
    const auto greeting = contexts_[peer]->createUnboundBuffer(&mine, sizeof(mine));
    receipt->recv(rank, greeting_tag);
    greeting->send(rank, greeting_tag);
    receipt->waitRecv(time_left());
    greeting->waitSend(time_left());
    mine.rank = peer;
    if (theirs != mine)
      stop({errc::mismatch, fmt::format("{}: the process that connected as rank {} is rank {} of {}, generation {}; "
                                        "form the group again, and keep other processes from its ports",
                                        describe(options_), peer, theirs.rank, theirs.world_size, theirs.generation)});
  }

  std::chrono::milliseconds time_left() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(ends_at_ - clock::now());
    return std::max(left, std::chrono::milliseconds{0});
  }

  void cancel() { stop({errc::aborted, fmt::format("{}: cancelled while connecting", describe(options_))}); }

  void stop(error reason) {
    {
      const std::lock_guard lock{mutex_};
      if (first_failure_.code != errc::none)
        return;
      first_failure_ = std::move(reason);
    }
    for (std::uint32_t peer = 0; peer < contexts_.size(); ++peer)
      if (contexts_[peer])
        close_softly(contexts_[peer]);
  }

  const gloo_options& options_;
  const std::vector<context_ptr>& contexts_;
  const clock::time_point ends_at_;
  std::mutex mutex_;
  error first_failure_;
};

expected<std::vector<std::vector<char>>> exchange_addresses(const gloo_options& options,
                                                            const std::vector<context_ptr>& contexts,
                                                            const address_exchange& exchange) {
  const auto mine = make_blob(options, contexts);
  TROUPE_TRY(auto blobs, exchange(mine));
  if (blobs.size() != options.world_size)
    return fail(errc::mismatch, fmt::format("{}: the exchange returned {} blobs; it must return one for each rank",
                                            describe(options), blobs.size()));
  std::vector<std::vector<char>> result(options.world_size);
  for (std::uint32_t peer = 0; peer < options.world_size; ++peer) {
    TROUPE_TRY(auto address, read_blob(options, peer, mine, blobs[peer]));
    result[peer] = std::move(address);
  }
  return result;
}

} // namespace

expected<std::unique_ptr<transport>> connect_gloo(const gloo_options& options, const std::vector<bool>& is_peer,
                                                  const address_exchange& exchange) {
  TROUPE_TRY(check_options(options));
  ignore_broken_pipes();
  TROUPE_TRY(auto ports, make_ports(options, is_peer));
  auto& [device, contexts] = ports;
  TROUPE_TRY(const auto addresses, exchange_addresses(options, contexts, exchange));
  TROUPE_TRY((connector{options, contexts}.run(addresses)));
  return std::make_unique<gloo_transport>(options.rank.value, options.generation, options.deadline, std::move(device),
                                          std::move(contexts));
}

expected<std::unique_ptr<communicator>> make_gloo_communicator(gloo_options options, const address_exchange& exchange) {
  auto is_peer = std::vector<bool>(options.world_size, true);
  if (options.rank.value < options.world_size)
    is_peer[options.rank.value] = false;
  TROUPE_TRY(auto connected, connect_gloo(options, is_peer, exchange));
  return std::make_unique<transport_communicator>(std::move(connected), options.generation);
}

} // namespace troupe::collectives
