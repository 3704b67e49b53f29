#include <troupe/actors/decisions/output_buffer.hpp>

#include <fmt/format.h>

#include <utility>

namespace troupe::actors {

bool output_buffer::add(worker_output output) {
  const auto was_empty = empty();
  run_ = std::move(output.run);
  auto& known = workers_[output.worker];
  if (known.waiting.empty() && known.dropped == 0)
    turns_.push_back(output.worker);
  for (auto& line : output.lines) {
    // Once a line is dropped, drop all until the gap is reported, to keep the order.
    if (known.dropped > 0 || known.bytes + size_of(line) > most_bytes) {
      ++known.dropped;
      continue;
    }
    known.bytes += size_of(line);
    known.waiting.push_back(std::move(line));
  }
  return was_empty && !empty();
}

std::optional<worker_output> output_buffer::take() {
  if (turns_.empty())
    return std::nullopt;
  const auto worker = turns_.front();
  turns_.pop_front();
  auto& known = workers_[worker];
  worker_output result{run_, worker, ++known.batches, {}};
  for (std::size_t bytes = 0; !known.waiting.empty() && bytes < batch_bytes; known.waiting.pop_front()) {
    bytes += size_of(known.waiting.front());
    known.bytes -= size_of(known.waiting.front());
    result.lines.push_back(std::move(known.waiting.front()));
  }
  if (known.waiting.empty() && known.dropped > 0)
    result.lines.push_back(fmt::format("({} lines are dropped here: they came faster than the driver took them)",
                                       std::exchange(known.dropped, 0)));
  if (!known.waiting.empty())
    turns_.push_back(worker);
  return result;
}

} // namespace troupe::actors
