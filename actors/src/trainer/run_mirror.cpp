#include "trainer/run_mirror.hpp"

#include "trainer/kept_log.hpp"
#include "trainer/owner_record.hpp"

#include <troupe/actors/decisions/mirror_queue.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <variant>

namespace troupe::actors {

namespace fs = std::filesystem;
using serialization::retention_candidate;

namespace {

/// After so many, further failures are in events.jsonl only.
constexpr auto most_warnings = 10;

/// How long a device may take to notice that a copy is given up.
constexpr auto patience = std::chrono::seconds{5};

/// More events wait for the run's files only if those do not answer.
constexpr std::size_t most_events = 10'000;

/// Of this thread and of the processes that it starts. Not the lowest priorities of all: those may never get a turn.
void lower_priority() {
  constexpr auto niceness = 19;
  constexpr auto of_process = 1;
  constexpr auto best_effort_lowest = (2 << 13) | 7;
  // Linux changes only the calling thread.
  ::setpriority(PRIO_PROCESS, 0, niceness);
  ::syscall(SYS_ioprio_set, of_process, 0, best_effort_lowest);
}

} // namespace

/// What the thread shares with the others. It may outlive `run_mirror`.
class run_mirror::work {
 public:
  explicit work(settings how) : how_(std::move(how)), queue_(mirror_queue::settings{how_.keep}) {}

  /// The thread's.
  void run();

  void on_saved(step_id step) {
    change([&] { saved_.push_back(step); });
  }
  void on_records_changed() {
    change([&] { queue_.on_records_changed(); });
  }
  void finish(std::chrono::milliseconds longest, const std::stop_token& hurry) {
    auto lock = std::unique_lock{mutex_};
    queue_.on_end(clock::now());
    changed_.notify_all();
    std::ignore =
        changed_.wait_for(lock, hurry, longest, [this] { return has_ended_ || (saved_.empty() && queue_.is_done()); });
  }
  std::vector<event> take_events() {
    auto lock = std::lock_guard{mutex_};
    return std::exchange(events_, {});
  }
  [[nodiscard]] mirror_summary summary() const;

  /// Ends the thread's work. False if it is not over after `patience`.
  [[nodiscard]] bool end() {
    stop_.request_stop();
    auto lock = std::unique_lock{mutex_};
    changed_.notify_all();
    const auto has_ended = changed_.wait_for(lock, patience, [this] { return has_ended_; });
    how_.tell = nullptr;
    return has_ended;
  }

 private:
  using clock = mirror_queue::clock;

  template <class Change>
  void change(Change change) {
    {
      auto lock = std::lock_guard{mutex_};
      change();
    }
    changed_.notify_all();
  }

  // In the thread, without the lock.
  [[nodiscard]] expected<void> open() {
    if (storage_)
      return {};
    TROUPE_TRY(storage_, how_.open());
    return {};
  }
  /// Claims the place, or finds out whether this driver still has it. Fails with `errc::superseded` if another has.
  [[nodiscard]] expected<void> own();
  [[nodiscard]] retention_candidate candidate(step_id step) const;
  /// Also what the decision needs to know after `look`.
  [[nodiscard]] expected<void> perform(const mirror_job::look& job);
  [[nodiscard]] expected<void> perform(const mirror_job::upload& job);
  [[nodiscard]] expected<void> perform(const mirror_job::upload_records& job);
  [[nodiscard]] expected<void> perform(const mirror_job::remove& job);
  [[nodiscard]] static expected<void> perform(const mirror_job::wait&) { return {}; }

  // With the lock.
  void conclude(const mirror_action& job, const expected<void>& outcome, double seconds);
  void note_superseded();
  void note_success();
  void note_failure(const mirror_action& job, const error& reason, std::chrono::milliseconds delay);
  void record(nlohmann::ordered_json what) {
    if (events_.size() < most_events)
      events_.push_back({std::chrono::system_clock::now(), std::move(what)});
  }
  void tell(severity how, std::string text) {
    if (how_.tell)
      how_.tell(how, std::move(text));
  }

  [[nodiscard]] fs::path checkpoint(step_id step) const {
    return how_.root / "checkpoints" / serialization::checkpoint_name(step);
  }

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::stop_source stop_;
  settings how_;
  mirror_queue queue_;
  /// The thread's; null until it is opened.
  std::unique_ptr<mirror_storage> storage_;
  /// The thread's.
  bool has_claim_ = false;
  /// The thread's. Logs that this driver has not copied yet: the mirror's may tell more.
  std::vector<std::string> to_compare_{"events.jsonl", "metrics.jsonl"};
  /// Who has the mirror, if this driver has lost it.
  std::optional<mirror_owner> later_;
  /// Steps that `queue_` does not know yet: their manifests are read by the thread.
  std::vector<step_id> saved_;
  std::vector<event> events_;
  /// Of the last failure; nothing after a success.
  std::optional<error> problem_;
  int warnings_ = 0;
  bool has_ended_ = false;
};

expected<void> run_mirror::work::own() {
  const auto stop = stop_.get_token();
  TROUPE_TRY(auto found, read_owner(*storage_, how_.root, stop));
  if (!std::exchange(has_claim_, true))
    how_.owner.claim = next_claim(found, how_.owner.claim);
  switch (standing_of(how_.owner, found)) {
  case mirror_standing::owns:
    return {};
  case mirror_standing::takes:
    return write_owner(*storage_, how_.root, how_.owner, stop);
  case mirror_standing::superseded:
    break;
  }
  auto lock = std::lock_guard{mutex_};
  later_ = std::move(found);
  return fail(errc::superseded, "another driver has the mirror");
}

retention_candidate run_mirror::work::candidate(step_id step) const {
  retention_candidate result{step};
  if (how_.keep.score_attribute.empty())
    return result;
  if (auto content = serialization::read_manifest(checkpoint(step) / serialization::manifest_file_name))
    result.metrics = std::move(content->metrics);
  return result;
}

expected<void> run_mirror::work::perform(const mirror_job::look&) {
  const auto stop = stop_.get_token();
  TROUPE_TRY(const auto found, storage_->list(stop));
  std::vector<retention_candidate> complete;
  const auto copy = how_.root / ".mirrored-manifest";
  for (const auto step : found.complete) {
    complete.push_back({step});
    if (how_.keep.score_attribute.empty())
      continue;
    const auto name =
        fmt::format("checkpoints/{}/{}", serialization::checkpoint_name(step), serialization::manifest_file_name);
    TROUPE_TRY(storage_->fetch_file(name, copy, stop));
    if (auto content = serialization::read_manifest(copy))
      complete.back().metrics = std::move(content->metrics);
    auto ignored = std::error_code{};
    fs::remove(copy, ignored);
  }
  auto lock = std::lock_guard{mutex_};
  queue_.on_found(std::move(complete), found.incomplete);
  return {};
}

expected<void> run_mirror::work::perform(const mirror_job::upload& job) {
  const auto kept = how_.holds->take(job.step);
  const auto from = checkpoint(job.step);
  auto ignored = std::error_code{};
  if (!fs::exists(from / serialization::manifest_file_name, ignored))
    return fail(errc::not_found, fmt::format("{} has been removed", from.string()));
  return storage_->upload(from, stop_.get_token());
}

expected<void> run_mirror::work::perform(const mirror_job::upload_records&) {
  for (; !to_compare_.empty(); to_compare_.pop_back()) {
    const auto& name = to_compare_.back();
    const auto until = name == "metrics.jsonl" ? std::optional{how_.began_from} : std::nullopt;
    TROUPE_TRY(const auto kept, keep_mirrored_log(*storage_, how_.root, name, until, stop_.get_token()));
    if (kept.empty())
      continue;
    auto lock = std::lock_guard{mutex_};
    tell(severity::warning,
         fmt::format("{} at the mirror {} has lines that the run's directory lacks: it is kept there as {}", name,
                     how_.place, kept));
  }
  static const auto names = std::vector<std::string>{"run.json", "metrics.jsonl", "events.jsonl", "result.json"};
  return storage_->upload_files(how_.root, names, stop_.get_token());
}

expected<void> run_mirror::work::perform(const mirror_job::remove& job) {
  return storage_->remove(job.step, stop_.get_token());
}

void run_mirror::work::run() {
  lower_priority();
  const auto stop = stop_.get_token();
  auto lock = std::unique_lock{mutex_};
  while (!stop.stop_requested()) {
    if (const auto saved = saved_; !saved.empty()) {
      lock.unlock();
      std::vector<retention_candidate> candidates;
      for (const auto step : saved)
        candidates.push_back(candidate(step));
      lock.lock();
      for (auto& each : candidates)
        queue_.on_saved(std::move(each));
      saved_.erase(saved_.begin(), saved_.begin() + static_cast<std::ptrdiff_t>(saved.size()));
    }
    const auto job = queue_.next(clock::now());
    if (const auto* wait = std::get_if<mirror_job::wait>(&job)) {
      changed_.notify_all();
      if (!saved_.empty())
        continue;
      if (wait->until)
        changed_.wait_until(lock, *wait->until);
      else
        changed_.wait(lock);
      continue;
    }
    lock.unlock();
    const auto began = clock::now();
    auto outcome = open();
    if (outcome)
      outcome = own();
    if (outcome)
      outcome = std::visit([this](const auto& each) { return perform(each); }, job);
    const auto seconds = std::chrono::duration<double>(clock::now() - began).count();
    lock.lock();
    if (later_) {
      note_superseded();
      break;
    }
    conclude(job, outcome, seconds);
  }
  has_ended_ = true;
  changed_.notify_all();
}

void run_mirror::work::conclude(const mirror_action& job, const expected<void>& outcome, double seconds) {
  const auto* upload = std::get_if<mirror_job::upload>(&job);
  if (!outcome && upload != nullptr) {
    auto ignored = std::error_code{};
    // The run's retention was quicker. A later one follows.
    if (!fs::exists(checkpoint(upload->step) / serialization::manifest_file_name, ignored))
      return queue_.on_missing(upload->step);
  }
  if (!outcome) {
    const auto delay = queue_.on_failed(clock::now());
    if (outcome.error().code != errc::aborted)
      note_failure(job, outcome.error(), delay);
    return;
  }
  if (upload != nullptr) {
    queue_.on_uploaded();
    record({{"event", "mirrored"}, {"step", upload->step.value}, {"place", how_.place}, {"seconds", seconds}});
  } else if (std::holds_alternative<mirror_job::upload_records>(job))
    queue_.on_records_uploaded();
  else if (std::holds_alternative<mirror_job::remove>(job))
    queue_.on_removed();
  note_success();
}

void run_mirror::work::note_superseded() {
  record({{"event", "mirror_superseded"},
          {"place", how_.place},
          {"by", {{"host", later_->host}, {"pid", later_->pid}, {"since", later_->time}}}});
  tell(severity::warning, fmt::format("the mirror {} is now that of {}: this run goes on without a mirror. Stop one of "
                                      "the two drivers, or give one a mirror of its own",
                                      how_.place, describe(*later_)));
}

void run_mirror::work::note_success() {
  if (const auto problem = std::exchange(problem_, {}); problem && warnings_ <= most_warnings)
    tell(severity::note, fmt::format("the mirror {} can be used again ({})", how_.place, problem->message));
}

void run_mirror::work::note_failure(const mirror_action& job, const error& reason, std::chrono::milliseconds delay) {
  const auto* upload = std::get_if<mirror_job::upload>(&job);
  const auto what = upload != nullptr ? fmt::format("does not take the checkpoint of step {}", upload->step)
                    : std::holds_alternative<mirror_job::upload_records>(job)
                        ? std::string{"does not take the run's files"}
                    : std::holds_alternative<mirror_job::look>(job) ? std::string{"cannot be listed"}
                                                                    : std::string{"does not remove old checkpoints"};
  const auto seconds = std::chrono::duration<double>(delay).count();
  record({{"event", "mirror_failed"},
          {"what", what},
          {"error", {{"code", to_string(reason.code)}, {"message", reason.message}}},
          {"next_attempt_in_seconds", seconds}});
  // A device or network that is away stays away for a while.
  const auto is_new = !problem_;
  problem_ = reason;
  if (!is_new || ++warnings_ > most_warnings)
    return;
  tell(severity::warning, fmt::format("the mirror {} {}: {}. Training goes on; the next attempt is in {:.1f} s{}",
                                      how_.place, what, reason.message, seconds,
                                      warnings_ == most_warnings ? ". Further failures are in events.jsonl only" : ""));
}

mirror_summary run_mirror::work::summary() const {
  auto lock = std::lock_guard{mutex_};
  mirror_summary result;
  result.place = how_.place;
  for (const auto step : queue_.stored())
    result.checkpoints.push_back(step.value);
  result.superseded = queue_.superseded();
  result.failed_attempts = queue_.failed_attempts();
  if (later_) {
    result.reason = {errc::superseded, fmt::format("what this driver saves: it is now that of {}", describe(*later_))};
    return result;
  }
  auto newest = queue_.newest_waiting();
  for (const auto step : saved_)
    newest = std::max(newest.value_or(step), step);
  const auto why = problem_ ? problem_->message : std::string{"it is not copied yet"};
  const auto code = problem_ ? problem_->code : errc::timed_out;
  if (newest)
    result.reason = {code, fmt::format("the checkpoint of step {}: {}", *newest, why)};
  else if (queue_.lacks_records())
    result.reason = {code, fmt::format("the latest of the run's files: {}", why)};
  return result;
}

run_mirror::run_mirror(settings how)
    : work_(std::make_shared<work>(std::move(how))), thread_([shared = work_] { shared->run(); }) {
  pthread_setname_np(thread_.native_handle(), "mirror");
}

run_mirror::~run_mirror() {
  if (work_->end())
    thread_.join();
  else
    thread_.detach();
}

void run_mirror::on_saved(step_id step) {
  work_->on_saved(step);
}

void run_mirror::finish(std::chrono::milliseconds longest, const std::stop_token& hurry) {
  work_->finish(longest, hurry);
}

void run_mirror::on_records_changed() {
  work_->on_records_changed();
}

std::vector<run_mirror::event> run_mirror::take_events() {
  return work_->take_events();
}

mirror_summary run_mirror::summary() const {
  return work_->summary();
}

} // namespace troupe::actors
