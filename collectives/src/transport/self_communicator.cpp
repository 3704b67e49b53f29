#include "transport/communicator.hpp"
#include "transport/first_failure.hpp"

#include <troupe/collectives/communicator.hpp>

#include <mutex>
#include <utility>

namespace troupe::collectives {

namespace {

/// No peers: it sends nothing, and can only be aborted.
class self_transport final : public transport {
 public:
  explicit self_transport(generation_id generation) : generation_(generation) {}

  std::uint32_t rank() const noexcept override { return 0; }
  std::uint32_t world_size() const noexcept override { return 1; }

  expected<void> begin(const call_record& call) override {
    {
      const std::lock_guard lock{mutex_};
      call_ = call;
    }
    return finish();
  }
  ticket send(std::uint32_t, std::uint64_t, const std::byte*, std::size_t) override { return 0; }
  ticket receive(std::uint32_t, std::uint64_t, std::byte*, std::size_t) override { return 0; }
  expected<void> wait(ticket) override { return finish(); }

  expected<void> finish() override { return failure_.state(); }

  flight_record record() const override {
    const std::lock_guard lock{mutex_};
    flight_record result;
    result.transport = "self";
    result.world_size = 1;
    result.generation = generation_;
    result.call = call_;
    return result;
  }

  void set_deadline(std::chrono::milliseconds) noexcept override {}

  void abort(error reason) noexcept override { failure_.set(std::move(reason)); }

 private:
  const generation_id generation_;
  first_failure failure_;
  mutable std::mutex mutex_;
  call_record call_;
};

} // namespace

std::unique_ptr<communicator> make_self_communicator(generation_id generation) {
  return std::make_unique<transport_communicator>(std::make_unique<self_transport>(generation), generation);
}

} // namespace troupe::collectives
