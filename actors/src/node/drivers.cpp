#include "node/node_actor_state.hpp"

#include "down.hpp"

#include <troupe/actors/error_conversion.hpp>

#include <caf/actor_system.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

// What drivers ask of a node, and what becomes of a run whose driver is gone.

namespace troupe::actors {

namespace {

using clock = std::chrono::steady_clock;

/// Shorter than the patience of drivers.
constexpr auto search_limit = std::chrono::seconds{6};

std::string late_text(const std::string& host, const std::string& path) {
  return fmt::format("host {} has not read and checked {} within {} s: does its disk answer?", host, path,
                     search_limit.count());
}

} // namespace

caf::result<node_offer> node_actor_state::offer(const offer_request& request) {
  if (request.protocol != protocol_version)
    return to_caf({errc::unsupported_version,
                   fmt::format("this caf-node speaks version {} of the protocol, the driver version {}: install the "
                               "same Troupe on all hosts",
                               protocol_version, request.protocol)});
  if (drained_)
    return to_caf({errc::timed_out, "it is drained, and takes no workers until `troupe resume`"});
  return resources_.offer(request, runs_.find_orphan(request.predecessor), clock::now());
}

caf::result<void> node_actor_state::lease(const lease_request& request) {
  if (auto granted = resources_.lease(request, runs_.find_orphan(request.predecessor), clock::now()); !granted)
    return to_caf(granted.error());
  return caf::unit;
}

caf::result<run_opened> node_actor_state::open(const open_run& request, const driver_handles& driver) {
  // The driver may have lost the answer, and have other handles since.
  if (auto* known = runs_.find(request.run)) {
    if (auto had = have(*known, "open_run", request.secret, request.claim); !had)
      return refuse(had.error());
    if (known->alone_since || known->driver.control != driver.control)
      connect(*known, driver);
    return run_opened{request.run, known->program_path};
  }
  if (runs_.find_any(request.run) != nullptr)
    return to_caf({errc::timed_out, "what this node had of the run is still ending"});
  auto [opening, is_new] = opening_.try_emplace(request.run, opening_run{request, driver});
  auto& [what, latest, number, waiting] = opening->second;
  if (auto may = check_command(what, "open_run", request.secret, request.claim); !may)
    return refuse(may.error());
  what.claim = request.claim;
  latest = driver;
  auto promise = make_response_promise<run_opened>();
  waiting.push_back(promise);
  if (!is_new)
    return promise;
  if (const auto* before = runs_.find_orphan(request.predecessor)) {
    log("the driver of run " + before->what.run_name + " was started anew: the workers of the one before end");
    auto begin = [this, run = request.run] { search(run); };
    this->request(node_actor{caf::actor_cast<node_actor>(this)}, caf::infinite,
                  end_run{before->what.run, before->what.secret, before->what.claim})
        .then(begin, [begin](const caf::error&) { begin(); });
  } else {
    search(request.run);
  }
  return promise;
}

void node_actor_state::search(const run_id& run) {
  auto opening = opening_.find(run);
  if (opening == opening_.end())
    return;
  const auto number = opening->second.search = ++searches_;
  const auto path = opening->second.what.program_path;
  const auto give_up = [this, run, number](errc code, std::string why) {
    finish_search({run, number, fail(code, std::move(why))});
  };
  // Each would hold another thread.
  if (std::ranges::any_of(searching_, [&](const auto& x) { return x.second.is_late && x.second.path == path; }))
    return give_up(errc::timed_out, late_text(config_.host, path));
  try {
    // Not a thread of the system's: a disk that does not answer holds it for ever, and the node may end meanwhile.
    std::thread{[self = caf::actor_cast<caf::weak_actor_ptr>(ctrl()), run, number,
                 look = launcher_->search(opening->second.what)] {
      auto event = program_searched{run, number, {}};
      try {
        event.program = look();
      } catch (const std::exception& x) {
        event.program = fail(errc::internal, x.what());
      }
      if (auto strong = self.lock())
        caf::anon_send(caf::actor_cast<node_interface>(strong), std::move(event));
    }}.detach();
  } catch (const std::system_error& x) {
    return give_up(errc::unsatisfiable, fmt::format("no thread to look for {}: {}", path, x.what()));
  }
  searching_[number] = {path};
  run_delayed(search_limit, [this, number, path, give_up] {
    const auto late = searching_.find(number);
    if (late == searching_.end())
      return;
    late->second.is_late = true;
    give_up(errc::timed_out, late_text(config_.host, path));
  });
}

void node_actor_state::finish_search(const program_searched& event) {
  auto found = opening_.find(event.run);
  if (found == opening_.end() || found->second.search != event.number)
    return;
  auto opening = std::move(opening_.extract(found).mapped());
  if (!event.program) {
    for (auto& each : opening.waiting)
      each.deliver(to_caf(event.program.error()));
    return;
  }
  launcher_->open(event.run, *event.program);
  auto& run = runs_.add(opening.what, event.program->path);
  resources_.open(run);
  connect(run, opening.driver);
  ++totals_.runs_begun;
  log("run " + opening.what.run_name + " (" + opening.what.run.value + ") begins with " + event.program->path);
  for (auto& each : opening.waiting)
    each.deliver(run_opened{event.run, event.program->path});
}

void node_actor_state::connect(hosted_run& run, const driver_handles& driver) {
  run.driver = driver;
  run.alone_since.reset();
  when_down(driver.control, [self = caf::actor_cast<caf::weak_actor_ptr>(ctrl()), run = run.what.run,
                             connection = run.connection = ++connections_](down_cause why) {
    if (auto strong = self.lock())
      caf::anon_send(caf::actor_cast<node_interface>(strong), driver_down{run, connection, why});
  });
  run.news.connect(driver.control);
  for (const auto& [worker, follower] : run.followers)
    send(follower, driver.control, driver.collectives, driver.store);
  if (draining_)
    send(driver.control, node_leaving{run.what.run, draining_->grace_left(clock::now())});
  else if (drained_)
    send(driver.control, node_drained{run.what.run, static_cast<std::uint64_t>(drained_->count())});
}

expected<void> node_actor_state::have(hosted_run& run, std::string_view command, const std::string& secret,
                                      const run_claim& claim) {
  TROUPE_TRY(check_command(run.what, command, secret, claim));
  if (claim == run.what.claim)
    return {};
  log("another driver takes run " + run.what.run_name + " over");
  send(run.driver.control, run_superseded{run.what.run});
  // It may still answer what it gets, and the new one would not hear of it.
  run.news.disown();
  run.what.claim = claim;
  // From now on the previous driver is ignored, and the grace period of this one begins.
  run.connection = ++connections_;
  await_driver(run);
  return {};
}

template <class Request>
expected<run_claimed> node_actor_state::have_claimed(const Request& request, std::string_view command) {
  auto* run = runs_.find(request.run);
  if (run == nullptr)
    return fail(unknown_run(request.run));
  TROUPE_TRY(have(*run, command, request.secret, request.claim));
  return run->claimed();
}

caf::result<run_claimed> node_actor_state::claim(const claim_run& request) {
  auto claimed = have_claimed(request, "claim_run");
  if (!claimed)
    return refuse(claimed.error());
  return std::move(*claimed);
}

caf::result<run_claimed> node_actor_state::adopt(const adopt_run& request, const driver_handles& driver) {
  auto claimed = have_claimed(request, "adopt_run");
  if (!claimed)
    return refuse(claimed.error());
  auto* run = runs_.find(request.run);
  const auto gap = run->alone_since ? clock::now() - *run->alone_since : clock::duration{0};
  log(fmt::format("the driver of run {} is connected again after {:.1f} s", run->what.run_name,
                  std::chrono::duration<double>(gap).count()));
  connect(*run, driver);
  return std::move(*claimed);
}

void node_actor_state::driver_is_gone(const driver_down& event) {
  auto* run = runs_.find_any(event.run);
  if (run == nullptr || run->connection != event.connection)
    return;
  if (event.why == down_cause::ended || run->what.driver_grace_ms == 0 || run->ending)
    return end_without_driver(*run);
  log(fmt::format("the connection to the driver of run {} is lost: its workers go on, and end if it is not back in "
                  "{:.1f} s",
                  run->what.run_name, static_cast<double>(run->what.driver_grace_ms) / 1000));
  await_driver(*run);
}

void node_actor_state::await_driver(hosted_run& run) {
  run.alone_since = clock::now();
  run_delayed(std::chrono::milliseconds{run.what.driver_grace_ms},
              [this, id = run.what.run, connection = run.connection] {
                auto* found = runs_.find_any(id);
                if (found != nullptr && found->connection == connection && found->alone_since)
                  end_without_driver(*found);
              });
}

void node_actor_state::end_without_driver(hosted_run& run) {
  const auto id = run.what.run;
  if (!run.alone_since)
    run.alone_since = clock::now();
  log("the driver of run " + run.what.run_name + " is gone: its workers end");
  kill_all(run);
  forget_if_ended(id);
}

} // namespace troupe::actors
