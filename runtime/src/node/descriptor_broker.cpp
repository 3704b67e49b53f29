#include <troupe/runtime/descriptor_broker.hpp>

#include <troupe/runtime/descriptor_link.hpp>

#include "node/descriptor_table.hpp"
#include "process/descriptor_packets.hpp"
#include "process/signals_blocked.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace {

/// How long to wait before retrying to send descriptors that the kernel did not accept.
constexpr int congestion_pause_milliseconds = 5;

/// More answers than one exchange and all permitted packets can cause. A worker with more pending ones never reads.
constexpr std::size_t max_waiting_answers = 2 * max_fruitless_packets;

/// The descriptors offered in one exchange, by local rank; open until the last answer is sent.
using shared_descriptors = std::vector<std::vector<unique_fd>>;

/// A packet to be sent to a worker.
struct answer {
  descriptor_group group;
  std::vector<std::byte> bytes;
  /// Owned by `source`, which is null for a refusal.
  std::vector<int> descriptors;
  std::shared_ptr<const shared_descriptors> source;
};

struct connection {
  /// Identifies it in epoll events, which may arrive after the number of its descriptor has been reused.
  std::uint64_t id = 0;
  unique_fd socket;
  /// The descriptors it has offered, until its exchange completes.
  std::vector<unique_fd> held;
  std::deque<answer> outbox;
  std::size_t fruitless_packets = 0;
  bool is_congested = false;
  /// To be removed by `remove_ended`, when no caller holds a reference to it.
  bool is_over = false;
};

struct run_state {
  descriptor_table table;
  std::map<worker_id, connection> workers;
};

answer make_refusal(const descriptor_group& group, const error& reason) {
  answer_packet packet;
  packet.group = group;
  packet.code = reason.code;
  packet.text = reason.message;
  return {group, to_bytes(packet), {}, nullptr};
}

/// The descriptors of all ranks but `receiver`, in as few packets as the limits allow.
std::vector<answer> make_answers(const descriptor_group& group, const std::shared_ptr<const shared_descriptors>& source,
                                 std::size_t receiver) {
  std::vector<answer> result;
  for (std::size_t rank = 0; rank < source->size();) {
    answer_packet packet;
    packet.group = group;
    packet.first_rank = static_cast<std::uint32_t>(rank);
    std::vector<int> descriptors;
    for (; rank < source->size() && packet.counts.size() < max_packet_ranks; ++rank) {
      auto count = rank == receiver ? 0 : (*source)[rank].size();
      if (descriptors.size() + count > max_packet_descriptors)
        break;
      packet.counts.push_back(static_cast<std::uint8_t>(count));
      for (std::size_t i = 0; i < count; ++i)
        descriptors.push_back((*source)[rank][i].get());
    }
    result.push_back({group, to_bytes(packet), std::move(descriptors), source});
  }
  return result;
}

/// Checks a packet on its own.
std::optional<error> flaw(const received_packet& packet, const std::optional<offer_packet>& offer) {
  if (!offer)
    return error{errc::invalid_argument, "the node cannot parse the worker's packet: the worker's program and the "
                                         "node's have different versions"};
  if (packet.out_of_descriptors)
    return error{errc::io_error, "the node has reached its limit on open files: raise it (ulimit -n)"};
  if (offer->count > max_offered_descriptors || offer->count != packet.descriptors.size())
    return error{errc::invalid_argument,
                 fmt::format("the worker announced {} descriptors and sent {}; the numbers must agree, and at most {} "
                             "are accepted",
                             offer->count, packet.descriptors.size(), max_offered_descriptors)};
  return std::nullopt;
}

} // namespace

class descriptor_broker::impl {
 public:
  impl() = default;
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl();

  [[nodiscard]] expected<void> open();
  [[nodiscard]] expected<unique_fd> add(const run_id& run, worker_id worker);
  void remove(const run_id& run, worker_id worker);
  void end_run(const run_id& run);

 private:
  void serve();

  // All functions below are called with the mutex held.
  void handle(const epoll_event& event);
  void receive(run_state& run, worker_id worker, connection& from);
  void accept(run_state& run, worker_id worker, connection& from, received_packet packet);
  void act(run_state& run, worker_id worker, const offer_packet& offer, std::vector<unique_fd> descriptors);
  static void retire_older(run_state& run, const descriptor_group& newest);
  static void deliver(run_state& run, const descriptor_group& group, const std::vector<worker_id>& members);
  void flush(connection& to);
  void flush_all(run_state& run);
  void remove_ended(run_state& run);
  void retry_congested();
  void watch(const connection& x) const;

  unique_fd epoll_;
  unique_fd wake_;

  std::mutex mutex_;
  std::map<run_id, run_state> runs_;
  /// By connection id.
  std::map<std::uint64_t, std::pair<run_id, worker_id>> owners_;
  /// 0 is the wake-up event.
  std::uint64_t last_id_ = 0;
  bool has_congested_ = false;
  bool closing_ = false;

  std::thread thread_;
};

descriptor_broker::impl::~impl() {
  if (!thread_.joinable())
    return;
  {
    auto lock = std::lock_guard{mutex_};
    closing_ = true;
  }
  std::uint64_t one = 1;
  [[maybe_unused]] auto n = write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

expected<void> descriptor_broker::impl::open() {
  constexpr auto what = "cannot start the thread that exchanges descriptors";
  epoll_ = unique_fd{epoll_create1(EPOLL_CLOEXEC)};
  wake_ = unique_fd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (!epoll_ || !wake_ || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0)
    return fail(system_error(what));
  signals_blocked blocked;
  try {
    thread_ = std::thread{[this] { serve(); }};
  } catch (const std::system_error& reason) {
    return fail(errc::io_error, fmt::format("{}: {}; raise the limit on threads (ulimit -u)", what, reason.what()));
  }
  pthread_setname_np(thread_.native_handle(), "descriptors");
  return {};
}

expected<unique_fd> descriptor_broker::impl::add(const run_id& run, worker_id worker) {
  auto what = fmt::format("cannot make a socket for worker {}", worker);
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail(system_error(what));
  connection ours;
  ours.socket.reset(ends[0]);
  unique_fd theirs{ends[1]};

  auto lock = std::lock_guard{mutex_};
  auto& workers = runs_[run].workers;
  if (workers.contains(worker))
    return fail(errc::already_exists, fmt::format("{} of run {}: it already has one", what, run.value));
  ours.id = ++last_id_;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = ours.id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, ours.socket.get(), &event) != 0)
    return fail(system_error(what));
  owners_.emplace(ours.id, std::pair{run, worker});
  workers.emplace(worker, std::move(ours));
  return theirs;
}

void descriptor_broker::impl::remove(const run_id& run, worker_id worker) {
  auto lock = std::lock_guard{mutex_};
  auto found = runs_.find(run);
  if (found == runs_.end())
    return;
  if (auto i = found->second.workers.find(worker); i != found->second.workers.end())
    i->second.is_over = true;
  remove_ended(found->second);
}

void descriptor_broker::impl::end_run(const run_id& run) {
  auto lock = std::lock_guard{mutex_};
  auto found = runs_.find(run);
  if (found == runs_.end())
    return;
  auto refusal = make_refusal({}, {errc::stale_generation, fmt::format("run {} has ended on this node", run.value)});
  for (auto& [worker, x] : found->second.workers) {
    x.outbox.push_back(refusal);
    flush(x);
    x.is_over = true;
  }
  remove_ended(found->second);
  runs_.erase(found);
}

void descriptor_broker::impl::serve() {
  std::array<epoll_event, 64> events{};
  int timeout = -1;
  for (;;) {
    auto n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
    auto lock = std::lock_guard{mutex_};
    if (closing_)
      return;
    for (const auto& event : std::span{events}.first(static_cast<std::size_t>(std::max(n, 0))))
      handle(event);
    retry_congested();
    timeout = has_congested_ ? congestion_pause_milliseconds : -1;
  }
}

void descriptor_broker::impl::handle(const epoll_event& event) {
  auto owner = owners_.find(event.data.u64);
  if (owner == owners_.end())
    return;
  auto worker = owner->second.second;
  auto& run = runs_.at(owner->second.first);
  auto& from = run.workers.at(worker);
  if ((event.events & EPOLLOUT) != 0)
    flush(from);
  if ((event.events & ~std::uint32_t{EPOLLOUT}) != 0)
    receive(run, worker, from);
  remove_ended(run);
}

/// Receives one packet, so that a chatty worker does not hold up the others.
void descriptor_broker::impl::receive(run_state& run, worker_id worker, connection& from) {
  auto packet = receive_packet(from.socket.get());
  switch (packet.what) {
  case received_packet::outcome::packet:
    return accept(run, worker, from, std::move(packet));
  case received_packet::outcome::none:
    return;
  case received_packet::outcome::closed:
  case received_packet::outcome::failed:
    from.is_over = true;
    return;
  }
}

void descriptor_broker::impl::accept(run_state& run, worker_id worker, connection& from, received_packet packet) {
  auto offer = parse_offer(packet.bytes);
  auto wrong = flaw(packet, offer);
  auto has_too_many = ++from.fruitless_packets > max_fruitless_packets;
  if (has_too_many)
    wrong = error{errc::invalid_argument,
                  fmt::format("the worker sent {} packets without completing an exchange: the node closes its socket",
                              from.fruitless_packets)};
  if (wrong)
    from.outbox.push_back(make_refusal(offer ? offer->what.group : descriptor_group{}, *wrong));
  else
    act(run, worker, *offer, std::move(packet.descriptors));
  flush_all(run);
  from.is_over = from.is_over || has_too_many;
}

void descriptor_broker::impl::act(run_state& run, worker_id worker, const offer_packet& offer,
                                  std::vector<unique_fd> descriptors) {
  auto decision = run.table.offer(worker, offer.what);
  if (decision.new_group)
    retire_older(run, offer.what.group);
  for (const auto& refusal : decision.refused) {
    auto& to = run.workers.at(refusal.worker);
    if (!run.table.waits(refusal.worker))
      to.held.clear();
    to.outbox.push_back(make_refusal(refusal.group, refusal.reason));
  }
  if (decision.placed)
    run.workers.at(worker).held = std::move(descriptors);
  if (!decision.complete.empty())
    deliver(run, offer.what.group, decision.complete);
}

/// Replaces unsent answers of an older exchange by refusals. No worker may take that exchange for valid, and a slow
/// reader must not keep its descriptors open.
void descriptor_broker::impl::retire_older(run_state& run, const descriptor_group& newest) {
  error reason{errc::stale_generation, to_string(newest) + " has begun"};
  for (auto& [worker, x] : run.workers) {
    auto first = std::ranges::find_if(x.outbox, [](const answer& each) { return each.source != nullptr; });
    if (first == x.outbox.end())
      continue;
    auto older = first->group;
    std::erase_if(x.outbox, [](const answer& each) { return each.source != nullptr; });
    x.outbox.push_back(make_refusal(older, reason));
  }
}

void descriptor_broker::impl::deliver(run_state& run, const descriptor_group& group,
                                      const std::vector<worker_id>& members) {
  auto all = std::make_shared<shared_descriptors>();
  for (auto worker : members)
    all->push_back(std::exchange(run.workers.at(worker).held, {}));
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    auto& to = run.workers.at(members[rank]);
    to.fruitless_packets = 0;
    for (auto& each : make_answers(group, all, rank))
      to.outbox.push_back(std::move(each));
  }
}

void descriptor_broker::impl::flush_all(run_state& run) {
  for (auto& [worker, x] : run.workers)
    if (!x.outbox.empty())
      flush(x);
}

void descriptor_broker::impl::flush(connection& to) {
  to.is_congested = false;
  auto outcome = send_outcome::sent;
  while (!to.outbox.empty() && outcome == send_outcome::sent) {
    outcome = send_packet(to.socket.get(), to.outbox.front().bytes, to.outbox.front().descriptors);
    if (outcome == send_outcome::sent)
      to.outbox.pop_front();
  }
  switch (outcome) {
  case send_outcome::sent:
  case send_outcome::full:
    break;
  case send_outcome::congested:
    to.is_congested = true;
    has_congested_ = true;
    break;
  case send_outcome::closed:
    // Packets that the worker sent before it closed are still read; the end of the connection comes after them.
    to.outbox.clear();
    break;
  case send_outcome::failed:
    to.is_over = true;
    break;
  }
  if (to.outbox.size() > max_waiting_answers)
    to.is_over = true;
  watch(to);
}

void descriptor_broker::impl::watch(const connection& x) const {
  epoll_event event{};
  event.events = EPOLLIN;
  // A congested socket is writable, so waiting for that would spin.
  if (!x.outbox.empty() && !x.is_congested)
    event.events |= EPOLLOUT;
  event.data.u64 = x.id;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, x.socket.get(), &event);
}

void descriptor_broker::impl::remove_ended(run_state& run) {
  for (auto i = run.workers.begin(); i != run.workers.end();) {
    if (!i->second.is_over) {
      ++i;
      continue;
    }
    run.table.leave(i->first);
    owners_.erase(i->second.id);
    i = run.workers.erase(i);
  }
}

void descriptor_broker::impl::retry_congested() {
  if (!std::exchange(has_congested_, false))
    return;
  for (auto& [id, run] : runs_) {
    for (auto& [worker, x] : run.workers)
      if (x.is_congested)
        flush(x);
    remove_ended(run);
  }
}

descriptor_broker::descriptor_broker(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
descriptor_broker::descriptor_broker(descriptor_broker&&) noexcept = default;
descriptor_broker& descriptor_broker::operator=(descriptor_broker&&) noexcept = default;
descriptor_broker::~descriptor_broker() = default;

expected<descriptor_broker> descriptor_broker::make() {
  auto state = std::make_unique<impl>();
  TROUPE_TRY(state->open());
  return descriptor_broker{std::move(state)};
}

expected<unique_fd> descriptor_broker::add(const run_id& run, worker_id worker) {
  return impl_->add(run, worker);
}

void descriptor_broker::remove(const run_id& run, worker_id worker) {
  impl_->remove(run, worker);
}

void descriptor_broker::end_run(const run_id& run) {
  impl_->end_run(run);
}

} // namespace troupe::runtime
