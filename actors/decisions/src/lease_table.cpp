#include <troupe/actors/decisions/lease_table.hpp>

#include <troupe/actors/decisions/resource_sums.hpp>

#include <fmt/format.h>

#include <utility>

namespace troupe::actors {

template <class Visit>
void lease_table::for_each_older(const lease_ticket& ticket, time now, Visit visit) const {
  for (const auto& [other, who] : queue_) {
    if (!(other < ticket))
      return;
    if (other.run != ticket.run && now - who.heard < queue_patience)
      visit(who);
  }
}

resources lease_table::open_to(const lease_ticket& ticket, time now) const {
  resources own;
  resources others;
  for (const auto& [run, x] : leases_)
    if (lasts(x, now))
      (run == ticket.run ? own : others) = sum(run == ticket.run ? own : others, larger(x.leased, x.used));
  auto result = difference(capacity_, others);
  for_each_older(ticket, now, [&](const queued& older) { result = without_kinds(result, older.each); });
  // What the run has stays its own.
  return larger(result, own);
}

std::string lease_table::describe_holders(const lease_ticket& ticket, const resources& wanted, time now) const {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (const auto& [run, x] : leases_)
    if (const auto held = larger(x.leased, x.used); run != ticket.run && lasts(x, now) && overlap(held, wanted))
      add(fmt::format("run {} has {}", x.run_name, describe(held)));
  for_each_older(ticket, now, [&](const queued& older) {
    if (overlap(older.each, wanted))
      add(fmt::format("run {} has waited longer", older.run_name));
  });
  return text;
}

expected<void> lease_table::check(const lease_ticket& ticket, const resources& amount, time now) const {
  if (!is_within(amount, capacity_))
    return fail(errc::unsatisfiable,
                fmt::format("it is asked for {}, and has {} in all", describe(amount), describe(capacity_)));
  if (!is_within(amount, open_to(ticket, now)))
    return fail(errc::busy, fmt::format("it is asked for {}, and is busy: {}", describe(amount),
                                        describe_holders(ticket, amount, now)));
  return {};
}

expected<void> lease_table::lease(const lease_request& request, time now) {
  TROUPE_TRY(check(request.ticket, request.amount, now));
  const auto found = leases_.find(request.ticket.run);
  const auto is_open = found != leases_.end() && !found->second.since;
  if (is_nothing(request.amount) && !is_open) {
    leases_.erase(request.ticket.run);
    return {};
  }
  auto& held = leases_[request.ticket.run];
  held.run_name = request.run_name;
  held.ticket = request.ticket;
  held.leased = request.amount;
  held.since = is_open ? std::nullopt : std::optional{now};
  return {};
}

void lease_table::wait(const waiting_run& who, time now) {
  std::erase_if(queue_, [now](const auto& x) { return now - x.second.heard >= queue_patience; });
  queue_.insert_or_assign(who.ticket, queued{who.run_name, who.each, now});
}

void lease_table::open(const run_id& run, const std::string& run_name) {
  auto& held = leases_.try_emplace(run, holding{run_name, youngest(run), {}, {}, std::nullopt}).first->second;
  held.since.reset();
  forget_in_queue(run);
}

expected<void> lease_table::use(const run_id& run, const resources& amount, time now) {
  const auto found = leases_.find(run);
  if (found == leases_.end())
    return fail(errc::stale_generation, "this node has no such run");
  auto& held = found->second;
  if (!is_within(amount, larger(held.leased, held.used)))
    TROUPE_TRY(check(held.ticket, amount, now));
  held.used = amount;
  return {};
}

void lease_table::end(const run_id& run) {
  leases_.erase(run);
  forget_in_queue(run);
}

void lease_table::forget_in_queue(const run_id& run) {
  std::erase_if(queue_, [&run](const auto& x) { return x.first.run == run; });
}

} // namespace troupe::actors
