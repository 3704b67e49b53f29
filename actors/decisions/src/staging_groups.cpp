#include <troupe/actors/decisions/staging_groups.hpp>

#include <troupe/actors/decisions/transport_choice.hpp>

#include <utility>

namespace troupe::actors {

using standing::following;

stage_joiners staging_groups::open(generation_id generation, std::uint32_t loop, std::uint64_t number,
                                   transport_mode mode, const worker_table& workers,
                                   const std::vector<worker_record*>& joiners) {
  stage_joiners group;
  group.command.generation = generation;
  group.command.loop = loop;
  group.number = number;
  std::vector<worker_place> places;
  for (const auto& [id, who] : workers)
    if (who.is_active())
      places.push_back(who.place);
  group.sources = static_cast<std::uint32_t>(places.size());
  auto rank = rank_id{group.sources};
  for (auto* who : joiners) {
    auto history = history_of(who->stands);
    ++history.stagings;
    who->stands = following{history};
    places.push_back(who->place);
    group.command.joiner_nodes.push_back(who->place.node);
    group.to_answer.emplace(rank, who->place.worker);
    ++rank.value;
  }
  auto choice = choose_transport(mode, places);
  if (!choice)
    choice = choose_transport(transport_mode::automatic, places);
  group.command.transport = value_or_throw(std::move(choice)).transport;
  last_ = group;
  return group;
}

bool staging_groups::is_open(const worker_table& workers) const {
  return workers.any([](const worker_record& x) { return x.is<following>(); });
}

std::vector<worker_record*> staging_groups::on_caught_up(worker_table& workers, worker_record& who, step_id step) {
  who.as<following>()->now = following::distance::caught_up;
  who.note_applied(step);
  std::vector<worker_record*> result;
  for (auto& [id, each] : workers) {
    if (!each.is<following>())
      continue;
    if (!each.is_caught_up())
      return {};
    result.push_back(&each);
  }
  return result;
}

run_actions staging_groups::answer_again(const worker_record& who) const {
  auto again = *last_;
  std::erase_if(again.to_answer, [&](const auto& each) { return each.second != who.place.worker; });
  return {{std::move(again), name_of(who.place) + " asks again"}};
}

run_actions staging_groups::leave(const worker_record& who, const worker_standing& before) const {
  if (!std::holds_alternative<following>(before))
    return {};
  return {{end_staging{last_->number, last_->command.generation}, name_of(who.place) + " is gone"}};
}

void staging_groups::stop_waiting(worker_table& workers) {
  for (auto& [id, who] : workers)
    if (auto* follower = who.as<following>())
      follower->now = following::distance::behind;
}

} // namespace troupe::actors
