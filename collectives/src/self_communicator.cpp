#include "transport_communicator.hpp"

#include <troupe/collectives/communicator.hpp>

#include <mutex>
#include <utility>

namespace troupe::collectives {

namespace {

/// No peers: there is nothing to send, only to abort.
class self_transport final : public transport {
 public:
  std::uint32_t rank() const noexcept override { return 0; }
  std::uint32_t world_size() const noexcept override { return 1; }

  expected<void> begin(const operation&) override { return state(); }
  ticket send(std::uint32_t, std::uint64_t, const std::byte*, std::size_t) override { return 0; }
  ticket receive(std::uint32_t, std::uint64_t, std::byte*, std::size_t) override { return 0; }
  expected<void> wait(ticket) override { return state(); }
  expected<void> finish() override { return state(); }

  void abort(error reason) noexcept override {
    const std::lock_guard lock{mutex_};
    if (failure_.code == errc::none)
      failure_ = std::move(reason);
  }

 private:
  expected<void> state() {
    const std::lock_guard lock{mutex_};
    if (failure_.code == errc::none)
      return {};
    return fail(failure_);
  }

  std::mutex mutex_;
  error failure_;
};

} // namespace

std::unique_ptr<communicator> make_self_communicator(generation_id generation) {
  return std::make_unique<transport_communicator>(std::make_unique<self_transport>(), generation);
}

} // namespace troupe::collectives
