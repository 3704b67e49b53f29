#include <troupe/collectives/flight_record.hpp>

#include <doctest/doctest.h>
#include <set>
#include <string>

using namespace troupe;
using namespace troupe::collectives;
using namespace std::chrono_literals;

namespace {

call_record all_reduce_call() {
  call_record call;
  call.kind = call_kind::all_reduce;
  call.sequence = 17;
  call.type = static_cast<std::uint8_t>(dtype::f32);
  call.op = static_cast<std::uint8_t>(reduce_op::sum);
  call.size_bytes = 4096;
  return call;
}

call_record call_of(call_kind kind, std::uint64_t sequence, std::uint64_t size_bytes,
                    std::uint32_t peer = call_record::every_peer) {
  call_record call;
  call.kind = kind;
  call.sequence = sequence;
  call.size_bytes = size_bytes;
  call.peer = peer;
  return call;
}

} // namespace

TEST_CASE("every kind of call has its own name") {
  std::set<std::string_view> names;
  for (std::uint8_t i = 0; i <= 11; ++i)
    names.insert(to_string(static_cast<call_kind>(i)));
  CHECK(names.size() == 12);
  CHECK(names.count("an unknown call") == 0);
  CHECK(to_string(static_cast<call_kind>(200)) == "an unknown call");
}

TEST_CASE("a call is printed with its number, data and peer") {
  CHECK(to_string(all_reduce_call()) == "all_reduce #17 (sum of f32, 4096 bytes)");
  CHECK(to_string(call_of(call_kind::barrier, 3, 16)) == "barrier #3 (16 bytes)");
  CHECK(to_string(call_of(call_kind::broadcast, 4, 64, 0)) == "broadcast #4 (64 bytes, root 0)");
  CHECK(to_string(call_of(call_kind::send, 1, 64, 2)) == "send #1 (64 bytes, to rank 2)");
  CHECK(to_string(call_of(call_kind::receive, 9, 64, 3)) == "receive #9 (64 bytes, from rank 3)");
  CHECK(to_string(call_record{}) == "no call");
}

TEST_CASE("an invalid type number is not printed as a type") {
  auto call = all_reduce_call();
  call.type = 250;
  CHECK(to_string(call) == "all_reduce #17 (4096 bytes)");
}

TEST_CASE("calls match if everything but their numbers is equal") {
  const auto call = all_reduce_call();
  auto other = call;
  other.sequence = 18;
  CHECK(fit_together(call, other));
  for (auto change :
       {+[](call_record& x) { x.kind = call_kind::reduce_scatter; }, +[](call_record& x) { ++x.size_bytes; },
        +[](call_record& x) { x.type = static_cast<std::uint8_t>(dtype::i32); },
        +[](call_record& x) { x.op = static_cast<std::uint8_t>(reduce_op::max); },
        +[](call_record& x) { x.detail = 1; }, +[](call_record& x) { x.peer = 0; }}) {
    other = call;
    change(other);
    CHECK(!fit_together(call, other));
    CHECK(!fit_together(other, call));
  }
  CHECK(!fit_together(call_of(call_kind::broadcast, 1, 8, 0), call_of(call_kind::broadcast, 1, 8, 1)));
}

TEST_CASE("a mismatch names both calls and ranks, and says so when only layouts differ") {
  const auto text =
      describe_mismatch(rank_id{1}, call_of(call_kind::broadcast, 4, 64, 0), rank_id{0}, all_reduce_call());
  CHECK(text == "rank 1 calls broadcast #4 (64 bytes, root 0) where rank 0 calls all_reduce #17 (sum of f32, 4096 "
                "bytes): all ranks have to make the same calls in the same order");
  auto left = call_of(call_kind::reduce_leaves, 2, 64), right = left;
  right.detail = 5;
  CHECK(describe_mismatch(rank_id{0}, left, rank_id{1}, right).find(", with another layout, ownership or divisor:") !=
        std::string::npos);
  right.size_bytes = 128;
  CHECK(describe_mismatch(rank_id{0}, left, rank_id{1}, right).find("another layout") == std::string::npos);
}

TEST_CASE("a record shows the current call, its duration and the missing ranks") {
  flight_record record;
  record.transport = "shm";
  record.rank = rank_id{2};
  record.world_size = 4;
  record.generation = generation_id{7};
  CHECK(to_string(record) == "rank 2 of 4, generation 7, shm: no call yet");
  record.call = all_reduce_call();
  record.duration = 1234us;
  CHECK(to_string(record) == "rank 2 of 4, generation 7, shm: outside a call; the last was all_reduce #17 (sum of f32, "
                             "4096 bytes), which took 1234 us");
  record.is_under_way = true;
  record.duration = 12'345ms;
  record.peers = {{rank_id{0}, true, all_reduce_call()},
                  {rank_id{1}, false, {}},
                  {rank_id{3}, false, call_of(call_kind::barrier, 16, 8)}};
  CHECK(to_string(record) == "rank 2 of 4, generation 7, shm: in all_reduce #17 (sum of f32, 4096 bytes) for 12 s\n"
                             "  waits for rank 1\n"
                             "  waits for rank 3, which was last in barrier #16 (8 bytes)");
  record.duration = 999ms;
  CHECK(to_string(record).find("for 999 ms") != std::string::npos);
}
