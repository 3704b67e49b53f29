#include "run/control_commands.hpp"
#include "run/status_text.hpp"

#include "checkpoint/text.hpp"
#include "submit/engines.hpp"

#include <troupe/runtime/control_client.hpp>

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

namespace troupe::tool {

namespace {

using runtime::absence;
using runtime::absent_driver;
using runtime::control_client;
using ordered = nlohmann::ordered_json;
using namespace std::chrono_literals;

/// After which time the wait is explained.
constexpr auto patience_without_word = 3s;

/// Says what is waited for, unless this is destroyed soon.
class late_note {
 public:
  explicit late_note(const char* what)
      : thread_([what](const std::stop_token& stop) {
          auto mutex = std::mutex{};
          auto lock = std::unique_lock{mutex};
          if (!std::condition_variable_any{}.wait_for(lock, stop, patience_without_word,
                                                      [&] { return stop.stop_requested(); }))
            fmt::print(stderr, "still waiting: {}\n", what);
        }) {}

 private:
  std::jthread thread_;
};

/// As `control_client::ask`; says so when that takes long.
expected<ordered> ask(control_client& driver, const actors::control_request& request,
                      std::chrono::milliseconds limit = control_client::answer_limit) {
  const auto note = late_note{"the run's driver does not answer yet"};
  return driver.ask(request, limit);
}

int trouble(const char* command, const std::string& text) {
  fmt::print(stderr, "troupe {}: {}\n", command, printable(text));
  return exit_trouble;
}

/// The driver's own words. Whoever has to be asked elsewhere is trouble.
int refused(const char* command, const error& why) {
  std::ignore = trouble(command, why.message);
  return why.code == errc::invalid_argument ? exit_found : exit_trouble;
}

/// What a command does with a run whose driver answers.
template <class Live>
int with_driver(const char* command, const run_choice& which, Live live) {
  const auto run = open_run(which);
  if (!run)
    return trouble(command, run.error().message);
  auto found = run->find_driver();
  if (const auto* absent = std::get_if<absent_driver>(&found)) {
    std::ignore = trouble(command, absent->text);
    return absent->why == absence::ended ? exit_found : exit_trouble;
  }
  return live(*run, std::get<control_client>(found));
}

void say(const run_choice& which, const ordered& status, const std::string& text) {
  if (which.output == output_format::json)
    print_json(status);
  else
    fmt::print("{}\n", text);
}

std::string state_of(const ordered& status) {
  return status.value("state", std::string{});
}

/// The end of a run that was stopped.
int report_end(const run_choice& which, const ordered& status) {
  say(which, status, end_text(status));
  const auto state = state_of(status);
  return state == "stopped" || state == "completed" ? exit_good : exit_found;
}

/// The status at the end, also if the driver could not send it any more.
expected<ordered> await_end(control_client& driver, const runtime::run_access& run) {
  for (;;) {
    auto event = driver.next_event(60s);
    if (event && *event && (**event).value("event", std::string{}) == "ended")
      return (**event).value("status", ordered::object());
    if (event)
      continue;
    auto after = run.find_driver();
    if (auto* another = std::get_if<control_client>(&after)) {
      driver = std::move(*another);
      TROUPE_TRY(ask(driver, actors::watch_request{}));
      continue;
    }
    const auto& absent = std::get<absent_driver>(after);
    if (absent.why != absence::ended)
      return fail(errc::unreachable, absent.text);
    return run.stored_status(absent.why);
  }
}

/// Why a driver has closed the connection.
std::string why_gone(const runtime::run_access& run, const error& noticed) {
  const auto after = run.find_driver();
  const auto* absent = std::get_if<absent_driver>(&after);
  return absent != nullptr ? absent->text : noticed.message;
}

/// The job that a run belongs to, as its driver has written it.
std::optional<submitted_job> job_of(const std::filesystem::path& run) {
  auto in = std::ifstream{run / "run.json"};
  const auto described = ordered::parse(in, nullptr, false);
  const auto job = described.is_object() ? described.find("job") : described.end();
  if (job == described.end() || !job->is_object())
    return std::nullopt;
  const auto word = [&](const char* key) {
    const auto found = job->find(key);
    return found != job->end() && found->is_string() ? found->get<std::string>() : std::string{};
  };
  return submitted_job{word("engine"), word("id"), word("submission"), {}};
}

/// Ends a job in its engine, which would start the driver again. True if the engine had it.
expected<bool> end_in_engine(const std::optional<submitted_job>& job) {
  if (!job)
    return false;
  TROUPE_TRY(const auto ended, end_job(*job));
  if (ended)
    fmt::print(stderr, "{}\n", printable(*ended));
  return ended.has_value();
}

/// A run without a driver that answers. Of one that has ended, a job that waits for its turn, or to be started again,
/// is ended as well; one that runs has gone on to another run.
int stop_absent(const run_choice& which, const runtime::run_access& run, const absent_driver& absent,
                std::optional<submitted_job> job) {
  const auto is_ended = absent.why == absence::ended;
  const auto by_name = find_job(run.directory().string());
  if (is_ended)
    job = by_name && state_in_engine(*by_name) == job_state::waits ? by_name : std::nullopt;
  auto ended = end_in_engine(job);
  if (!is_ended && ended && !*ended)
    ended = end_in_engine(by_name);
  if (!ended) {
    std::ignore = trouble("stop", ended.error().message);
    if (!is_ended)
      return exit_trouble;
  }
  if (is_ended)
    return report_end(which, run.stored_status(absent.why));
  return ended && *ended ? exit_good : trouble("stop", absent.text);
}

/// After a run was stopped: waits until its job has ended, and ends one that is started again instead.
expected<void> conclude(const submitted_job& job, bool has_ended_well) {
  if (job.engine == "kubernetes" && has_ended_well)
    return {};
  for (const auto end = std::chrono::steady_clock::now() + 10s; std::chrono::steady_clock::now() < end;) {
    const auto state = state_in_engine(job);
    if (state == job_state::gone && has_ended_well)
      return {};
    if (state == job_state::waits || !has_ended_well) {
      TROUPE_TRY(end_in_engine(job));
      return {};
    }
    std::this_thread::sleep_for(100ms);
  }
  // It has more to do than this run.
  return {};
}

} // namespace

int stop(const stop_arguments& given) {
  const auto run = open_run(given.which);
  if (!run) {
    // It may wait for its nodes, or for its turn.
    const auto ended = end_in_engine(find_job(given.which.run));
    return ended && *ended ? exit_good : trouble("stop", ended ? run.error().message : ended.error().message);
  }
  const auto job = job_of(run->directory());
  auto found = run->find_driver();
  if (const auto* absent = std::get_if<absent_driver>(&found))
    return stop_absent(given.which, *run, *absent, job);
  auto& driver = std::get<control_client>(found);
  // First, so that the end is not missed.
  if (auto watched = ask(driver, actors::watch_request{}); !watched)
    return refused("stop", watched.error());
  auto asked = ask(driver, stop_request{given.now});
  if (!asked)
    return refused("stop", asked.error());
  if (!given.waits) {
    say(given.which, *asked, given.now ? "stopping at once" : "stopping after this step");
    return exit_good;
  }
  const auto end = await_end(driver, *run);
  const auto code = end ? report_end(given.which, *end) : trouble("stop", end.error().message);
  if (job)
    if (const auto concluded = conclude(*job, code == exit_good); !concluded)
      return trouble("stop", concluded.error().message);
  return code;
}

int pause(const pause_arguments& given) {
  return with_driver("run pause", given.which, [&](const auto&, control_client& driver) {
    auto status = ask(driver, pause_request{});
    for (; status && given.waits; status = ask(driver, actors::status_question{})) {
      const auto state = state_of(*status);
      if (state == "paused")
        break;
      if (state == "stopping" || state == "ending")
        return refused("run pause", {errc::invalid_argument, "the run is " + state + " and is not paused any more"});
      std::this_thread::sleep_for(50ms);
    }
    if (!status)
      return refused("run pause", status.error());
    say(given.which, *status,
        given.waits ? fmt::format("paused after step {}", status->value("step", std::uint64_t{0}))
                    : "pausing after this step");
    return exit_good;
  });
}

int resume(const run_choice& given) {
  return with_driver("run resume", given, [&](const auto&, control_client& driver) {
    const auto status = ask(driver, resume_request{});
    if (!status)
      return refused("run resume", status.error());
    const auto before = state_of(*status);
    const auto was_paused = before == "paused" || before == "pausing";
    say(given, *status, was_paused ? "resumed" : "the run was not paused: it is " + printable(before));
    return was_paused ? exit_good : exit_found;
  });
}

int resize(const resize_arguments& given) {
  return with_driver("run resize", given.which, [&](const auto&, control_client& driver) {
    const auto status = ask(driver, resize_request{given.workers});
    if (!status)
      return refused("run resize", status.error());
    const auto now = status->contains("workers") ? (*status)["workers"].size() : 0;
    say(given.which, *status,
        fmt::format("the run is to have {} worker{}; it has {}", given.workers, given.workers == 1 ? "" : "s", now));
    return exit_good;
  });
}

int save_now(const save_arguments& given) {
  return with_driver("checkpoint now", given.which, [&](const runtime::run_access& run, control_client& driver) {
    if (const auto watched = ask(driver, actors::watch_request{}); !watched)
      return refused("checkpoint now", watched.error());
    const auto asked = ask(driver, checkpoint_request{});
    if (!asked)
      return refused("checkpoint now", asked.error());
    const auto after = asked->value("step", std::uint64_t{0});
    if (!given.waits) {
      say(given.which, *asked, "a checkpoint is taken after this step");
      return exit_good;
    }
    if (state_of(*asked) == "paused")
      fmt::print(stderr, "the run is paused: the checkpoint is taken after the first step when it goes on\n");
    const auto report = [&](std::uint64_t step, const std::string& path) {
      say(given.which, {{"step", step}, {"path", path}}, printable(path));
      return exit_good;
    };
    for (;;) {
      const auto event = driver.next_event(60s);
      if (!event)
        return trouble("checkpoint now", why_gone(run, event.error()));
      if (!*event)
        continue;
      const auto kind = (**event).value("event", std::string{});
      const auto step = (**event).value("step", std::uint64_t{0});
      if (kind == "checkpoint" && step > after)
        return report(step, (**event).value("path", std::string{}));
      if (kind == "checkpoint_failed" && step > after)
        return refused("checkpoint now", {errc::invalid_argument, (**event).value("cause", std::string{"it failed"})});
      if (kind != "ended")
        continue;
      const auto status = (**event).value("status", ordered::object());
      const auto last = status.value("latest_checkpoint", std::string{});
      if (state_of(status) != "failed" && !last.empty())
        return report(status.value("step", std::uint64_t{0}), last);
      return refused("checkpoint now", {errc::invalid_argument, "the run has ended first: " + end_text(status)});
    }
  });
}

} // namespace troupe::tool
