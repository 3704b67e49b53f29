#include "driver_model.hpp"

#include <algorithm>
#include <utility>

// The actors beside the driver: the store and the collectives actor.

namespace troupe::simulation {

using namespace actors;

void store_model::begin(generation_id generation) {
  truly_begun_ = std::max(truly_begun_, generation);
  if (generation <= generation_ || world_.defect() == mutation::hears_stale_parts)
    return;
  generation_ = generation;
  auto first_that_stays = pending_.lower_bound({generation_, step_id{}});
  for (auto i = pending_.begin(); i != first_that_stays; i = pending_.erase(i))
    for (auto [worker, number] : i->second.waiting) {
      world_.count(branch::checkpoint_taken_again);
      world_.send_to_thread(worker,
                            answer<checkpoint_outcome>{number, fail(errc::stale_generation, "a generation began")});
    }
}

void store_model::add(worker_id from, const request<state_part>& message) {
  const auto& part = message.message;
  auto key = std::pair{part.generation, part.state.step};
  if (written_.contains(key) ||
      ((part.is_last_copy || part.generation < generation_) && on_device_.contains(part.state.step)))
    return reply(from, message.number, part.state.step);
  if (part.is_last_copy) {
    world_.count(branch::saved_at_the_end);
    commit({{{part.rank, part}}, {}});
    return reply(from, message.number, part.state.step);
  }
  if (part.generation < generation_) {
    world_.count(branch::stale_part_refused);
    return world_.send_to_thread(
        from, answer<checkpoint_outcome>{message.number, fail(errc::stale_generation, "a generation began")});
  }
  auto& pending = pending_[key];
  pending.parts.insert_or_assign(part.rank, part);
  pending.waiting.emplace_back(from, message.number);
  if (pending.parts.size() < part.world_size)
    return;
  auto whole = std::move(pending_.extract(key).mapped());
  if (part.generation < truly_begun_)
    world_.violate("a checkpoint of generation " + std::to_string(part.generation.value) +
                   " was written in generation " + std::to_string(truly_begun_.value));
  commit(whole);
  written_.insert(key);
  for (auto [worker, number] : whole.waiting)
    reply(worker, number, part.state.step);
}

void store_model::reply(worker_id to, std::uint64_t number, step_id step) {
  world_.send_to_thread(to, answer<checkpoint_outcome>{number, checkpoint_outcome{step, "path", {}}});
}

void store_model::commit(const attempt& whole) {
  const auto& first = whole.parts.begin()->second.state;
  for (const auto& [rank, part] : whole.parts)
    if (part.state != first)
      world_.violate("the parts of a checkpoint differ");
  if (first != undisturbed_chain()[first.step.value])
    world_.violate("the checkpoint of step " + std::to_string(first.step.value) + " is not what it should be");
  if (world_.is_tracing())
    world_.note("checkpoint of step " + std::to_string(first.step.value) + " is written");
  on_device_.insert(first.step);
  if (!latest_ || latest_->step < first.step)
    latest_ = first;
}

void collectives_model::begin(const generation_started& message) {
  if (!table_.begin(message))
    return;
  for (const auto& [sequence, waiting] : std::exchange(waiting_, {}))
    for (auto [worker, number] : waiting)
      world_.send_to_thread(worker,
                            answer<exchange_result>{number, fail(errc::stale_generation, "a generation has begun")});
}

void collectives_model::exchange(worker_id from, request<exchange_request> message) {
  if (world_.defect() == mutation::hears_stale_members)
    message.message.generation = table_.generation();
  auto outcome = table_.add(message.message);
  if (!outcome) {
    world_.count(branch::stale_exchange_refused);
    return world_.send_to_thread(
        from, answer<exchange_result>{message.number, fail(outcome.error().code, outcome.error().message)});
  }
  waiting_[message.message.sequence].emplace_back(from, message.number);
  if (!*outcome)
    return;
  auto whole = waiting_.extract(message.message.sequence);
  for (auto [worker, number] : whole.mapped())
    world_.send_to_thread(worker, answer<exchange_result>{number, **outcome});
}

void collectives_model::end(const exchange_ended& message) {
  if (!table_.end(message))
    return;
  if (auto waiting = waiting_.extract(message.sequence); !waiting.empty())
    for (auto [worker, number] : waiting.mapped())
      world_.send_to_thread(worker, answer<exchange_result>{number, fail(errc::aborted, "given up")});
}

} // namespace troupe::simulation
