#include "trainer/run_mirroring.hpp"

#include "trainer/owner_record.hpp"

#include <troupe/actors/decisions/run_status_model.hpp>
#include <troupe/actors/run_lock.hpp>
#include <troupe/config.hpp>
#include <troupe/mirror_place.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::actors {

namespace {

/// How long users are not told that a run waits.
constexpr auto silent_wait = std::chrono::milliseconds{2'000};

/// How long the last few files may take at least.
constexpr auto records_wait = std::chrono::milliseconds{30'000};

} // namespace

run_mirroring::run_mirroring(const trainer_config& config, const trainer_services& services, std::stop_token hurry,
                             std::function<void(severity, std::string)> tell)
    : config_(&config), services_(&services), hurry_(std::move(hurry)), tell_(std::move(tell)) {}

std::string run_mirroring::place() const {
  return join_mirror_place(config_->checkpoint.mirror.to, config_->run.name);
}

expected<std::unique_ptr<mirror_storage>> run_mirroring::open_place(const std::string& place) const {
  if (!services_->open_mirror)
    return fail(errc::invalid_argument, "this trainer cannot open mirrors");
  return services_->open_mirror(place, config_->checkpoint.mirror.rclone);
}

start_sources run_mirroring::sources() const {
  return {storage_.get(), [this](const std::string& place) { return open_place(place); }, hurry_, tell_};
}

serialization::retention_policy run_mirroring::retention() const {
  const auto& how = config_->checkpoint;
  return {how.num_to_keep, how.score_attribute, how.score_order, how.num_best_to_keep};
}

expected<void> run_mirroring::open() {
  if (!is_wanted())
    return {};
  TROUPE_TRY(storage_, open_place(place()));
  return {};
}

expected<nlohmann::json> run_mirroring::described() const {
  if (!storage_)
    return nlohmann::json{};
  auto ignored = std::error_code{};
  const auto copy = std::filesystem::temp_directory_path(ignored) / ("troupe-" + serialization::random_hex(8));
  const auto fetched = storage_->fetch_file("run.json", copy, hurry_);
  auto in = std::ifstream{copy};
  auto result = nlohmann::json::parse(in, nullptr, false);
  std::filesystem::remove(copy, ignored);
  if (!fetched && fetched.error().code != errc::not_found)
    return fail(fetched.error().code, fmt::format("whether this job has begun before is said at its mirror, which "
                                                  "cannot be read: {}",
                                                  fetched.error().message));
  return result;
}

expected<void> run_mirroring::prepare(const run_directory& directory) {
  if (!storage_)
    return {};
  if (config_->run.resume == resume_mode::restart) {
    TROUPE_TRY(const auto owner, read_owner(*storage_, directory.root(), hurry_));
    earlier_claim_ = owner ? owner->claim : 0;
  }
  return prepare_mirror(*storage_, directory, config_->run, sources());
}

expected<starting_state> run_mirroring::find_start_in(const run_directory& directory, const run_identity& identity) {
  auto found = find_start(directory, *config_, identity, sources());
  // A restart: the mirror is asked only for what the directory has lost.
  if (!running_ || (found && found->is_own()) || running_->summary().checkpoints.empty())
    return found;
  TROUPE_TRY(const auto opened, open_place(place()));
  auto again = sources();
  again.mirror = opened.get();
  again.is_restart = true;
  return find_start(directory, *config_, identity, again);
}

expected<void> run_mirroring::try_out(const run_directory& directory, const starting_state& state) {
  if (!storage_)
    return {};
  auto done = storage_->upload_files(directory.root(), {"run.json"}, hurry_);
  if (done || !state.is_own())
    return done;
  tell_(severity::warning, fmt::format("the mirror {} does not take files now: {}. The run goes on, and tries again",
                                       storage_->place(), done.error().message));
  return {};
}

std::weak_ptr<run_mirror> run_mirroring::begin(const run_id& run, const run_directory& directory,
                                               const starting_state& state) {
  storage_.reset();
  if (!is_wanted())
    return {};
  checkpoints_ = directory.checkpoints();
  auto keep = retention();
  keep.num_to_keep = config_->checkpoint.mirror.num_to_keep;
  // The thread may outlive this.
  auto open = [open = services_->open_mirror, place = place(), rclone = config_->checkpoint.mirror.rclone] {
    return open(place, rclone);
  };
  mirror_owner own{run.value,
                   earlier_claim_,
                   serialization::random_hex(8),
                   lock_host(),
                   static_cast<std::uint32_t>(::getpid()),
                   utc_text(std::chrono::system_clock::now())};
  running_ = std::make_shared<run_mirror>(run_mirror::settings{
      place(), std::move(open), directory.root(), std::move(keep), holds_, tell_, std::move(own), state.step});
  // An earlier driver may have ended before it was copied.
  if (state.is_own())
    running_->on_saved(state.step);
  return running_;
}

std::vector<run_mirror::event> run_mirroring::take_events() {
  return running_ ? running_->take_events() : std::vector<run_mirror::event>{};
}

mirror_summary run_mirroring::finish() {
  if (!running_)
    return {};
  const auto longest = config_->checkpoint.mirror.final_wait;
  deadline_ = std::chrono::steady_clock::now() + longest;
  running_->finish(std::min(longest, silent_wait), hurry_);
  auto summary = running_->summary();
  const auto may_come = summary.reason.code != errc::none && summary.reason.code != errc::superseded;
  if (may_come && longest > silent_wait && !hurry_.stop_requested()) {
    tell_(severity::note,
          fmt::format("the run has ended, and waits for its mirror {}, for up to {} s: it lacks {}. A "
                      "second Ctrl-C ends the wait.",
                      summary.place, std::chrono::ceil<std::chrono::seconds>(longest).count(), summary.reason.message));
    running_->finish(longest - silent_wait, hurry_);
    summary = running_->summary();
  }
  // The mirror reads none any more, or will not get it.
  std::ignore = serialization::apply_retention(checkpoints_, retention(), holds_->held());
  return summary;
}

void run_mirroring::finish_records() {
  if (!running_)
    return;
  running_->on_records_changed();
  // They are small, and say what became of the run.
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
  running_->finish(std::max(left, std::min(config_->checkpoint.mirror.final_wait, records_wait)), hurry_);
  // Who has lost it has said so.
  if (const auto summary = running_->summary();
      summary.reason.code != errc::none && summary.reason.code != errc::superseded)
    tell_(severity::warning, fmt::format("the mirror {} lacks {}", summary.place, summary.reason.message));
}

void run_mirroring::leave() {
  storage_.reset();
  running_.reset();
}

} // namespace troupe::actors
