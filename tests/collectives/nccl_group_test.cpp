#include "device_cases.hpp"
#include "fake_nccl.hpp"
#include "hang_cases.hpp"
#include "nccl/group.hpp"
#include "rank_group.hpp"

#include <doctest/doctest.h>
#include <latch>
#include <thread>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

/// Ranks as threads, each with its own fake device, over the fake library.
class nccl_ranks {
 public:
  using options_function = std::function<void(std::uint32_t rank, nccl_options&)>;

  explicit nccl_ranks(std::uint32_t world_size, const options_function& adjust = {}, int version = 22809,
                      std::uint64_t generation = 1)
      : library_(fake_nccl::table(version)), errors(world_size), groups(world_size), devices(world_size) {
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      devices[rank] =
          std::make_shared<fake_device>(fake_device::options{.seed = rank + 1, .uuid = "GPU-" + std::to_string(rank)});
    form(adjust, generation);
  }

  ~nccl_ranks() {
    in_threads([this](std::uint32_t rank) { groups[rank].reset(); });
  }

  void form(const options_function& adjust, std::uint64_t generation) {
    rendezvous<std::string> first{size()};
    rendezvous<std::string> second{size()};
    in_threads([&](std::uint32_t rank) {
      int calls = 0;
      nccl_options options;
      options.rank = rank_id{rank};
      options.world_size = size();
      options.generation = generation_id{generation};
      options.deadline = std::chrono::seconds{120};
      if (adjust)
        adjust(rank, options);
      auto made = make_nccl_group(library_, devices[rank], std::move(options),
                                  [&](std::string mine) -> expected<std::vector<std::string>> {
                                    return (calls++ == 0 ? first : second).exchange(rank, std::move(mine));
                                  });
      if (made)
        groups[rank] = std::move(*made);
      else
        errors[rank] = made.error();
    });
  }

  template <class F>
  auto run(F f) {
    std::vector<decltype(f(*groups[0]))> results(size());
    in_threads([&](std::uint32_t rank) { results[rank] = f(*groups[rank]); });
    return results;
  }

  void in_threads(const std::function<void(std::uint32_t)>& f) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < size(); ++rank)
      threads.emplace_back(f, rank);
    for (auto& x : threads)
      x.join();
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(groups.size()); }

 private:
  std::shared_ptr<const nccl::library> library_;

 public:
  std::vector<error> errors;
  std::vector<std::unique_ptr<device_group>> groups;
  std::vector<std::shared_ptr<device>> devices;
  /// Kept until the groups are gone: where a real process would end, this one continues and NCCL may still use them.
  std::vector<std::pair<device_memory, std::unique_ptr<device_bucket>>> in_use;
};

void check_bits(nccl_ranks& ranks, const device_case& x) {
  INFO("ranks ", ranks.size(), ", shards ", x.shards, ", bytes ", x.layout.size_bytes());
  const auto wanted = reference_root(x.layout, x.shards, x.divisor);
  for (const auto& found : ranks.run([&](device_group& group) { return reduce_on_device(group, x); }))
    CHECK(found == wanted);
}

/// All peers of rank `lost` start a reduction that it does not join.
std::vector<error> reduce_without(nccl_ranks& ranks, std::uint32_t lost, const error& reason) {
  const bucket_layout layout{{{dtype::f32, 40000}}};
  std::vector<error> result(ranks.size());
  ranks.in_use.resize(ranks.size());
  ranks.in_threads([&](std::uint32_t rank) {
    if (rank == lost)
      return;
    auto& group = *ranks.groups[rank];
    auto ready = value_or_throw(device_event::make(group.where()));
    auto bucket = value_or_throw(group.make_bucket(layout));
    auto memory = value_or_throw(group.allocate(layout.size_bytes()));
    value_or_throw(group.all_reduce_fast(layout, memory.bytes(), *bucket, ready));
    std::thread control{[&] { group.abort(reason); }};
    if (auto done = group.finish(); !done)
      result[rank] = done.error();
    control.join();
    ranks.in_use[rank] = {std::move(memory), std::move(bucket)};
  });
  return result;
}

} // namespace

TEST_CASE("every world size and ownership gives the bits of the plain recursive sum, by slices between devices") {
  std::mt19937 random{3};
  const auto layouts = device_layouts();
  for (std::uint32_t world_size : {1u, 2u, 3u, 8u}) {
    nccl_ranks ranks{world_size};
    for (const auto& x : ranks.errors)
      REQUIRE(x == error{});
    // Each pause of a fake stream waits for a core where there are few.
    for (std::size_t i = world_size % 2; i < layouts.size(); i += 2) {
      const std::uint32_t shards = i % 2 == 0 ? 16 : 13;
      check_bits(ranks, {layouts[i], shards, even_ownership(shards, world_size), 1 + i % 3, 16384, 1});
      check_bits(ranks, {layouts[i], shards, random_ownership(shards, world_size, random), 1, UINT64_MAX, 1});
    }
  }
  CHECK(fake_nccl::violations == 0);
  CHECK(fake_nccl::living == 0);
}

TEST_CASE("the fast mode sums one contribution for each rank by the library") {
  for (std::uint32_t world_size : {1u, 2u, 3u}) {
    nccl_ranks ranks{world_size};
    for (const auto& layout : device_layouts()) {
      INFO("ranks ", world_size, ", bytes ", layout.size_bytes());
      const auto wanted = reference_fast(layout, world_size);
      for (const auto& found : ranks.run([&](device_group& group) { return reduce_fast_on_device(group, layout); }))
        CHECK(found == wanted);
    }
  }
  CHECK(fake_nccl::violations == 0);
}

TEST_CASE("buffers are registered once per communicator, and outlive it") {
  const auto before = fake_nccl::registrations.load();
  nccl_ranks ranks{2};
  const bucket_layout layout{{{dtype::f32, 30000}}};
  std::vector<device_memory> memory(2);
  std::vector<std::unique_ptr<device_bucket>> buckets(2);
  const auto reduce = [&](std::uint32_t rank) {
    auto& group = *ranks.groups[rank];
    auto ready = value_or_throw(device_event::make(group.where()));
    if (!buckets[rank]) {
      memory[rank] = value_or_throw(group.allocate(layout.size_bytes()));
      buckets[rank] = value_or_throw(group.make_bucket(layout));
      std::fill_n(memory[rank].address(), layout.size_bytes(), std::byte{0});
    }
    for (int step = 0; step < 3; ++step) {
      value_or_throw(group.all_reduce_fast(layout, memory[rank].bytes(), *buckets[rank], ready));
      value_or_throw(group.finish());
    }
  };
  ranks.in_threads(reduce);
  CHECK(fake_nccl::registrations - before == 4);
  ranks.in_threads([&](std::uint32_t rank) { ranks.groups[rank].reset(); });
  ranks.form({}, 2);
  ranks.in_threads(reduce);
  CHECK(fake_nccl::registrations - before == 8);
  CHECK(fake_nccl::violations == 0);
}

TEST_CASE("a library without registration, shrinking and revoking works too") {
  nccl_ranks ranks{3, {}, 21400};
  check_bits(ranks, {bucket_layout{{{dtype::bf16, 20000}}}, 8, even_ownership(8, 3)});
}

TEST_CASE("an abort ends the waits for a lost rank, and the group continues without it: shrunk, or from a new id") {
  struct variant {
    const char* what;
    int version;
    bool fails;
    int shrunk;
  };
  for (const auto& x :
       {variant{"2.28.9", 22809, false, 3}, variant{"2.28.9, shrinking fails on one rank", 22809, true, 2},
        variant{"2.28.3, which cannot revoke", 22803, false, 0}}) {
    INFO(x.what);
    nccl_ranks ranks{4, {}, x.version};
    check_bits(ranks, {bucket_layout{{{dtype::f32, 9000}}}, 8, even_ownership(8, 4)});
    const auto seen = reduce_without(ranks, 1, {errc::aborted, "worker 1 is lost"});
    for (std::uint32_t rank : {0u, 2u, 3u})
      CHECK(seen[rank] == error{errc::aborted, "worker 1 is lost"});
    const auto shrunk_before = fake_nccl::shrunk.load();
    fake_nccl::shrink_fails = x.fails;
    std::vector<std::unique_ptr<device_group>> old;
    for (std::uint32_t rank : {0u, 2u, 3u})
      old.push_back(std::move(ranks.groups[rank]));
    ranks.groups.resize(3);
    for (auto& group : ranks.groups)
      group.reset();
    ranks.devices.erase(ranks.devices.begin() + 1);
    ranks.errors.resize(3);
    ranks.form(
        [&](std::uint32_t rank, nccl_options& options) {
          options.predecessor = std::move(old[rank]);
          if (x.fails)
            options.shrink_deadline = std::chrono::milliseconds{300};
        },
        2);
    for (const auto& each : ranks.errors)
      REQUIRE(each == error{});
    CHECK(fake_nccl::shrunk - shrunk_before == x.shrunk);
    check_bits(ranks, {bucket_layout{{{dtype::f32, 9000}}}, 8, even_ownership(8, 3)});
    fake_nccl::shrink_fails = false;
  }
  CHECK(fake_nccl::violations == 0);
}

TEST_CASE("after a rank leaves in good order the others can shrink the group") {
  nccl_ranks ranks{3};
  check_bits(ranks, {bucket_layout{{{dtype::f32, 9000}}}, 8, even_ownership(8, 3), 1, UINT64_MAX, 1});
  const auto shrunk_before = fake_nccl::shrunk.load();
  std::vector<std::unique_ptr<device_group>> old;
  for (std::uint32_t rank : {0u, 1u})
    old.push_back(std::move(ranks.groups[rank]));
  const auto leaving = std::move(ranks.groups[2]);
  ranks.groups.resize(2);
  ranks.form([&](std::uint32_t rank, nccl_options& options) { options.predecessor = std::move(old[rank]); }, 2);
  for (std::uint32_t rank : {0u, 1u})
    REQUIRE(ranks.errors[rank] == error{});
  CHECK(fake_nccl::shrunk - shrunk_before == 2);
  check_bits(ranks, {bucket_layout{{{dtype::f32, 9000}}}, 8, even_ownership(8, 2), 1, UINT64_MAX, 1});
}

TEST_CASE("a joiner requires a new id") {
  nccl_ranks ranks{3};
  reduce_without(ranks, 2, {errc::aborted, "lost"});
  const auto shrunk_before = fake_nccl::shrunk.load();
  ranks.groups[2].reset();
  ranks.form(
      [&](std::uint32_t rank, nccl_options& options) {
        if (rank != 2)
          options.predecessor = std::move(ranks.groups[rank]);
      },
      2);
  for (const auto& x : ranks.errors)
    REQUIRE(x == error{});
  CHECK(fake_nccl::shrunk == shrunk_before);
  check_bits(ranks, {bucket_layout{{{dtype::f64, 3000}}}, 8, even_ownership(8, 3)});
}

TEST_CASE("a group whose revocation does not end is aborted, and not polled any more") {
  {
    nccl_ranks ranks{2, [](std::uint32_t, nccl_options& options) {
                       options.on_hang.abort_deadline = std::chrono::milliseconds{20};
                     }};
    fake_nccl::never_revoked = true;
    const auto seen = reduce_without(ranks, 1, {errc::aborted, "lost"});
    CHECK(seen[0] == error{errc::aborted, "lost"});
    fake_nccl::never_revoked = false;
  }
  CHECK(fake_nccl::violations == 0);
  CHECK(fake_nccl::living == 0);
}

TEST_CASE(
    "if NCCL never returns, the process requests a permit, copies the state out if it is the last holder, and ends") {
  hang_diary of[3];
  {
    nccl_ranks ranks{3, [&](std::uint32_t rank, nccl_options& options) {
                       options.on_hang = of[rank].policy([rank] { return hang_policy::permit{rank != 0}; });
                       if (rank == 2)
                         options.on_hang.copy_out = {};
                     }};
    fake_nccl::hangs = true;
    reduce_without(ranks, 3, {errc::aborted, "lost"});
    of[0].wait_for(2);
    of[1].wait_for(3);
    of[2].wait_for(2);
    // A real process would have ended; here its threads may.
    fake_nccl::hangs = false;
  }
  const auto ends_with = [](const std::vector<std::string>& steps, const std::string& text) {
    INFO(steps.back());
    CHECK(steps.back().starts_with("end: "));
    CHECK(steps.back().ends_with(text));
  };
  REQUIRE(of[0].steps().size() == 2);
  CHECK(of[0].steps()[0] == "leave");
  ends_with(of[0].steps(), "other processes have the state: this process may end");
  REQUIRE(of[1].steps().size() == 3);
  CHECK(of[1].steps()[1] == "copy");
  ends_with(of[1].steps(), "the state is copied out");
  // A missing `copy_out` counts as no copy.
  REQUIRE(of[2].steps().size() == 2);
  ends_with(of[2].steps(), "the steps since the last checkpoint are lost");
  CHECK(fake_nccl::violations == 0);
}

TEST_CASE("an abort that returns late spares the process, which then needs no permit") {
  hang_diary diary;
  std::latch is_over{1};
  {
    nccl_ranks ranks{2, [&](std::uint32_t rank, nccl_options& options) {
                       if (rank == 0)
                         options.on_hang = diary.policy([&is_over]() -> expected<hang_policy::permit> {
                           fake_nccl::hangs = false;
                           is_over.wait();
                           return fail(errc::aborted, "the question was withdrawn");
                         });
                     }};
    fake_nccl::hangs = true;
    const auto seen = reduce_without(ranks, 1, {errc::aborted, "lost"});
    CHECK(seen[0] == error{errc::aborted, "lost"});
    CHECK(diary.steps() == std::vector<std::string>{"leave", "withdraw"});
    is_over.count_down();
  }
  CHECK(fake_nccl::violations == 0);
}

TEST_CASE("an error names the failed NCCL call") {
  nccl_ranks ranks{2};
  const bucket_layout layout{{{dtype::f32, 100}}};
  auto& group = *ranks.groups[0];
  auto ready = value_or_throw(device_event::make(group.where()));
  auto bucket = value_or_throw(group.make_bucket(layout));
  auto memory = value_or_throw(group.allocate(layout.size_bytes()));
  fake_nccl::all_reduce_result = nccl::invalid_usage;
  value_or_throw(group.all_reduce_fast(layout, memory.bytes(), *bucket, ready));
  const auto done = group.finish();
  fake_nccl::all_reduce_result = nccl::success;
  REQUIRE(!done);
  INFO(done.error().message);
  CHECK(done.error().code == errc::device_error);
  CHECK(done.error().message.find("ncclAllReduce: ") != std::string::npos);
  ranks.groups[1]->abort({errc::aborted, "enough"});
}

TEST_CASE("connections that break while the group is formed may be a lost peer, not a device error") {
  fake_nccl::forming_result = nccl::system_error;
  nccl_ranks ranks{2};
  fake_nccl::forming_result = nccl::success;
  for (const auto& x : ranks.errors) {
    CHECK(x.code == errc::unreachable);
    CHECK(x.message.find("ncclCommInitRankConfig: ") == 0);
  }
  CHECK(fake_nccl::living == 0);
}

TEST_CASE("without an id from NCCL no rank waits, and a group that can be shrunk needs none") {
  fake_nccl::id_result = nccl::system_error;
  {
    nccl_ranks ranks{2};
    CHECK(ranks.errors[0].code == errc::unreachable);
    CHECK(ranks.errors[0].message.find("ncclGetUniqueId: ") == 0);
    CHECK(ranks.errors[1].code == errc::aborted);
    CHECK(ranks.errors[1].message.find("rank 0 got no id from NCCL: ncclGetUniqueId: ") != std::string::npos);
  }
  fake_nccl::id_result = nccl::success;
  for (bool can_shrink : {true, false}) {
    nccl_ranks ranks{3};
    reduce_without(ranks, 2, {errc::aborted, "lost"});
    std::vector<std::unique_ptr<device_group>> old;
    for (std::uint32_t rank : {0u, 1u})
      old.push_back(std::move(ranks.groups[rank]));
    ranks.groups.pop_back();
    std::vector<std::string> notes(2);
    fake_nccl::id_result = nccl::system_error;
    fake_nccl::shrink_fails = !can_shrink;
    ranks.form(
        [&](std::uint32_t rank, nccl_options& options) {
          options.predecessor = std::move(old[rank]);
          options.shrink_deadline = std::chrono::milliseconds{100};
          options.note = [&notes, rank](const std::string& text) { notes[rank] = text; };
        },
        2);
    fake_nccl::id_result = nccl::success;
    fake_nccl::shrink_fails = false;
    for (std::uint32_t rank : {0u, 1u}) {
      CHECK((ranks.errors[rank] == error{}) == can_shrink);
      CHECK(notes[rank].empty() == can_shrink);
    }
    if (can_shrink)
      check_bits(ranks, {bucket_layout{{{dtype::f32, 900}}}, 8, even_ownership(8, 2)});
    else
      CHECK(notes[1].find("ncclCommShrink did not end within 100 ms") != std::string::npos);
  }
  CHECK(fake_nccl::living == 0);
  CHECK(fake_nccl::violations == 0);
}

TEST_CASE("a replaced group is not finalized, which would wait for ranks that have left") {
  nccl_ranks ranks{3, {}, 22803};
  check_bits(ranks, {bucket_layout{{{dtype::f32, 9000}}}, 8, even_ownership(8, 3), 1, UINT64_MAX, 1});
  std::vector<std::unique_ptr<device_group>> old;
  for (std::uint32_t rank : {0u, 1u})
    old.push_back(std::move(ranks.groups[rank]));
  const auto leaving = std::move(ranks.groups[2]);
  ranks.groups.resize(2);
  const auto before = fake_nccl::finalized.load();
  ranks.form([&](std::uint32_t rank, nccl_options& options) { options.predecessor = std::move(old[rank]); }, 2);
  CHECK(fake_nccl::finalized == before);
  check_bits(ranks, {bucket_layout{{{dtype::f32, 9000}}}, 8, even_ownership(8, 2), 1, UINT64_MAX, 1});
}

TEST_CASE("an expired deadline names call, rank and device") {
  nccl_ranks ranks{2, [](std::uint32_t, nccl_options& options) { options.deadline = std::chrono::milliseconds{100}; }};
  const bucket_layout layout{{{dtype::f32, 40000}}};
  auto& group = *ranks.groups[0];
  auto ready = value_or_throw(device_event::make(group.where()));
  auto bucket = value_or_throw(group.make_bucket(layout));
  auto memory = value_or_throw(group.allocate(layout.size_bytes()));
  value_or_throw(group.all_reduce_fast(layout, memory.bytes(), *bucket, ready));
  const auto done = group.finish();
  REQUIRE(!done);
  INFO(done.error().message);
  CHECK(done.error().code == errc::timed_out);
  for (const char* part : {"rank 0 of 2", "GPU 0 (fake, GPU-", "all_reduce_fast #1"})
    CHECK(done.error().message.find(part) != std::string::npos);
  ranks.groups[1]->abort({errc::aborted, "enough"});
}

TEST_CASE("over NCCL, too, waiting for the own GPU is distinguished from waiting for peers") {
  nccl_ranks ranks{2};
  check_who_is_waited_for(*ranks.groups[0]);
  ranks.groups[1]->abort({errc::aborted, "enough"});
}

TEST_CASE("two ranks on one GPU are rejected and named") {
  nccl_ranks ranks{2};
  ranks.devices[1] = ranks.devices[0];
  for (auto& group : ranks.groups)
    group->abort({errc::stale_generation, "over"});
  ranks.form({}, 2);
  for (const auto& x : ranks.errors) {
    CHECK(x.code == errc::invalid_argument);
    CHECK(x.message.find("ranks 0 and 1 are on one GPU") != std::string::npos);
  }
}

TEST_CASE("a group is not formed with another generation's ranks, nor after a cancellation") {
  const auto library = fake_nccl::table();
  const auto where = std::make_shared<fake_device>();
  nccl_options options;
  options.world_size = 2;
  options.generation = generation_id{7};
  auto made = make_nccl_group(library, where, std::move(options), [](std::string mine) {
    return expected<std::vector<std::string>>{{std::move(mine), "nccl1 6 2 22809 0 0 0 GPU-1"}};
  });
  CHECK(made.error().code == errc::mismatch);
  std::stop_source cancelled;
  cancelled.request_stop();
  nccl_options again;
  again.cancelled = cancelled.get_token();
  made = make_nccl_group(library, where, std::move(again),
                         [](std::string mine) { return expected<std::vector<std::string>>{{std::move(mine)}}; });
  CHECK(made.error().code == errc::aborted);
  nccl_options wrong;
  wrong.rank = rank_id{1};
  CHECK(make_nccl_group(library, where, std::move(wrong), {}).error().code == errc::invalid_argument);
}

TEST_CASE("NCCL is found, or the error says what is missing") {
  if (const auto found = find_nccl())
    CHECK(found->starts_with("NCCL 2."));
  else
    CHECK((found.error().code == errc::unsatisfiable &&
           found.error().message.find("LD_LIBRARY_PATH") != std::string::npos));
}
