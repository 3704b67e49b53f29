#include "device_cases.hpp"
#include "fake_device.hpp"
#include "hang_cases.hpp"
#include "rank_group.hpp"

#include <troupe/collectives/staged_device_group.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

/// All ranks share one device.
std::shared_ptr<fake_device> shared_device() {
  return std::make_shared<fake_device>(fake_device::options{.seed = 9});
}

void check_bits(swept_transport kind, std::uint32_t world_size, const std::shared_ptr<device>& where,
                const device_case& x) {
  INFO(to_string(kind), ", ranks ", world_size, ", shards ", x.shards, ", bytes ", x.layout.size_bytes());
  const auto wanted = reference_root(x.layout, x.shards, x.divisor);
  const auto results = group_of(kind, world_size).run([&](communicator& host) {
    auto group = value_or_throw(make_staged_device_group(where, host));
    return reduce_on_device(*group, x);
  });
  for (const auto& found : results)
    CHECK(found == wanted);
}

} // namespace

TEST_CASE("ranks that share a device give the bits of the plain recursive sum, over every communicator of the host") {
  std::mt19937 random{23};
  const auto where = shared_device();
  for (const auto& layout : device_layouts())
    for (auto kind : all_transports)
      for (std::uint32_t world_size : {2u, 3u, 4u}) {
        check_bits(kind, world_size, where, {layout, 13, random_ownership(13, world_size, random), 1, 8192, 2});
        check_bits(kind, world_size, where, {layout, 8, even_ownership(8, world_size), 3, UINT64_MAX, 1});
      }
}

TEST_CASE("results that the device cannot read in place are copied up in chunks") {
  const auto where = shared_device();
  where->pins_read_only = false;
  // More than two chunks; by as many threads as there are processors for each rank.
  for (std::uint32_t world_size : {1u, 2u})
    check_bits(swept_transport::shm, world_size, where,
               {bucket_layout{{{dtype::f32, 6'700'001}}}, 2, even_ownership(2, world_size)});
  CHECK(where->refused_pins > 0);
}

TEST_CASE("results for devices are read in place even if the driver pins only writable memory") {
  const auto where = shared_device();
  where->pins_read_only = false;
  const device_case x{bucket_layout{{{dtype::f32, 100'001}, {dtype::bf16, 3000}}}, 8, even_ownership(8, 3), 3, 65536};
  for (auto kind : all_transports) {
    INFO(to_string(kind));
    rank_group hosts{kind, 3, std::chrono::seconds{120}, generation_id{1}, {}, true};
    const auto wanted = reference_root(x.layout, x.shards, x.divisor);
    for (const auto& found : hosts.run([&](communicator& host) {
           auto group = value_or_throw(make_staged_device_group(where, host));
           return reduce_on_device(*group, x);
         }))
      CHECK(found == wanted);
  }
  CHECK(where->refused_pins == 0);
}

TEST_CASE("the fast mode stages, too") {
  const auto where = shared_device();
  for (const auto& layout : device_layouts()) {
    const auto wanted = reference_fast(layout, 3);
    const auto results = group_of(swept_transport::shm, 3).run([&](communicator& host) {
      auto group = value_or_throw(make_staged_device_group(where, host));
      CHECK(group->name() == "staged (shm)");
      return reduce_fast_on_device(*group, layout);
    });
    for (const auto& found : results)
      CHECK(found == wanted);
  }
}

TEST_CASE("an abort ends the waits for a missing rank, and the host's group with them") {
  const auto where = shared_device();
  rank_group hosts{swept_transport::shm, 2};
  const bucket_layout layout{{{dtype::f32, 40000}}};
  auto group = value_or_throw(make_staged_device_group(where, hosts[0]));
  auto ready = value_or_throw(device_event::make(where));
  auto bucket = value_or_throw(group->make_bucket(layout));
  auto memory = value_or_throw(group->allocate(layout.size_bytes()));
  value_or_throw(group->all_reduce_fast(layout, memory.bytes(), *bucket, ready));
  group->abort({errc::aborted, "worker 1 is lost"});
  const auto done = group->finish();
  REQUIRE(!done);
  CHECK(done.error() == error{errc::aborted, "worker 1 is lost"});
  CHECK(hosts[0].barrier().error() == error{errc::aborted, "worker 1 is lost"});
}

TEST_CASE("waiting for the own GPU is distinguished from waiting for peers") {
  rank_group hosts{swept_transport::shm, 2};
  check_who_is_waited_for(*value_or_throw(make_staged_device_group(shared_device(), hosts[0])));
}

TEST_CASE("with the host's group, too, a device whose copies hang ends the process") {
  const auto where = shared_device();
  std::vector<std::unique_ptr<rank_group>> hosts;
  check_hanging_device(where, begins_on::callers_thread, [&](hang_policy on_hang) {
    hosts.push_back(std::make_unique<rank_group>(swept_transport::shm, 2));
    return value_or_throw(make_staged_device_group(where, (*hosts.back())[0], std::move(on_hang)));
  });
}

TEST_CASE("an error of the host's group names call and rank of the device group") {
  const auto where = shared_device();
  rank_group hosts{swept_transport::shm, 2};
  const bucket_layout layout{{{dtype::f32, 40000}}};
  auto group = value_or_throw(make_staged_device_group(where, hosts[0]));
  auto ready = value_or_throw(device_event::make(where));
  auto bucket = value_or_throw(group->make_bucket(layout));
  auto memory = value_or_throw(group->allocate(layout.size_bytes()));
  value_or_throw(group->all_reduce_fast(layout, memory.bytes(), *bucket, ready));
  hosts.leave(1);
  const auto done = group->finish();
  REQUIRE(!done);
  INFO(done.error().message);
  CHECK(done.error().code == errc::aborted);
  CHECK(done.error().message.find("rank 0 of 2") != std::string::npos);
  CHECK(done.error().message.find("all_reduce_fast #1") != std::string::npos);
}
