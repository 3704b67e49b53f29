#include "device_cases.hpp"
#include "fake_device.hpp"
#include "hang_cases.hpp"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

TEST_CASE("alone on a device: the bits of the plain recursive sum, for every number of shards") {
  const auto where = std::make_shared<fake_device>(fake_device::options{.seed = 5});
  auto group = value_or_throw(make_self_device_group(where, generation_id{1}));
  for (const auto& layout : device_layouts())
    for (std::uint32_t shards : {1u, 2u, 3u, 8u, 13u, 32u})
      for (std::uint64_t divisor : {1u, 3u}) {
        INFO("bytes ", layout.size_bytes(), ", shards ", shards, ", divided by ", divisor);
        const auto found = reduce_on_device(*group, {layout, shards, {{0, shards}}, divisor, 8192});
        CHECK(found == reference_root(layout, shards, divisor));
      }
}

TEST_CASE("skipped shards count as zeros") {
  const auto where = std::make_shared<fake_device>(fake_device::options{.seed = 6});
  auto stream = value_or_throw(device_stream::make(where));
  const bucket_layout layout{{{dtype::f32, 100}}};
  auto sums = value_or_throw(device_leaf_accumulator::make(where, layout, 4));
  sums.begin({0, 4});
  value_or_throw(sums.end(stream));
  value_or_throw(stream.synchronize());
  REQUIRE(sums.partials().size() == 1);
  CHECK(download(where, {sums.partials()[0].data, layout.size_bytes()}) == std::vector<std::byte>(layout.size_bytes()));
}

TEST_CASE("an accumulator in device memory rejects what one on the host rejects") {
  const auto where = std::make_shared<fake_device>();
  auto stream = value_or_throw(device_stream::make(where));
  CHECK(device_leaf_accumulator::make(where, bucket_layout{{{dtype::i16, 4}}}, 2).error().code ==
        errc::invalid_argument);
  CHECK(device_leaf_accumulator::make(where, bucket_layout{{{dtype::f32, 4}}}, 0).error().code ==
        errc::invalid_argument);
  auto sums = value_or_throw(device_leaf_accumulator::make(where, bucket_layout{{{dtype::f32, 64}}}, 4));
  CHECK_THROWS_AS(sums.begin({2, 5}), std::logic_error);
  sums.begin({1, 3});
  CHECK_THROWS_AS(static_cast<void>(sums.next(shard_id{3}, stream)), std::logic_error);
  CHECK_THROWS_AS(static_cast<void>(sums.finish({0, 64}, stream)), std::logic_error);
  value_or_throw(sums.close(stream));
  value_or_throw(sums.finish({0, 64}, stream));
  CHECK_THROWS_AS(static_cast<void>(sums.finish({0, 64}, stream)), std::logic_error);
  CHECK_THROWS_AS(static_cast<void>(sums.next(shard_id{2}, stream)), std::logic_error);
  value_or_throw(stream.synchronize());
}

TEST_CASE("an out-of-memory error has the requested and the free bytes") {
  const auto where = std::make_shared<fake_device>(fake_device::options{.total_bytes = 1000});
  auto group = value_or_throw(make_self_device_group(where, generation_id{1}));
  const auto result = group->make_bucket(bucket_layout{{{dtype::f32, 1024}}});
  REQUIRE(!result);
  CHECK(result.error().code == errc::unsatisfiable);
  CHECK(result.error().message.find("4096 bytes were asked for and 1000 are free") != std::string::npos);
}

TEST_CASE("after an abort every call returns its reason, and inconsistent arguments harm nothing") {
  const auto where = std::make_shared<fake_device>();
  auto group = value_or_throw(make_self_device_group(where, generation_id{3}));
  const bucket_layout layout{{{dtype::f32, 64}}};
  auto ready = value_or_throw(device_event::make(where));
  auto bucket = value_or_throw(group->make_bucket(layout));
  CHECK(group->reduce_leaves(layout, 2, std::vector<shard_range>{{0, 2}}, {}, *bucket, ready).error().code ==
        errc::invalid_argument);
  CHECK(group->reduce_leaves(layout, 2, std::vector<shard_range>{{0, 1}, {1, 2}}, {}, *bucket, ready).error().code ==
        errc::invalid_argument);
  CHECK(group->all_reduce_fast(layout, bucket->bytes(), *bucket, ready, 0).error().code == errc::invalid_argument);
  CHECK(group->finish());
  CHECK(reduce_on_device(*group, {layout, 2, {{0, 2}}}) == reference_root(layout, 2));
  group->abort({errc::stale_generation, "over"});
  group->abort({errc::timed_out, "later"});
  CHECK(group->finish().error() == error{errc::stale_generation, "over"});
  CHECK(group->all_reduce_fast(layout, bucket->bytes(), *bucket, ready).error().message == "over");
}

TEST_CASE("a device that hangs ends the process, unless it continues while the permit is awaited") {
  const auto where = std::make_shared<fake_device>();
  check_hanging_device(where, begins_on::own_thread, [&](hang_policy on_hang) {
    return value_or_throw(make_self_device_group(where, generation_id{1}, std::move(on_hang)));
  });
}

TEST_CASE("a build or a machine without a GPU reports that") {
  const auto found = find_devices();
  if (found && !found->empty())
    return; // device_gpu_test has the rest
  const auto opened = open_device(0);
  REQUIRE(!opened);
  INFO(opened.error().message);
  CHECK(opened.error().code == errc::unsatisfiable);
  if (!found)
    CHECK(opened.error().message == found.error().message);
  CHECK(opened.error().message.find("use_gpu") != std::string::npos);
}
