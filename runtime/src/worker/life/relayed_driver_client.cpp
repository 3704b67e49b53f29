#include "worker/life/relayed_driver_client.hpp"

#include <troupe/actors/error_conversion.hpp>
#include <troupe/runtime/descriptor_link.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <caf/all.hpp>

#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

/// `driver_client` over CAF. Each calling thread has an actor of its own to wait with.
class relayed_driver_client : public driver_client {
 public:
  relayed_driver_client(caf::actor_system& system, actors::driver_relay driver, worker_id worker,
                        collectives::unique_fd descriptors, part_stream_secret secret)
      : training_(system),
        staging_(system),
        metrics_(system),
        snapshots_(system),
        leaving_(system),
        last_copy_(system),
        driver_(std::move(driver)),
        descriptors_(std::move(descriptors)),
        worker_(worker),
        secret_(std::move(secret)) {}

  expected<exchange_result> exchange(const exchange_request& message) override {
    return ask<exchange_result>(training_, message);
  }

  expected<exchange_result> exchange_staging(const exchange_request& message) override {
    return ask<exchange_result>(staging_, message);
  }

  void end(const exchange_ended& message) override { caf::anon_send(driver_, message); }

  expected<std::vector<std::vector<collectives::unique_fd>>>
  exchange_descriptors(const descriptor_offer& place, std::span<const int> mine,
                       const std::stop_token& cancelled) override {
    return descriptors_.exchange(place, mine, descriptor_limit, cancelled);
  }

  expected<plan_accepted> agree(const run_plan& plan) override { return ask<plan_accepted>(training_, plan); }

  expected<next_generation> regroup(const regroup_report& report) override {
    return ask<next_generation>(training_, report);
  }

  void tell(const caught_up& message) override { training_->send(driver_, message); }

  expected<checkpoint_outcome> deliver(const checkpoint_part& part) override {
    return ask<checkpoint_outcome>(snapshots_, part);
  }

  expected<checkpoint_outcome> deliver_last(const checkpoint_part& part) override {
    return ask<checkpoint_outcome>(last_copy_, part);
  }

  expected<storage_view> probe(const storage_probe& message) override { return ask<storage_view>(training_, message); }

  expected<std::shared_ptr<part_stream>> open_part_stream(const std::string& address) override {
    TROUPE_TRY(auto where, parse_endpoint(address));
    return std::make_shared<part_stream>(secret_, worker_, std::move(where));
  }

  /// A derived key, not the run's secret itself, so that one protocol reveals nothing of use in another.
  collectives::run_secret group_secret() const override {
    const auto label = "troupe data plane of run " + secret_.run.value;
    return serialization::hmac_sha256(std::as_bytes(std::span{secret_.secret}), std::as_bytes(std::span{label}));
  }

  expected<exit_granted> request_exit(const exit_request& message) override {
    return ask<exit_granted>(leaving_, message);
  }

  void withdraw(const exit_withdrawn& message) override { caf::anon_send(driver_, message); }

  expected<void> push(const metrics_batch& batch) override {
    expected<void> result;
    metrics_->request(driver_, caf::infinite, batch)
        .receive([] {}, [&](const caf::error& reason) { result = fail(actors::from_caf(reason)); });
    return result;
  }

  void finish(const worker_finished& message) override { training_->send(driver_, message); }

 private:
  /// Waiting for other ranks or the driver has no limit of its own: a plan waits for the slowest to load its data, and
  /// a lost node, or a driver that is not back in time, ends this process.
  static constexpr auto descriptor_limit = 60s;

  template <class Result, class Message>
  expected<Result> ask(caf::scoped_actor& self, const Message& message) {
    expected<Result> result = fail(errc::internal, "no answer");
    self->request(driver_, caf::infinite, message)
        .receive([&](Result& value) { result = std::move(value); },
                 [&](const caf::error& reason) { result = fail(actors::from_caf(reason)); });
    return result;
  }

  caf::scoped_actor training_;
  caf::scoped_actor staging_;
  caf::scoped_actor metrics_;
  caf::scoped_actor snapshots_;
  caf::scoped_actor leaving_;
  caf::scoped_actor last_copy_;
  actors::driver_relay driver_;
  descriptor_link descriptors_;
  worker_id worker_;
  part_stream_secret secret_;
};

} // namespace

std::unique_ptr<driver_client> make_relayed_driver_client(caf::actor_system& system, actors::driver_relay driver,
                                                          worker_id worker, collectives::unique_fd descriptors,
                                                          part_stream_secret secret) {
  return std::make_unique<relayed_driver_client>(system, std::move(driver), worker, std::move(descriptors),
                                                 std::move(secret));
}

} // namespace troupe::runtime
