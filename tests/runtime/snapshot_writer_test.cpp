#include "worker/state/snapshot_writer.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <doctest/doctest.h>
#include <hidden_memory.hpp>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <sys/resource.h>

namespace troupe::runtime {

namespace {

/// Two tensors, of which a plan for two gives each rank something.
struct sample {
  std::vector<float> weights = std::vector<float>(5000, 1.0f);
  std::vector<double> momentum = std::vector<double>(3000, 2.0);
  tracked_state state;

  sample() {
    state.track("weights", weights);
    state.track("momentum", momentum);
  }

  checkpoint_part head(step_id step, std::uint32_t rank = 0, std::uint32_t world_size = 1) {
    checkpoint_part result;
    result.generation = {1};
    result.step = step;
    result.attempt = 1;
    result.rank = {rank};
    result.world_size = world_size;
    result.tensors = state.specs();
    return result;
  }

  void begin(snapshot_writer& writer, step_id step, std::uint32_t rank = 0, std::uint32_t world_size = 1) {
    auto part = head(step, rank, world_size);
    auto plan = serialization::plan_chunks(part.tensors, world_size);
    writer.begin(std::move(part), std::move(plan), state);
  }
};

/// A device and a store with gates.
struct fake {
  snapshot_writer::destination destination() {
    return {[this](const staged_part& part, const std::stop_token& stop) -> expected<serialization::part_report> {
              written.emplace_back(part.bytes.begin(), part.bytes.end());
              addresses.push_back(part.bytes.data());
              niceness = ::getpriority(PRIO_PROCESS, 0);
              writing.test_and_set();
              writing.notify_all();
              while (!device_open && !stop.stop_requested())
                std::this_thread::yield();
              if (stop.stop_requested())
                return fail(errc::aborted, "not wanted");
              if (device_error.code != errc::none)
                return fail(device_error);
              return serialization::part_report{part.head.rank.value, "part", part.bytes.size(), {}};
            },
            [this](const checkpoint_part& part) -> expected<checkpoint_outcome> {
              delivered.push_back(part);
              delivering.test_and_set();
              delivering.notify_all();
              while (!store_open)
                std::this_thread::yield();
              if (refusal.code != errc::none)
                return fail(refusal);
              return checkpoint_outcome{part.step, "there", part.reason};
            }};
  }

  std::atomic<bool> device_open{true};
  std::atomic<bool> store_open{true};
  error device_error;
  error refusal;
  std::atomic_flag writing;
  std::atomic_flag delivering;
  int niceness = 0;
  // Read once nothing is in flight.
  std::vector<std::vector<std::byte>> written;
  std::vector<const std::byte*> addresses;
  std::vector<checkpoint_part> delivered;
};

} // namespace

TEST_CASE("what is written is the state when it was copied, whatever becomes of it") {
  fake there;
  there.device_open = false;
  sample state;
  snapshot_writer writer{there.destination(), 1};
  state.begin(writer, {7});
  CHECK(writer.in_flight() == 1);
  state.weights.assign(5000, -1.0f);
  there.device_open = true;
  auto outcome = writer.wait();
  REQUIRE(outcome);
  CHECK(outcome->step.value == 7);
  CHECK(writer.in_flight() == 0);
  CHECK_FALSE(writer.take_lost());
  REQUIRE(there.written.size() == 1);
  REQUIRE(there.written[0].size() == 5000 * 4 + 3000 * 8);
  float first = 0;
  std::memcpy(&first, there.written[0].data(), sizeof(first));
  CHECK(first == 1.0f);
  CHECK(there.niceness >= 10);
}

TEST_CASE("each rank copies its share, and the shares are the whole") {
  sample state;
  for (std::size_t i = 0; i < state.weights.size(); ++i)
    state.weights[i] = static_cast<float>(i);
  std::vector<std::byte> all;
  std::size_t largest = 0;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    fake there;
    snapshot_writer writer{there.destination(), 1};
    state.begin(writer, {7}, rank, 3);
    REQUIRE(writer.wait());
    largest = std::max(largest, there.written[0].size());
    all.insert(all.end(), there.written[0].begin(), there.written[0].end());
  }
  REQUIRE(all.size() == 5000 * 4 + 3000 * 8);
  CHECK(std::memcmp(all.data(), state.weights.data(), 5000 * 4) == 0);
  CHECK(std::memcmp(all.data() + 5000 * 4, state.momentum.data(), 3000 * 8) == 0);
  CHECK(largest <= all.size() / 3 + 2 * 4096);
}

TEST_CASE("copies go into the same pages again") {
  fake there;
  sample state;
  snapshot_writer writer{there.destination(), 1};
  writer.prepare(5000 * 4 + 3000 * 8);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    state.begin(writer, {step});
    REQUIRE(writer.wait());
  }
  CHECK(there.addresses[0] == there.addresses[1]);
  CHECK(there.addresses[1] == there.addresses[2]);
  CHECK(reinterpret_cast<std::uintptr_t>(there.addresses[0]) % 4096 == 0);
}

TEST_CASE("several may be in flight, and are written in order") {
  fake there;
  there.device_open = false;
  sample state;
  snapshot_writer writer{there.destination(), 3};
  for (std::uint64_t step = 1; step <= 3; ++step) {
    state.weights.assign(5000, static_cast<float>(step));
    state.begin(writer, {step});
  }
  CHECK(writer.in_flight() == 3);
  there.device_open = true;
  auto last = writer.wait();
  REQUIRE(last);
  CHECK(last->step.value == 3);
  REQUIRE(there.delivered.size() == 3);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    CHECK(there.delivered[step - 1].step.value == step);
    float first = 0;
    std::memcpy(&first, there.written[step - 1].data(), sizeof(first));
    CHECK(first == static_cast<float>(step));
  }
}

TEST_CASE("what cannot be written is told to the store, which gives it up for all") {
  fake there;
  there.device_error = {errc::io_error, "no space"};
  sample state;
  snapshot_writer writer{there.destination(), 1};
  state.begin(writer, {7});
  auto outcome = writer.wait();
  REQUIRE(outcome);
  CHECK(outcome->reason == there.device_error);
  CHECK_FALSE(writer.take_lost());
}

TEST_CASE("what is abandoned is not told to the store, nobody waits for it, and it counts as lost once") {
  fake there;
  there.device_open = false;
  sample state;
  snapshot_writer writer{there.destination(), 2};
  state.begin(writer, {7});
  there.writing.wait(false);
  // Behind it in the queue.
  state.begin(writer, {8});
  writer.abandon();
  CHECK(writer.wait().error().code == errc::aborted);
  there.device_open = true;
  // The next is none of the old generation's.
  state.begin(writer, {9});
  REQUIRE(writer.wait());
  CHECK(writer.take_lost());
  CHECK_FALSE(writer.take_lost());
  REQUIRE(there.delivered.size() == 1);
  CHECK(there.delivered[0].step.value == 9);
}

TEST_CASE("what the store has been told of is the store's to decide") {
  for (auto refused : {false, true}) {
    fake there;
    there.store_open = false;
    if (refused)
      there.refusal = {errc::stale_generation, "too late"};
    sample state;
    snapshot_writer writer{there.destination(), 1};
    state.begin(writer, {7});
    there.delivering.wait(false);
    writer.abandon();
    there.store_open = true;
    auto outcome = writer.wait();
    CHECK(outcome.has_value() == !refused);
    CHECK(writer.take_lost() == refused);
  }
}

TEST_CASE("a share that is not in host memory is copied through its tensor_memory, into memory that was made ready") {
  fake there;
  sample plain;
  auto hidden = std::make_shared<testing::hidden_memory>(5000 * 4);
  hidden->assign(plain.weights);
  tracked_state state;
  state.track("weights", dtype::f32, {5000}, hidden);
  state.track("momentum", plain.momentum);
  auto begin = [&](snapshot_writer& writer) {
    auto part = plain.head({7});
    auto plan = serialization::plan_chunks(part.tensors, 1);
    writer.begin(std::move(part), std::move(plan), state);
  };
  {
    snapshot_writer writer{there.destination(), 1};
    begin(writer);
    REQUIRE(writer.wait());
    CHECK(hidden->prepared_bytes >= 5000 * 4 + 3000 * 8);
    REQUIRE(there.written.size() == 1);
    CHECK(std::memcmp(there.written[0].data(), plain.weights.data(), 5000 * 4) == 0);
    CHECK(std::memcmp(there.written[0].data() + 5000 * 4, plain.momentum.data(), 3000 * 8) == 0);
    // What cannot be copied is told to the store, and written by nobody.
    hidden->trouble = {errc::io_error, "GPU 0: no such luck"};
    begin(writer);
    REQUIRE(writer.wait());
    CHECK(there.written.size() == 1);
    CHECK(there.delivered.back().reason == hidden->trouble);
  }
  CHECK(hidden->prepared_bytes == 0);
}

} // namespace troupe::runtime
