#include <troupe/collectives/flight_record.hpp>

namespace troupe::collectives {

namespace {

std::string to_text(std::chrono::nanoseconds x) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(x).count();
  if (us < 10'000)
    return std::to_string(us) + " us";
  if (us < 10'000'000)
    return std::to_string(us / 1000) + " ms";
  return std::to_string(us / 1'000'000) + " s";
}

bool is_pairwise(call_kind kind) noexcept {
  return kind == call_kind::send || kind == call_kind::receive;
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
  text += " #" + std::to_string(call.sequence) + " (";
  if (call.type != 0 && is_dtype(call.type))
    text += std::string{to_string(static_cast<reduce_op>(call.op))} + " of " +
            std::string{to_string(static_cast<dtype>(call.type))} + ", ";
  text += std::to_string(call.size_bytes) + " bytes";
  if (call.peer != call_record::every_peer)
    text += (call.kind == call_kind::broadcast ? ", root "
             : call.kind == call_kind::send    ? ", to rank "
                                               : ", from rank ") +
            std::to_string(call.peer);
  return text + ")";
}

bool fit_together(const call_record& left, const call_record& right) noexcept {
  return left.kind == right.kind && left.size_bytes == right.size_bytes && left.type == right.type &&
         left.op == right.op && left.detail == right.detail && (is_pairwise(left.kind) || left.peer == right.peer);
}

std::string describe_mismatch(rank_id left, const call_record& of_left, rank_id right, const call_record& of_right) {
  auto text = "rank " + std::to_string(left.value) + " calls " + to_string(of_left) + " where rank " +
              std::to_string(right.value) + " calls " + to_string(of_right);
  if (of_left.detail != of_right.detail && of_left.size_bytes == of_right.size_bytes && of_left.kind == of_right.kind)
    text += ", with another layout, ownership or divisor";
  return text + ": all ranks have to make the same calls in the same order";
}

std::string to_string(const flight_record& record) {
  auto text = "rank " + std::to_string(record.rank.value) + " of " + std::to_string(record.world_size) +
              ", generation " + std::to_string(record.generation.value) + ", " + std::string{record.transport} + ": ";
  if (record.call.kind == call_kind::none)
    return text + "no call yet";
  if (!record.is_under_way)
    return text + "outside a call; the last was " + to_string(record.call) + ", which took " + to_text(record.duration);
  text += "in " + to_string(record.call) + " since " + to_text(record.duration);
  for (const auto& peer : record.peers) {
    if (peer.arrived)
      continue;
    text += "\n  waits for rank " + std::to_string(peer.rank.value);
    if (peer.last_call.kind != call_kind::none)
      text += ", which was last in " + to_string(peer.last_call);
  }
  return text;
}

} // namespace troupe::collectives
