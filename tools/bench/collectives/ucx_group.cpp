#include "ucx_group.hpp"

#include "transport/communicator.hpp"
#include "transport/first_failure.hpp"
#include "transport/transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <poll.h>
#include <sched.h>
#include <span>
#include <stdexcept>
#include <string>
#include <ucp/api/ucp.h>
#include <utility>
#include <vector>

namespace troupe::bench {

namespace {

using namespace collectives;
using clock = std::chrono::steady_clock;

constexpr std::uint32_t tag_sender_shift = 36;
constexpr auto time_without_sleep = std::chrono::microseconds{50};
/// As Troupe's own.
constexpr std::uint64_t reduced_piece_bytes = 512 << 10;
constexpr auto longest_sleep = std::chrono::milliseconds{100};

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK)
    throw std::runtime_error{fmt::format("UCX, {}: {}", what, ucs_status_string(status))};
}

/// A UCX context with one worker, and endpoints to all other ranks.
class ucx_worker {
 public:
  explicit ucx_worker(rank_link& link) {
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "reading its configuration");
    const auto chosen = ucp_config_modify(config, "TLS", "tcp");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    const auto made = ucp_init(&params, config, &context_);
    ucp_config_release(config);
    check(chosen, "choosing TCP");
    check(made, "making a context");
    ucp_worker_params_t how{};
    how.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    how.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context_, &how, &worker_), "making a worker");
    check(ucp_worker_get_efd(worker_, &wakeup_), "getting its descriptor");
    connect(link);
  }

  ucx_worker(const ucx_worker&) = delete;
  ucx_worker& operator=(const ucx_worker&) = delete;

  ~ucx_worker() {
    close(failure_.is_set() ? UCP_EP_CLOSE_FLAG_FORCE : 0);
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  [[nodiscard]] ucp_worker_h get() const noexcept { return worker_; }
  [[nodiscard]] ucp_ep_h peer(std::uint32_t rank) const noexcept { return peers_[rank]; }
  [[nodiscard]] first_failure& failure() noexcept { return failure_; }

  /// Moves bytes until nothing moves; returns whether something did.
  bool progress() noexcept {
    auto has_moved = false;
    while (ucp_worker_progress(worker_) != 0)
      has_moved = true;
    return has_moved;
  }

  /// Closes all connections: with UCP_EP_CLOSE_FLAG_FORCE, without a word to the peers.
  void close(unsigned flags) noexcept {
    for (auto* peer : std::exchange(peers_, std::vector<ucp_ep_h>(peers_.size())))
      if (peer != nullptr)
        close(peer, flags);
  }

  /// Sleeps until something can move.
  void sleep() noexcept {
    if (ucp_worker_arm(worker_) != UCS_OK)
      return;
    pollfd waits{wakeup_, POLLIN, 0};
    ::poll(&waits, 1, static_cast<int>(longest_sleep.count()));
  }

 private:
  void connect(rank_link& link) {
    ucp_address_t* own = nullptr;
    std::size_t size_bytes = 0;
    check(ucp_worker_get_address(worker_, &own, &size_bytes), "getting its address");
    const auto addresses = link.exchange({reinterpret_cast<const char*>(own), size_bytes});
    ucp_worker_release_address(worker_, own);
    peers_.resize(addresses.size());
    for (std::uint32_t rank = 0; rank < addresses.size(); ++rank) {
      if (rank == link.rank())
        continue;
      ucp_ep_params_t params{};
      params.field_mask =
          UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
      params.address = reinterpret_cast<const ucp_address_t*>(addresses[rank].data());
      params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
      params.err_handler = {&ucx_worker::lose, this};
      check(ucp_ep_create(worker_, &params, &peers_[rank]), "connecting");
    }
  }

  static void lose(void* self, ucp_ep_h, ucs_status_t why) {
    static_cast<ucx_worker*>(self)->failure_.set(
        {errc::unreachable, fmt::format("UCX lost a peer: {}", ucs_status_string(why))});
  }

  void close(ucp_ep_h peer, unsigned flags) noexcept {
    ucp_request_param_t how{};
    how.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    how.flags = flags;
    auto* closing = ucp_ep_close_nbx(peer, &how);
    if (!UCS_PTR_IS_PTR(closing))
      return;
    const auto ends_at = clock::now() + std::chrono::seconds{1};
    while (ucp_request_check_status(closing) == UCS_INPROGRESS && clock::now() < ends_at)
      ucp_worker_progress(worker_);
    ucp_request_free(closing);
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int wakeup_ = -1;
  std::vector<ucp_ep_h> peers_;
  first_failure failure_;
};

class ucx_transport final : public transport {
 public:
  explicit ucx_transport(rank_link& link) : rank_(link.rank()), world_size_(link.size()), worker_(link) {}

  ~ucx_transport() override { give_up(); }

  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return world_size_; }
  std::uint64_t piece_bytes() const noexcept override { return reduced_piece_bytes; }
  flight_record record() const override {
    flight_record result;
    result.transport = "ucx";
    result.rank = rank_id{rank_};
    result.world_size = world_size_;
    return result;
  }
  void set_deadline(std::chrono::milliseconds deadline) noexcept override { deadline_ = deadline; }

  expected<void> begin(const call_record&) override {
    ends_at_ = clock::now() + deadline_;
    return worker_.failure().state();
  }

  ticket send(std::uint32_t peer, std::uint64_t tag, const std::byte* data, std::size_t size_bytes) override {
    const ucp_request_param_t how{};
    if (worker_.failure().is_set())
      return add(nullptr);
    return add(ucp_tag_send_nbx(worker_.peer(peer), data, size_bytes, from(rank_, tag), &how));
  }

  ticket receive(std::uint32_t peer, std::uint64_t tag, std::byte* data, std::size_t size_bytes) override {
    const ucp_request_param_t how{};
    return add(ucp_tag_recv_nbx(worker_.get(), data, size_bytes, from(peer, tag), UINT64_MAX, &how));
  }

  expected<void> wait(ticket message) override {
    auto*& request = messages_[message];
    auto sleeps_at = clock::time_point{};
    while (request != nullptr) {
      if (const auto status = ucp_request_check_status(request); status != UCS_INPROGRESS) {
        if (status != UCS_OK)
          fail_with(status);
        ucp_request_free(std::exchange(request, nullptr));
        break;
      }
      if (worker_.progress()) {
        sleeps_at = {};
        continue;
      }
      if (worker_.failure().is_set())
        break;
      const auto now = clock::now();
      if (now > ends_at_)
        worker_.failure().set({errc::timed_out, fmt::format("rank {}: a message did not come", rank_)});
      if (sleeps_at == clock::time_point{})
        sleeps_at = now + time_without_sleep;
      if (now < sleeps_at)
        ::sched_yield();
      else
        worker_.sleep();
    }
    if (worker_.failure().is_set())
      give_up();
    return worker_.failure().state();
  }

  expected<void> finish() override {
    for (ticket message = 0; message < messages_.size(); ++message)
      TROUPE_TRY(wait(message));
    messages_.clear();
    return worker_.failure().state();
  }

  void abort(error reason) noexcept override {
    worker_.failure().set(std::move(reason));
    ucp_worker_signal(worker_.get());
  }

 private:
  /// UCX does not match senders: the sender takes the place of the size in the tag.
  static std::uint64_t from(std::uint32_t sender, std::uint64_t tag) {
    return (tag & ~tag_size_mask) | std::uint64_t{sender} << tag_sender_shift;
  }

  void fail_with(ucs_status_t why) {
    worker_.failure().set({errc::unreachable, fmt::format("rank {}, over UCX: {}", rank_, ucs_status_string(why))});
  }

  ticket add(ucs_status_ptr_t posted) {
    if (UCS_PTR_IS_ERR(posted))
      fail_with(UCS_PTR_STATUS(posted));
    messages_.push_back(UCS_PTR_IS_PTR(posted) ? posted : nullptr);
    return messages_.size() - 1;
  }

  /// UCX may write to the memory of a message until the connections are closed and the message is complete.
  void give_up() noexcept {
    if (std::ranges::all_of(messages_, [](const auto* x) { return x == nullptr; }))
      return;
    worker_.close(UCP_EP_CLOSE_FLAG_FORCE);
    for (auto*& message : messages_) {
      if (message == nullptr)
        continue;
      if (ucp_request_check_status(message) == UCS_INPROGRESS)
        ucp_request_cancel(worker_.get(), message);
      while (ucp_request_check_status(message) == UCS_INPROGRESS)
        worker_.progress();
      ucp_request_free(std::exchange(message, nullptr));
    }
  }

  const std::uint32_t rank_;
  const std::uint32_t world_size_;
  ucx_worker worker_;
  std::chrono::milliseconds deadline_ = std::chrono::seconds{60};
  clock::time_point ends_at_;
  /// By ticket; null once complete.
  std::vector<void*> messages_;
};

} // namespace

std::unique_ptr<communicator> connect_ucx(rank_link& link) {
  return std::make_unique<transport_communicator>(std::make_unique<ucx_transport>(link), generation_id{1});
}

} // namespace troupe::bench
