#include "model_keeper.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace troupe::serving {

namespace fs = std::filesystem;

namespace {

/// The directory whose checkpoints `path` means; empty if it is a checkpoint itself.
expected<fs::path> followed_directory(const checkpoint_models& models) {
  auto code = std::error_code{};
  if (!fs::exists(models.path, code)) {
    if (models.absent == absent_run::wait)
      return models.path / "checkpoints";
    return fail(errc::not_found, fmt::format("{} does not exist: name a checkpoint, or a run's directory such as "
                                             "runs/latest",
                                             models.path.string()));
  }
  // A link such as runs/latest leads elsewhere when another run starts.
  const auto path = fs::canonical(models.path, code);
  if (code)
    return fail(errc::io_error, fmt::format("{}: {}", models.path.string(), code.message()));
  if (serialization::parse_checkpoint_name(path.filename().string()))
    return fs::path{};
  if (path.filename() == "checkpoints")
    return path;
  if (fs::is_directory(path / "checkpoints", code) || models.absent == absent_run::wait)
    return path / "checkpoints";
  // A checkpoint whose directory has another name; opening it says what is wrong with any other.
  return fs::path{};
}

} // namespace

model_keeper::model_keeper(const server_config& config, model_origin origin, dispatcher& queue, metrics& counts,
                           notice_function notice)
    : name_(config.name),
      replicas_(config.replicas),
      max_rows_(config.batching.max_rows),
      origin_(std::move(origin)),
      queue_(queue),
      counts_(counts),
      notice_(std::move(notice)) {}

model_keeper::~model_keeper() {
  stop();
}

expected<void> model_keeper::start() {
  auto every = std::chrono::milliseconds{0};
  if (auto* models = std::get_if<checkpoint_models>(&origin_)) {
    TROUPE_TRY(followed_, followed_directory(*models));
    every = models->poll_every;
  }
  TROUPE_TRY(replace(reload_reach::any));
  if (queue_.model() == nullptr)
    notice_(fmt::format("there is no checkpoint in {} yet: waiting for the first", followed_.string()));
  if (!followed_.empty())
    watching_ = std::thread{[this, every] { watch(every); }};
  return {};
}

expected<reload_report> model_keeper::reload() {
  return replace(reload_reach::any);
}

void model_keeper::check_for_newer() {
  {
    const auto lock = std::lock_guard{watch_mutex_};
    if (watch_state_ == watch_state::waiting)
      watch_state_ = watch_state::asked;
  }
  watch_changed_.notify_one();
}

void model_keeper::stop() {
  {
    const auto lock = std::lock_guard{watch_mutex_};
    watch_state_ = watch_state::stopped;
  }
  watch_changed_.notify_one();
  if (watching_.joinable())
    watching_.join();
}

void model_keeper::watch(std::chrono::milliseconds every) {
  auto lock = std::unique_lock{watch_mutex_};
  while (watch_state_ != watch_state::stopped) {
    const auto is_due = [this] { return watch_state_ != watch_state::waiting; };
    if (every.count() > 0)
      watch_changed_.wait_for(lock, every, is_due);
    else
      watch_changed_.wait(lock, is_due);
    if (watch_state_ == watch_state::stopped)
      return;
    watch_state_ = watch_state::waiting;
    lock.unlock();
    // What fails has been reported.
    (void)replace(reload_reach::newer);
    lock.lock();
  }
}

expected<reload_report> model_keeper::replace(reload_reach reach) {
  const auto lock = std::lock_guard{loading_};
  if (const auto* own = std::get_if<program_model>(&origin_)) {
    auto result = take_over(own->make, model_face{});
    if (!result)
      return fail(std::move(result.error()));
    return report(true);
  }
  const auto& models = std::get<checkpoint_models>(origin_);
  if (!followed_.empty())
    return take_newest(models, reach);
  // One checkpoint does not change.
  if (queue_.model() != nullptr)
    return report(false);
  TROUPE_TRY(take_checkpoint(models, models.path));
  return report(true);
}

expected<reload_report> model_keeper::take_newest(const checkpoint_models& models, reload_reach reach) {
  if (reach == reload_reach::any)
    refused_.clear();
  auto tried = refused_;
  std::optional<error> trouble;
  for (;;) {
    TROUPE_TRY(auto all, serialization::list_checkpoints(followed_));
    const auto served = queue_.model();
    const auto choice = choose_checkpoint(
        all, served == nullptr ? std::nullopt : std::optional{step_id{served->label.step}}, tried, reach);
    if (!choice) {
      // With an older one served instead, the newest is still what was asked for.
      if (trouble && reach == reload_reach::any)
        return fail(std::move(*trouble));
      return report(false);
    }
    auto result = take_checkpoint(models, choice->path);
    if (result)
      return report(true);
    refuse(choice->path, result.error());
    tried.insert(choice->path);
    if (!trouble)
      trouble = std::move(result.error());
  }
}

void model_keeper::refuse(const fs::path& path, const error& reason) {
  counts_.count_reload(false);
  if (reason.code == errc::damaged || reason.code == errc::mismatch)
    refused_.insert(path);
  if (!reported_.insert(path).second)
    return;
  const auto served = queue_.model();
  notice_(fmt::format("warning: {} cannot be served: {}; {}", path.string(), reason.message,
                      served == nullptr ? "no model is served" : fmt::format("step {} stays", served->label.step)));
}

expected<void> model_keeper::take_checkpoint(const checkpoint_models& models, const fs::path& path) {
  TROUPE_TRY(auto source, serialization::checkpoint::open(path));
  TROUPE_TRY(source.verify());
  const auto step = source.content().step.value;
  // The replicas load in threads of their own, and all before this returns.
  auto face = model_face{};
  face.label.step = step;
  face.checkpoint = source.directory();
  return take_over([&] { return models.load(source); }, std::move(face));
}

expected<void> model_keeper::take_over(replica_group::make_model make, model_face face) {
  auto group = std::make_unique<replica_group>(replicas_, std::move(make), max_rows_, queue_, counts_);
  TROUPE_TRY(auto loaded, group->await_loaded());
  TROUPE_TRY(check_same_face(loaded));
  face.label.name = name_;
  face.library = std::move(loaded.library);
  face.inputs = std::move(loaded.inputs);
  face.outputs = std::move(loaded.outputs);
  face.version = ++last_version_;
  const auto shared = std::make_shared<const model_face>(std::move(face));
  const auto is_first = group_ == nullptr;
  queue_.serve(shared);
  group->start(shared);
  // Ends once the replicas of the model before have finished the batches that they have.
  group_ = std::move(group);
  if (!is_first)
    counts_.count_reload(true);
  notice_(shared->checkpoint.empty()
              ? fmt::format("serving model {} of the program", shared->version)
              : fmt::format("serving step {} of {}", shared->label.step, shared->checkpoint.string()));
  return {};
}

expected<void> model_keeper::check_same_face(const model_face& face) const {
  const auto served = queue_.model();
  if (served == nullptr ||
      (std::ranges::equal(served->inputs->columns(), face.inputs->columns()) && served->outputs == face.outputs))
    return {};
  return fail(errc::mismatch, "it has other inputs or outputs than the model that is served: restart the server");
}

reload_report model_keeper::report(bool changed) const {
  const auto served = queue_.model();
  if (served == nullptr)
    return {};
  return {changed, served->label.step, served->checkpoint};
}

} // namespace troupe::serving
