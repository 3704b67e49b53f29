#include "rank_group.hpp"
#include "tcp/connect.hpp"
#include "transport/communicator.hpp"
#include "transport/message_reducer.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::collectives {

namespace {

using namespace std::chrono_literals;
using testing::rendezvous;

/// TCP over loopback that claims to be longer.
class long_transport final : public transport {
 public:
  long_transport(std::unique_ptr<transport> inner, std::chrono::nanoseconds latency)
      : inner_(std::move(inner)), latency_(latency) {}

  std::uint32_t rank() const noexcept override { return inner_->rank(); }
  std::uint32_t world_size() const noexcept override { return inner_->world_size(); }
  std::chrono::nanoseconds latency() const noexcept override { return latency_; }
  flight_record record() const override { return inner_->record(); }
  void set_deadline(std::chrono::milliseconds deadline) noexcept override { inner_->set_deadline(deadline); }
  expected<void> begin(const call_record& call) override { return inner_->begin(call); }
  ticket send(std::uint32_t peer, std::uint64_t tag, const std::byte* data, std::size_t size_bytes) override {
    return inner_->send(peer, tag, data, size_bytes);
  }
  ticket receive(std::uint32_t peer, std::uint64_t tag, std::byte* data, std::size_t size_bytes) override {
    return inner_->receive(peer, tag, data, size_bytes);
  }
  expected<void> wait(ticket message) override { return inner_->wait(message); }
  expected<void> finish() override { return inner_->finish(); }
  void abort(error reason) noexcept override { inner_->abort(std::move(reason)); }

 private:
  std::unique_ptr<transport> inner_;
  std::chrono::nanoseconds latency_;
};

/// What a rank of a group sent, and what it got.
struct outcome {
  std::uint64_t messages_of_first_barrier = 0;
  std::uint64_t messages_of_second = 0;
  std::uint64_t messages_of_sum = 0;
  std::uint64_t messages_of_longer = 0;
  std::uint64_t messages_of_longest = 0;
  std::vector<std::uint64_t> words;
  std::vector<float> sum;
  std::vector<float> longer;
  std::vector<float> longest;
};

/// Two barriers and three sums. Only rank 1 has measured the latency.
outcome call(std::unique_ptr<transport> inner, std::chrono::nanoseconds latency) {
  const auto rank = inner->rank();
  transport_communicator group{std::make_unique<long_transport>(std::move(inner), rank == 1 ? latency : 0ns),
                               generation_id{1}};
  outcome result;
  auto messages_since = [&, before = std::uint64_t{0}]() mutable {
    return group.sent().sent_messages - std::exchange(before, group.sent().sent_messages);
  };
  CHECK(group.barrier());
  result.messages_of_first_barrier = messages_since();
  result.words = {rank, 100 - rank};
  CHECK(group.barrier(result.words));
  result.messages_of_second = messages_since();
  for (std::uint32_t i = 0; i < 16'000; ++i)
    result.longest.push_back(1.0f / static_cast<float>(rank + i + 1));
  result.longer.assign(result.longest.begin(), result.longest.begin() + 8'000);
  result.sum.assign(result.longest.begin(), result.longest.begin() + 900);
  CHECK(group.all_reduce(std::span{result.sum}));
  result.messages_of_sum = messages_since();
  CHECK(group.all_reduce(std::span{result.longer}));
  result.messages_of_longer = messages_since();
  CHECK(group.all_reduce(std::span{result.longest}));
  result.messages_of_longest = messages_since();
  return result;
}

std::vector<outcome> run(std::uint32_t size, std::chrono::nanoseconds latency) {
  rendezvous<std::string> addresses{size};
  std::vector<outcome> results(size);
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      tcp_options place;
      place.rank = rank_id{rank};
      place.world_size = size;
      place.generation = generation_id{1};
      place.deadline = 120s;
      std::vector<bool> is_peer(size, true);
      is_peer[rank] = false;
      auto connected = connect_tcp(place, is_peer, [&](std::string mine) {
        return expected<std::vector<std::string>>{addresses.exchange(rank, std::move(mine))};
      });
      results[rank] = call(value_or_throw(std::move(connected)), latency);
    });
  for (auto& each : ranks)
    each.join();
  return results;
}

} // namespace

TEST_CASE("one round of all with all is for short messages over long distances") {
  CHECK_FALSE(prefers_one_round(8, 16, 0ns));
  CHECK_FALSE(prefers_one_round(8, 16, 15us));
  CHECK(prefers_one_round(8, 16, 100us));
  CHECK(prefers_one_round(64, 16, 1ms));
  CHECK_FALSE(prefers_one_round(64, 16, 100us));
  CHECK_FALSE(prefers_one_round(1'024, 16, 1ms));
  CHECK(prefers_one_round(4, 4'096, 1ms));
  CHECK_FALSE(prefers_one_round(4, 4'097, 1s));
  // Two ranks need one round anyway.
  CHECK_FALSE(prefers_one_round(2, 16, 1s));
  CHECK_FALSE(prefers_one_round(1, 16, 1s));
}

TEST_CASE("all ranks choose the rounds by the longest latency that one of them has measured, with the same bits") {
  for (std::uint32_t size : {4u, 5u, 8u}) {
    CAPTURE(size);
    const auto rounds = size == 4 ? 2u : 3u;
    const auto here = run(size, 1us);
    const auto far = run(size, 10ms);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      CHECK(here[rank].messages_of_first_barrier == rounds);
      CHECK(here[rank].messages_of_second == rounds);
      CHECK(here[rank].messages_of_sum <= rounds + 1);
      // They know it after the first.
      CHECK(far[rank].messages_of_first_barrier == rounds);
      CHECK(far[rank].messages_of_second == size - 1);
      CHECK(far[rank].messages_of_sum == size - 1);
      CHECK(far[rank].words == std::vector<std::uint64_t>{size - 1, 100});
      CHECK(far[rank].words == here[rank].words);
      CHECK(far[rank].sum == here[rank].sum);
      // The longer one in two phases.
      CHECK(here[rank].messages_of_longer <= rounds + 1);
      CHECK(far[rank].messages_of_longer == 2 * (size - 1));
      CHECK(far[rank].longer == here[rank].longer);
      // 64,000 bytes, which 8 ranks that are near each other halve and double.
      CHECK(far[rank].messages_of_longest == 2 * (size - 1));
      if (size == 8)
        CHECK(here[rank].messages_of_longest == 6);
      CHECK(far[rank].longest == here[rank].longest);
    }
  }
}

} // namespace troupe::collectives
