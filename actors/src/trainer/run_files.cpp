#include "trainer/run_files.hpp"

#include "down.hpp"
#include "orderly_end.hpp"
#include "trainer/control_desk.hpp"
#include "trainer/interface.hpp"
#include "trainer/output_display.hpp"
#include "trainer/run_description.hpp"
#include "trainer/run_events.hpp"
#include "trainer/run_mirroring.hpp"
#include "trainer/tensorboard_log.hpp"
#include "trainer/write_reports.hpp"

#include <troupe/actors/checkpoint_store.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/actors/run_directory.hpp>
#include <troupe/actors/run_lock.hpp>
#include <troupe/actors/run_name.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::actors {

namespace {

/// The digest of a checkpoint's state: a custom loop has its state in checkpoints only.
std::string state_in(const std::string& checkpoint) {
  if (checkpoint.empty())
    return {};
  auto stored = serialization::checkpoint::open(checkpoint);
  return stored ? serialization::state_sha256(*stored).value_or(std::string{}) : std::string{};
}

class run_files_state : public orderly_end<run_files::base> {
 public:
  run_files_state(caf::actor_config& cfg, run_files_config config)
      : orderly_end(cfg),
        what_(std::move(config)),
        mirror_(what_.config, what_.services, what_.hurry, teller()),
        reports_(teller()) {}

  behavior_type make_behavior() override {
    return {
        [this](const claim_directory&) { return claim(); },
        [this](const take_over_directory&) { return take_over(); },
        [this](const release_directory& message) { release(message); },
        [this](const write_journal& message) { return write(message.content); },
        [this](const find_state&) { return find_latest_state(); },
        [this](const part_address_request& request) { return part_address(request.host); },
        [this](const append_metrics& message) { append(message); },
        [this](const append_output& message) { append(message); },
        [this](append_event& message) {
          if (desk_)
            send(desk_, message);
          append(std::move(message));
        },
        [this](finish_run& message) { return finish(std::move(message)); },
    };
  }

  const char* name() const override { return "troupe.run_files"; }

 private:
  void let_go() override {
    end_control();
    end_writers();
    mirror_.leave();
    journal_.reset();
    tensorboard_.reset();
    directory_.reset();
    display_.reset();
  }

  caf::result<claimed_directory> claim() {
    if (auto opened = mirror_.open(); !opened)
      return to_caf(opened.error());
    if (auto decided = obey_first_start_once(); !decided)
      return to_caf(decided.error());
    auto directory = open_directory();
    if (!directory)
      return to_caf(directory.error());
    if (!directory->moved_aside().empty())
      tell({severity::note, fmt::format("the earlier run in {} is now {}", directory->root().string(),
                                        directory->moved_aside().string())});
    claimed_directory result;
    result.path = directory->root().string();
    if (auto ready = mirror_.prepare(*directory); !ready) {
      result.state = fail(std::move(ready.error()));
      return result;
    }
    result.state = begin_from(*directory);
    if (!result.state)
      return result;
    const auto before = described_in(directory->root());
    if (result.state->is_own())
      result.state->loaded_from = before.is_object() ? before.value("loaded_from", "") : std::string{};
    else if (const auto* other = std::get_if<beginning::other>(&result.state->source))
      // A restart without a checkpoint of its own begins with the same one, whatever the other run writes meanwhile.
      what_.config.load_checkpoint = other->directory;
    if (auto done = directory->write_run(describe_run(what_, *result.state, before)); !done) {
      result.state = fail(std::move(done.error()));
      return result;
    }
    if (auto done = mirror_.try_out(*directory, *result.state); !done) {
      result.state = fail(std::move(done.error()));
      return result;
    }
    // An existing journal describes a run that is over.
    journal_.emplace(system(), directory->root()).remove();
    begin_in(std::move(*directory), result);
    show_in_tensorboard(result.state->step);
    return result;
  }

  [[nodiscard]] expected<run_directory> open_directory() const {
    return run_directory::open(what_.config.run, {what_.hurry, [this](std::string text) {
                                                    tell({severity::note, std::move(text)});
                                                  }});
  }

  /// What a job's command says of an earlier run is meant for its first start. An engine that starts it again wants it
  /// to go on.
  [[nodiscard]] expected<void> obey_first_start_once() {
    auto& run = what_.config.run;
    if (run.job.submission.empty() || run.resume == resume_mode::automatic)
      return {};
    auto has_begun = is_of_earlier_start(described_in(run_directory::path_of(run)), run.job);
    if (!has_begun) {
      TROUPE_TRY(const auto at_mirror, mirror_.described());
      has_begun = is_of_earlier_start(at_mirror, run.job);
    }
    if (has_begun)
      run.resume = resume_mode::automatic;
    return {};
  }

  /// The directory is this run's from now on.
  void begin_in(run_directory directory, claimed_directory& result) {
    directory_ = std::move(directory);
    // The link is only a convenience.
    std::ignore = point_latest_to(directory_->root());
    for (auto& each : std::exchange(early_events_, {}))
      append(std::move(each));
    auto report = [trainer = what_.trainer,
                   mirror = mirror_.begin(what_.run, *directory_, *result.state)](const checkpoint_outcome& outcome) {
      if (const auto strong = mirror.lock(); strong && outcome.reason.code == errc::none)
        strong->on_saved(outcome.step);
      if (auto strong = trainer.lock())
        caf::anon_send(caf::actor_cast<trainer_interface>(strong), outcome);
    };
    store_ = spawn_checkpoint_store(
        system(), {what_.run, directory_->checkpoints(), retention(), std::move(report), mirror_.holds()});
    result.store = store_;
    result.warning = receive_parts();
    lend(*result.state);
    open_control();
  }

  /// From now on other processes can watch and steer the run.
  void open_control() {
    if (!what_.services.open_control_port)
      return;
    auto opened = what_.services.open_control_port(directory_->root());
    if (!opened)
      return tell(
          {severity::note, "this run cannot be watched or stopped from another terminal: " + opened.error().message});
    port_ = std::move(*opened);
    run_identification who{what_.run,
                           what_.config.run.name,
                           directory_->root().string(),
                           lock_host(),
                           static_cast<std::uint32_t>(::getpid()),
                           began_,
                           {}};
    if (const auto limit = what_.config.run.time_limit; limit.count() > 0)
      who.ends_by = began_ + limit;
    desk_ = spawn_control_desk(system(), {std::move(who), port_.get(), what_.trainer});
    port_->serve([desk = desk_](control_port::connection from, std::string line) {
      caf::anon_send(desk, control_line{from, std::move(line)});
    });
  }

  void end_control() {
    end_and_await(system(), std::exchange(desk_, nullptr));
    port_.reset();
  }

  caf::result<directory_taken_over> take_over() {
    directory_taken_over result;
    const auto path = run_directory::path_of(what_.config.run);
    if (!control_journal::exists(path))
      return result;
    if (const auto left = control_journal{system(), path}.read(); left && *left)
      result.predecessor = run_proof{(**left).run, (**left).secret};
    if (is_of_earlier_start(described_in(path), what_.config.run.job))
      what_.config.run.resume = resume_mode::automatic;
    const auto resume = what_.config.run.resume;
    if (resume == resume_mode::never || resume == resume_mode::restart ||
        what_.config.failure.driver_grace == std::chrono::milliseconds{0})
      return result;
    auto directory = open_directory();
    if (!directory)
      return to_caf(directory.error());
    auto& journal = journal_.emplace(system(), directory->root());
    auto found = journal.read();
    if (found && (!*found || (**found).state.members.empty()))
      return result;
    auto taken = found ? take_over(**found, journal) : fail(std::move(found.error()));
    // A disk error must not end workers that hold the run's state.
    if (!taken && taken.error().code == errc::io_error)
      return to_caf(taken.error());
    if (!taken) {
      result.refusal = std::move(taken.error().message);
      return result;
    }
    result.directory.path = directory->root().string();
    // The workers have the state. A checkpoint is needed only if they are lost later.
    auto state = find_starting_state(*directory, what_.config, identity_of(what_), abandoned_parts::keep);
    auto problem = state ? std::string{} : "a restart would fail: " + state.error().message;
    result.directory.state = state.value_or(starting_state{});
    add_history(*result.directory.state, directory->history_until(result.directory.state->step));
    result.predecessor.reset();
    what_.run = (**found).run;
    what_.secret = (**found).secret;
    begin_in(std::move(*directory), result.directory);
    if (const auto& job = what_.config.run.job; !job.engine.empty())
      if (auto described = described_in(directory_->root()); described.is_object()) {
        describe_job(described, job);
        // Only `troupe stop` reads it.
        std::ignore = directory_->write_run(described);
      }
    if (result.directory.warning.empty())
      result.directory.warning = std::move(problem);
    show_in_tensorboard(directory_->last_reported());
    directory_->continue_files();
    result.journal = std::move(**found);
    return result;
  }

  /// Claims the run for this driver.
  expected<void> take_over(run_journal& run, control_journal& journal) const {
    TROUPE_TRY(compare_with_journal(identity_of(what_), run.identity));
    run.claim = {run.claim.number + 1, serialization::random_hex(8)};
    // This driver may end before its next write, and the next driver must not reuse its worker ids.
    auto claimed = run;
    claimed.next_worker += spare_worker_ids;
    return journal.write(claimed);
  }

  void release(const release_directory& message) {
    end_control();
    end_writers();
    mirror_.leave();
    tensorboard_.reset();
    directory_.reset();
    journal_.reset();
    what_.run = message.run;
    what_.secret = message.secret;
  }

  caf::result<void> write(const run_journal& content) {
    if (!directory_ || !journal_)
      return caf::unit;
    auto copy = content;
    copy.identity = identity_of(what_);
    if (auto done = journal_->write(copy); !done)
      return to_caf(done.error());
    return caf::unit;
  }

  caf::result<starting_state> find_latest_state() {
    if (!directory_)
      return to_caf({errc::not_found, "the run's directory is not claimed"});
    auto found = begin_from(*directory_);
    if (!found)
      return to_caf(found.error());
    show_in_tensorboard(found->step);
    lend(*found);
    return std::move(*found);
  }

  [[nodiscard]] expected<starting_state> begin_from(run_directory& directory) {
    auto found = mirror_.find_start_in(directory, identity_of(what_));
    if (found) {
      TROUPE_TRY(const auto history, directory.rewind(found->step));
      add_history(*found, history);
    }
    return found;
  }

  static void add_history(starting_state& state, const metrics_history& history) {
    if (!state.is_own())
      return;
    state.seconds = history.seconds;
    for (const auto& [name, value] : history.metrics) {
      state.metrics[name] = value;
      state.metrics_from[name] = history.metrics_from.at(name);
    }
  }

  [[nodiscard]] serialization::retention_policy retention() const {
    const auto& how = what_.config.checkpoint;
    return {how.num_to_keep, how.score_attribute, how.score_order, how.num_best_to_keep};
  }

  /// Workers on the driver's machine write to its directory themselves. Returns a warning, or nothing.
  [[nodiscard]] std::string receive_parts() {
    const auto sync = what_.config.checkpoint.sync;
    const auto is_wanted =
        sync == checkpoint_sync::stream || (sync == checkpoint_sync::automatic && !what_.config.cluster.is_embedded());
    if (!is_wanted || !what_.services.receive_parts)
      return {};
    auto opened = what_.services.receive_parts(what_.run, what_.secret, directory_->checkpoints());
    if (!opened)
      return "checkpoints need a storage path that all hosts share: " + opened.error().message;
    parts_ = std::move(*opened);
    return {};
  }

  caf::result<std::string> part_address(const std::string& host) {
    if (!parts_)
      return std::string{};
    auto address = parts_->address_towards(host);
    if (!address)
      return to_caf(address.error());
    return std::move(*address);
  }

  /// Workers may read the checkpoint that they begin with.
  void lend(const starting_state& state) {
    if (const auto directory = state.directory(); parts_ && !directory.empty())
      parts_->lend(directory);
  }

  void append(const append_metrics& message) {
    append_mirror_events();
    if (!directory_)
      return;
    note(write_reports::kind::metrics, directory_->append(message.batch, message.pid));
    if (tensorboard_)
      note(write_reports::kind::tensorboard, tensorboard_->append(message.batch, std::chrono::system_clock::now()));
  }

  /// From now on TensorBoard shows the steps after this one.
  void show_in_tensorboard(step_id after) {
    if (what_.config.monitoring.tensorboard)
      tensorboard_.emplace(directory_->root() / "tensorboard", step_id{after.value + 1});
  }

  void append(const append_output& message) {
    if (!directory_)
      return;
    note(write_reports::kind::logs, directory_->append_output(message.output, message.rank));
    if (!display_ && what_.services.show_output)
      display_.emplace(system(), what_.services.show_output);
    if (display_)
      display_->show(message);
  }

  void append_mirror_events() {
    if (directory_)
      for (auto& each : mirror_.take_events())
        append({each.when, std::move(each.what)});
  }

  void append(append_event message) {
    if (directory_)
      return note(write_reports::kind::metrics, directory_->append_event(message.when, message.what));
    if (early_events_.size() < most_early_events)
      early_events_.push_back(std::move(message));
  }

  void note(write_reports::kind what, const expected<void>& outcome) {
    reports_.note(what, outcome, directory_->take_dropped());
  }

  /// Tells users from any thread.
  [[nodiscard]] std::function<void(severity, std::string)> teller() const {
    return [trainer = what_.trainer](severity how, std::string text) {
      if (auto strong = trainer.lock())
        caf::anon_send(caf::actor_cast<trainer_interface>(strong), file_notice{how, std::move(text)});
    };
  }
  void tell(file_notice notice) const { teller()(notice.how, std::move(notice.text)); }

  [[nodiscard]] finished_run finish(finish_run message) {
    auto& result = message.result;
    if (message.is_superseded) {
      let_go();
      return {std::move(result), {}};
    }
    if (result.status != run_status::failed && result.reason.code == errc::none && result.state_sha256.empty())
      result.state_sha256 = state_in(result.latest_checkpoint);
    // A run that was stopped while it claimed the directory has not begun: an earlier result stays.
    const auto has_begun = directory_ && !result.path.empty();
    if (has_begun) {
      append({std::chrono::system_clock::now(), event_of(result)});
      // Retry buffered lines once more.
      if (auto done = directory_->append({}, 0); !done)
        tell({severity::warning,
              "the last lines of metrics.jsonl, times.jsonl or ledger.jsonl are lost: " + done.error().message});
      reports_.report_dropped(directory_->take_dropped());
      finish_tensorboard(result);
    }
    // After this the directory's content is final.
    end_writers();
    if (has_begun) {
      result.mirror = mirror_.finish();
      append_mirror_events();
      describe_checkpoints(result);
    }
    auto written = has_begun ? directory_->write_result(result) : expected<void>{};
    if (has_begun)
      mirror_.finish_records();
    append_mirror_events();
    mirror_.leave();
    tell_watchers(result);
    end_control();
    if (journal_ && directory_)
      journal_->remove();
    journal_.reset();
    directory_.reset();
    display_.reset();
    // Remove a fresh run's directory if the run has not begun; this fails for a directory that is not empty.
    auto ignored = std::error_code{};
    if (!has_begun && !what_.config.run.name.empty())
      std::filesystem::remove(run_directory::path_of(what_.config.run), ignored);
    return {std::move(result), written ? error{} : std::move(written.error())};
  }

  /// An exit message would overtake the result.
  void tell_watchers(const run_result& result) {
    if (!desk_)
      return;
    auto self = caf::scoped_actor{system()};
    self->request(desk_, std::chrono::seconds{5}, run_over{result}).receive([] {}, [](const caf::error&) {});
  }

  void finish_tensorboard(const run_result& result) {
    if (!tensorboard_)
      return;
    if (auto done = tensorboard_->append(result, std::chrono::system_clock::now()); !done)
      tell({severity::warning, "the last records for TensorBoard are lost: " + done.error().message});
    if (const auto count = tensorboard_->take_dropped(); count > 0)
      tell({severity::warning,
            fmt::format("{} records for TensorBoard are lost, because the disk did not take them", count)});
    tensorboard_.reset();
  }

  void describe_checkpoints(run_result& result) const {
    const auto found = serialization::list_candidates(directory_->checkpoints());
    if (!found)
      return;
    const auto ranked = serialization::rank_by_score(*found, retention());
    for (const auto& each : *found) {
      kept_checkpoint kept{each.step,
                           (directory_->checkpoints() / serialization::checkpoint_name(each.step)).string(),
                           each.metrics,
                           {}};
      if (std::ranges::find(ranked, each.step) != ranked.end())
        kept.score = each.metrics.at(what_.config.checkpoint.score_attribute);
      result.checkpoints.push_back(std::move(kept));
    }
    if (!ranked.empty())
      result.best_checkpoint = *std::ranges::find(result.checkpoints, ranked.front(), &kept_checkpoint::step);
  }

  /// Returns once nothing writes checkpoints into the directory any more.
  void end_writers() {
    // End the receiver before the store, which removes incomplete checkpoints.
    parts_.reset();
    end_and_await(system(), std::exchange(store_, nullptr));
  }

  /// More than occur while the run waits for nodes.
  static constexpr std::size_t most_early_events = 1000;

  run_files_config what_;
  std::optional<run_directory> directory_;
  /// Events from before the directory was claimed.
  std::vector<append_event> early_events_;
  std::optional<control_journal> journal_;
  std::unique_ptr<part_receiver> parts_;
  checkpoint_store store_;
  run_mirroring mirror_;
  std::unique_ptr<control_port> port_;
  control_desk desk_;
  std::chrono::system_clock::time_point began_ = std::chrono::system_clock::now();
  std::optional<output_display> display_;
  std::optional<tensorboard_log> tensorboard_;
  write_reports reports_;
};

} // namespace

run_files spawn_run_files(caf::actor_system& system, run_files_config config) {
  return caf::actor_cast<run_files>(system.spawn<run_files_state, caf::detached>(std::move(config)));
}

} // namespace troupe::actors
