#include <troupe/actors/decisions/run_layout.hpp>

#include <troupe/actors/decisions/staging_place.hpp>
#include <troupe/actors/decisions/transport_choice.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace troupe::actors {

expected<std::string> run_layout::lay_out(std::vector<worker_place> places, std::vector<std::string> addresses,
                                          fallback otherwise) {
  auto choice = choose_transport(mode_, places);
  if (!choice && otherwise == fallback::yes)
    choice = choose_transport(transport_mode::automatic, places);
  if (!choice)
    return fail(std::move(choice.error()));
  auto notice = std::string{};
  if (choice->transport != transport_kind::self && choice->transport != transport_)
    notice = (each_.gpus > 0 ? "what lies in host memory goes over " : "gradients go over ") + choice->reason;
  transport_ = choice->transport;
  addresses_ = std::move(addresses);
  layout_ = {std::move(places), addresses_, transport_};
  return notice;
}

bool run_layout::uses_node(std::uint32_t node) const {
  return std::ranges::find(places(), node, &worker_place::node) != places().end();
}

std::string run_layout::uneven_shards() const {
  const auto n = world_size();
  const auto most = (shards_ + n - 1) / n;
  const auto efficiency = static_cast<double>(shards_) / (static_cast<double>(n) * most);
  if (efficiency >= 0.85)
    return {};
  const auto below = shards_ / n * n;
  const auto above = below + n;
  return fmt::format(
      "{} workers share {} shards unevenly: they run at {} % of what they could. A number of shards that "
      "{} divides suits better, such as {}{}: scaling.shards, --shards (it affects the result, as the "
      "batch size does)",
      n, shards_, static_cast<int>(efficiency * 100), n, below > 0 ? fmt::format("{} or ", below) : "", above);
}

std::map<std::uint32_t, start_workers> run_layout::start_messages(const run_id& run,
                                                                  const std::vector<std::string>& arguments,
                                                                  const std::vector<worker_place>& places) const {
  const auto layout = group_layout{places, addresses_, transport_};
  std::map<std::uint32_t, start_workers> result;
  for (const auto& place : places) {
    auto& message = result[place.node];
    message.run = run;
    message.arguments = arguments;
    message.each = each_;
    message.workers.push_back({place.worker, layout.environment_of(place), each_.gpus});
  }
  return result;
}

group_place run_layout::place_of(const worker_place& who, generation_id generation, std::uint32_t attempt,
                                 const std::string& reason) const {
  auto place = layout_.place_of(who);
  place.generation = generation;
  place.attempt = attempt;
  place.reason = reason;
  return place;
}

staging_place run_layout::place_of(const stage_joiners& group, rank_id joiner, const std::string& host_address) const {
  return place_in_staging_group(group.number, group.command, layout_.nodes(), joiner, host_address);
}

std::vector<std::pair<worker_id, member_place>> run_layout::member_places(const form_generation& next) const {
  auto contains = [](const std::vector<worker_id>& workers, worker_id worker) {
    return std::ranges::find(workers, worker) != workers.end();
  };
  member_place message;
  message.commit_point = next.decision.commit_point;
  message.commands_agreed = next.decision.commands_agreed;
  message.evaluations = next.decision.evaluations;
  for (const auto& place : places()) {
    if (place.worker == next.decision.evaluation_source)
      message.evaluation_source = place.rank;
    if (contains(next.joiners, place.worker))
      message.joiners.push_back(place.rank);
  }
  std::vector<std::pair<worker_id, member_place>> result;
  for (const auto& place : places()) {
    message.comparison = contains(next.compared, place.worker) ? state_comparison::whole
                         : next.compared.empty()               ? state_comparison::slice
                                                               : state_comparison::nothing;
    message.place = place_of(place, next.record.generation, next.record.attempt, next.record.reason);
    result.emplace_back(place.worker, message);
  }
  return result;
}

} // namespace troupe::actors
