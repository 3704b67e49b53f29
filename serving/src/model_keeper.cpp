#include "model_keeper.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serving/model_path.hpp>

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <system_error>
#include <utility>

namespace troupe::serving {

namespace fs = std::filesystem;

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
  if (loading_.joinable())
    loading_.join();
}

expected<void> model_keeper::start() {
  auto every = std::chrono::milliseconds{0};
  if (auto* models = std::get_if<checkpoint_models>(&origin_)) {
    TROUPE_TRY(followed_, followed_directory(models->path, models->absent));
    every = followed_.empty() ? every : models->poll_every;
  }
  const auto first = add_job(reload_reach::any, false);
  try {
    loading_ = std::thread{[this, every] { work(every); }};
  } catch (const std::system_error& x) {
    return fail(errc::unsatisfiable, fmt::format("no thread to load models: {}", x.what()));
  }
  TROUPE_TRY(await(first, time_point::max()));
  if (queue_.model() == nullptr)
    notice_(fmt::format("there is no checkpoint in {} yet: waiting for the first", followed_.string()));
  return {};
}

expected<reload_report> model_keeper::reload(time_point deadline) {
  return await(add_job(reload_reach::any, false), deadline);
}

void model_keeper::request_reload() {
  (void)add_job(reload_reach::any, true);
}

void model_keeper::check_for_newer() {
  (void)add_job(reload_reach::newer, false);
}

void model_keeper::stop() {
  {
    const auto lock = std::lock_guard{mutex_};
    is_stopped_ = true;
  }
  changed_.notify_all();
}

model_keeper::job_ptr model_keeper::add_job(reload_reach reach, bool is_told) {
  const auto lock = std::lock_guard{mutex_};
  if (waiting_ == nullptr)
    waiting_ = std::make_shared<job>();
  if (reach == reload_reach::any)
    waiting_->reach = reach;
  waiting_->is_told = waiting_->is_told || is_told;
  changed_.notify_all();
  return waiting_;
}

expected<reload_report> model_keeper::await(const job_ptr& wanted, time_point deadline) {
  auto lock = std::unique_lock{mutex_};
  const auto is_over = [&] { return wanted->outcome || is_stopped_; };
  if (deadline == time_point::max())
    changed_.wait(lock, is_over);
  else
    changed_.wait_until(lock, deadline, is_over);
  if (wanted->outcome)
    return *wanted->outcome;
  return is_stopped_ ? fail(errc::stopped, "the server stops")
                     : fail(errc::timed_out, "the model is still being loaded, and will be served then");
}

void model_keeper::work(std::chrono::milliseconds every) noexcept {
  auto lock = std::unique_lock{mutex_};
  while (const auto now = next_job(lock, every)) {
    lock.unlock();
    auto outcome = replace_safely(now->reach);
    lock.lock();
    now->outcome = std::move(outcome);
    const auto is_told = now->is_told && !is_stopped_;
    lock.unlock();
    changed_.notify_all();
    if (is_told)
      tell(*now);
    lock.lock();
  }
}

model_keeper::job_ptr model_keeper::next_job(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds every) {
  const auto is_due = [this] { return waiting_ != nullptr || is_stopped_; };
  if (every.count() > 0)
    changed_.wait_until(lock, after(std::chrono::steady_clock::now(), every), is_due);
  else
    changed_.wait(lock, is_due);
  if (is_stopped_)
    return nullptr;
  return waiting_ == nullptr ? std::make_shared<job>() : std::exchange(waiting_, nullptr);
}

void model_keeper::tell(const job& done) const {
  if (!*done.outcome)
    notice_(done.outcome->error().message);
  else if (!(*done.outcome)->changed)
    notice_(fmt::format("there is nothing newer than step {}", (*done.outcome)->step));
}

expected<reload_report> model_keeper::replace_safely(reload_reach reach) {
  try {
    return replace(reach);
  } catch (const std::exception& x) {
    return fail(errc::internal, fmt::format("a model could not be loaded: {}", x.what()));
  } catch (...) {
    return fail(errc::internal, "a model could not be loaded");
  }
}

expected<reload_report> model_keeper::replace(reload_reach reach) {
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
    refused_.retry();
  auto tried = refused_.at(std::chrono::steady_clock::now());
  std::optional<error> trouble;
  for (;;) {
    auto all = serialization::list_checkpoints(followed_);
    if (!all) {
      if (std::exchange(list_trouble_, all.error().message) != all.error().message)
        notice_(fmt::format("warning: checkpoints are not found: {}", all.error().message));
      return fail(std::move(all.error()));
    }
    list_trouble_.clear();
    refused_.keep(*all);
    const auto served = queue_.model();
    const auto choice = choose_checkpoint(
        *all, served == nullptr ? std::nullopt : std::optional{step_id{served->label.step}}, tried, reach);
    if (!choice) {
      // With an older one served instead, the newest is still what was asked for.
      if (trouble && reach == reload_reach::any)
        return fail(std::move(*trouble));
      return report(false);
    }
    auto result = take_checkpoint(models, choice->path);
    if (result)
      return report(true);
    if (result.error().code == errc::stopped)
      return fail(std::move(result.error()));
    refuse(choice->path, result.error());
    tried.insert(choice->path);
    if (!trouble)
      trouble = std::move(result.error());
  }
}

void model_keeper::refuse(const fs::path& path, const error& reason) {
  counts_.count_reload(false);
  const auto is_hopeless = reason.code == errc::damaged || reason.code == errc::mismatch;
  if (!refused_.add(path, is_hopeless ? refused_checkpoints::outlook::hopeless : refused_checkpoints::outlook::may_pass,
                    std::chrono::steady_clock::now()))
    return;
  const auto served = queue_.model();
  notice_(fmt::format("warning: {} cannot be served: {}; {}", path.string(), reason.message,
                      served == nullptr ? "no model is served" : fmt::format("step {} stays", served->label.step)));
}

expected<void> model_keeper::take_checkpoint(const checkpoint_models& models, const fs::path& path) {
  TROUPE_TRY(auto opened, serialization::checkpoint::open(path));
  TROUPE_TRY(opened.verify());
  // The replicas load in threads of their own, and all before this returns; a lost one loads again.
  const auto source = std::make_shared<const serialization::checkpoint>(std::move(opened));
  auto face = model_face{};
  face.label.step = source->content().step.value;
  face.checkpoint = source->directory();
  return take_over([load = models.load, source] { return load(*source); }, std::move(face));
}

expected<void> model_keeper::take_over(replica_group::make_model make, model_face face) {
  auto group = std::make_unique<replica_group>(replicas_, std::move(make), max_rows_, queue_, counts_);
  TROUPE_TRY(auto loaded, group->await_loaded());
  TROUPE_TRY(check_same_face(loaded));
  if (is_stopped_)
    return fail(errc::stopped, "the server stops");
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
