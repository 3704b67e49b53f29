#include <troupe/collectives/flight_record.hpp>

#include <fmt/format.h>

namespace troupe::collectives {

namespace {

std::string short_duration(std::chrono::nanoseconds x) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(x).count();
  if (us < 10'000)
    return fmt::format("{} us", us);
  if (us < 10'000'000)
    return fmt::format("{} ms", us / 1000);
  return fmt::format("{} s", us / 1'000'000);
}

} // namespace

std::string_view to_string(call_kind kind) noexcept {
  switch (kind) {
  case call_kind::none:
    return "no call";
  case call_kind::all_reduce:
    return "all_reduce";
  case call_kind::reduce_scatter:
    return "reduce_scatter";
  case call_kind::all_gather:
    return "all_gather";
  case call_kind::all_gather_bytes:
    return "all_gather_bytes";
  case call_kind::broadcast:
    return "broadcast";
  case call_kind::all_to_all:
    return "all_to_all";
  case call_kind::barrier:
    return "barrier";
  case call_kind::send:
    return "send";
  case call_kind::receive:
    return "receive";
  case call_kind::reduce_leaves:
    return "reduce_leaves";
  case call_kind::all_reduce_fast:
    return "all_reduce_fast";
  }
  return "an unknown call";
}

std::string to_string(const call_record& call) {
  auto text = std::string{to_string(call.kind)};
  if (call.kind == call_kind::none)
    return text;
  text += fmt::format(" #{} (", call.sequence);
  if (call.type != 0 && is_dtype(call.type))
    text +=
        fmt::format("{} of {}, ", to_string(static_cast<reduce_op>(call.op)), to_string(static_cast<dtype>(call.type)));
  text += fmt::format("{} bytes", call.size_bytes);
  if (call.peer != call_record::every_peer)
    text += fmt::format("{} {}",
                        call.kind == call_kind::broadcast ? ", root"
                        : call.kind == call_kind::send    ? ", to rank"
                                                          : ", from rank",
                        call.peer);
  return text + ")";
}

bool fit_together(const call_record& left, const call_record& right) noexcept {
  return left.kind == right.kind && left.size_bytes == right.size_bytes && left.type == right.type &&
         left.op == right.op && left.detail == right.detail && (is_pairwise(left.kind) || left.peer == right.peer);
}

std::string describe_mismatch(rank_id left, const call_record& of_left, rank_id right, const call_record& of_right) {
  auto text =
      fmt::format("rank {} calls {} where rank {} calls {}", left, to_string(of_left), right, to_string(of_right));
  if (of_left.detail != of_right.detail && of_left.size_bytes == of_right.size_bytes && of_left.kind == of_right.kind)
    text += ", with another layout, ownership or divisor";
  return text + ": all ranks have to make the same calls in the same order";
}

std::string to_string(const flight_record& record) {
  auto text = fmt::format("rank {} of {}, generation {}, {}: ", record.rank, record.world_size, record.generation,
                          record.transport);
  if (record.call.kind == call_kind::none)
    return text + "no call yet";
  if (!record.is_under_way)
    return fmt::format("{}outside a call; the last was {}, which took {}", text, to_string(record.call),
                       short_duration(record.duration));
  text += fmt::format("in {} for {}", to_string(record.call), short_duration(record.duration));
  for (const auto& peer : record.peers) {
    if (peer.arrived)
      continue;
    text += fmt::format("\n  waits for rank {}", peer.rank);
    if (peer.last_call.kind != call_kind::none)
      text += fmt::format(", which was last in {}", to_string(peer.last_call));
  }
  return text;
}

} // namespace troupe::collectives
