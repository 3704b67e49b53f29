#include "worker/session.hpp"
#include "net/part_stream.hpp"
#include "worker/nccl_interface.hpp"

#include <troupe/actors/decisions/transport_choice.hpp>
#include <troupe/actors/run_directory.hpp>
#include <troupe/collectives/device_offer.hpp>
#include <troupe/collectives/gloo_communicator.hpp>
#include <troupe/collectives/hierarchical_communicator.hpp>
#include <troupe/collectives/shm_communicator.hpp>
#include <troupe/collectives/staged_device_group.hpp>
#include <troupe/runtime/fingerprint.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <tuple>

namespace troupe {

namespace {

using namespace std::chrono_literals;

/// How long a rank waits for a command that another rank has already seen.
constexpr auto command_limit = 10s;

/// Long enough to be none, and short enough to be added to a point in time.
constexpr auto no_deadline = std::chrono::milliseconds{std::chrono::hours{24 * 365}};

/// Exchanges of groups of GPUs are numbered from here; those below belong to staging groups.
constexpr auto first_gpu_exchange = std::uint64_t{1} << 63;

} // namespace

train_context::impl::impl(begin_training begin, runtime::driver_client& link)
    : begin_(std::move(begin)),
      config_(nlohmann::json::parse(begin_.configuration)),
      options_(nlohmann::json::parse(begin_.options)),
      run_directory_(begin_.run_directory),
      link_(link),
      part_writer_(begin_.reuse_unchanged ? serialization::reuse_policy{} : serialization::reuse_policy::none()),
      generation_(begin_.place.generation) {
  metrics_batch head;
  has_state_ = begin_.place.generation != generation_id{};
  head.run = begin_.run;
  head.worker = begin_.worker;
  head.rank = begin_.place.rank;
  pusher_ = std::make_unique<runtime::metrics_pusher>(link_, std::move(head));
  snapshots_ = std::make_unique<runtime::snapshot_writer>(checkpoint_destination(), begin_.checkpoints_in_flight);
}

void train_context::impl::prepare() {
  choose_sync();
  // A joiner goes as far as its first loop by itself.
  if (!has_state_) {
    restored_step_ = begin_.restored_step.value;
    step_ = committed_ = reduced_ = begin_.restored_step;
    return;
  }
  open_checkpoint();
  word_.restart(begin_.place.generation, committed_);
  try {
    form_communicator();
  } catch (const exception& x) {
    if (!may_form_again(x.reason()))
      throw;
    regroup(x.reason());
  }
}

void train_context::impl::open_checkpoint() {
  if (begin_.restore_from.empty())
    return;
  if (part_stream_) {
    // A connection of its own: the writer's thread has the other.
    auto stream = value_or_throw(link_.open_part_stream(begin_.part_stream));
    auto source = value_or_throw(stream->open_source());
    if (begin_.restore_step)
      restored_step_ = source->content().step.value;
    step_ = committed_ = reduced_ = step_id{restored_step_};
    return state_.restore_from(std::move(source), begin_.load);
  }
  auto source = std::make_shared<const serialization::checkpoint>(
      value_or_throw(serialization::checkpoint::open(begin_.restore_from)));
  if (begin_.restore_step)
    restored_step_ = source->content().step.value;
  step_ = committed_ = reduced_ = step_id{restored_step_};
  state_.restore_from(std::move(source), begin_.load);
}

void train_context::impl::form_communicator() {
  {
    auto lock = std::lock_guard{communicator_mutex_};
    if (aborted_ >= generation_)
      throw exception{*abort_reason_};
  }
  auto formed = make_communicator();
  auto lock = std::lock_guard{communicator_mutex_};
  communicator_ = std::move(formed);
  if (aborted_ >= generation_)
    communicator_->abort(*abort_reason_);
}

/// A rank that waits for a slow one does not end the wait by itself, where the driver tells who is at fault.
std::chrono::milliseconds train_context::impl::group_deadline() const {
  return begin_.driver_ends_waits ? no_deadline : std::chrono::milliseconds{begin_.collective_timeout_ms};
}

std::unique_ptr<collectives::communicator> train_context::impl::make_communicator() {
  collectives::gloo_options place;
  place.rank = begin_.place.rank;
  place.world_size = begin_.place.world_size;
  place.generation = begin_.place.generation;
  place.host = begin_.place.data_address;
  place.deadline = group_deadline();
  place.cancelled = cancel_forming_.get_token();
  auto addresses = [this](std::string mine) -> expected<std::vector<std::string>> {
    auto all = link_.exchange({begin_.run, begin_.place.generation, 0, begin_.place.rank, std::move(mine)});
    if (!all)
      return fail(std::move(all.error()));
    return std::move(all->blobs);
  };
  auto descriptors = [this](std::span<const int> mine) {
    return link_.exchange_descriptors(
        {begin_.place.generation, begin_.place.local_rank, begin_.place.local_world_size, cancel_forming_.get_token()},
        mine);
  };
  auto uses_memory =
      begin_.place.transport == transport_kind::shm || begin_.place.transport == transport_kind::hierarchical;
  if (uses_memory && !pool_)
    pool_ = value_or_throw(collectives::shared_pool::make());
  const auto has_gpus = begin_.gpus > 0;
  switch (begin_.place.transport) {
  case transport_kind::self:
    return collectives::make_self_communicator(begin_.place.generation);
  case transport_kind::gloo:
    return value_or_throw(collectives::make_gloo_communicator(std::move(place), addresses));
  case transport_kind::shm:
    return value_or_throw(collectives::make_shm_communicator(
        {begin_.place.rank, begin_.place.world_size, begin_.place.generation, place.deadline, pool_, {}, has_gpus},
        descriptors));
  case transport_kind::hierarchical:
    return value_or_throw(collectives::make_hierarchical_communicator(
        {std::move(place), begin_.place.nodes, pool_, has_gpus}, addresses, descriptors));
  }
  throw exception{errc::internal, "no such transport"};
}

train_context::impl::opened_gpu& train_context::impl::gpu() {
  if (gpu_)
    return *gpu_;
  if (begin_.gpus == 0)
    throw exception{errc::invalid_argument, "this worker has no GPU: set scaling.use_gpu, or "
                                            "scaling.resources_per_worker.gpus"};
  opened_gpu opened;
  opened.device = value_or_throw(open_gpu_());
  opened.stream = value_or_throw(collectives::device_stream::make(opened.device));
  opened.copier = value_or_throw(runtime::device_copier::open(opened.device, opened.stream.handle()));
  gpu_ = std::move(opened);
  return *gpu_;
}

collectives::device_group& train_context::impl::gpu_group() {
  if (gpu_group_)
    return *gpu_group_;
  std::ignore = group();
  auto formed = make_gpu_group();
  formed->set_deadline(group_deadline());
  auto lock = std::lock_guard{communicator_mutex_};
  gpu_group_ = std::move(formed);
  if (aborted_ >= generation_)
    gpu_group_->abort(*abort_reason_);
  return *gpu_group_;
}

bool train_context::impl::is_gpu_group(const collectives::device_group& group) {
  auto lock = std::lock_guard{communicator_mutex_};
  return gpu_group_.get() == &group;
}

void train_context::impl::give_up_groups(const error& reason) noexcept {
  auto lock = std::lock_guard{communicator_mutex_};
  if (communicator_)
    communicator_->abort(reason);
  if (gpu_group_)
    gpu_group_->abort(reason);
}

collectives::hang_policy train_context::impl::on_hang() {
  collectives::hang_policy result;
  result.request_exit = [this, generation = begin_.place.generation]() -> expected<collectives::hang_policy::permit> {
    auto granted = link_.request_exit({begin_.run, generation, begin_.worker, "the GPU does not let go of its group"});
    if (!granted)
      return fail(std::move(granted.error()));
    return collectives::hang_policy::permit{granted->is_last_holder};
  };
  result.withdraw_exit = [this] { link_.withdraw({begin_.run, begin_.worker}); };
  result.copy_out = [this] { return save_last_copy(); };
  return result;
}

expected<std::string> train_context::impl::find_nccl() {
  auto listens = runtime::set_nccl_interface(begin_.place.data_address, nccl_interface_);
  if (!listens) {
    std::fprintf(stderr, "NCCL is not used: %s\n", listens.error().message.c_str());
    return fail(std::move(listens.error()));
  }
  return nccl_.find();
}

/// All ranks tell what they have, and choose alike.
std::unique_ptr<collectives::device_group> train_context::impl::make_gpu_group() {
  // The group before may end here.
  const auto rests = rest();
  const auto& place = begin_.place;
  auto& device = gpu().device;
  // One that nothing is made of is over: ranks that it had are not there any more, to leave it together.
  struct leftover {
    ~leftover() {
      if (group)
        group->abort({errc::stale_generation, "another group has taken its place"});
    }
    std::unique_ptr<collectives::device_group> group;
  } before{std::move(gpu_predecessor_)};
  if (place.world_size == 1)
    return value_or_throw(collectives::make_self_device_group(device, place.generation, on_hang()));
  auto exchange = [this](std::string mine) -> expected<std::vector<std::string>> {
    const auto number = first_gpu_exchange + gpu_exchanges_++;
    auto all = link_.exchange({begin_.run, begin_.place.generation, number, begin_.place.rank, std::move(mine)});
    if (!all)
      return fail(std::move(all.error()));
    return std::move(all->blobs);
  };
  auto nccl = find_nccl();
  auto offers = value_or_throw(collectives::exchange_device_offers(
      place.generation, {device->info().uuid, nccl ? *nccl : std::string{}}, exchange));
  auto choice = value_or_throw(actors::choose_device_transport(begin_.gradients_on_gpu, offers));
  if (place.rank == rank_id{})
    std::fprintf(stderr, "gradients of GPUs go over %s\n", choice.reason.c_str());
  if (choice.transport == actors::device_transport::staged)
    return value_or_throw(collectives::make_staged_device_group(device, *communicator_, on_hang()));
  collectives::nccl_options options;
  options.rank = place.rank;
  options.world_size = place.world_size;
  options.generation = place.generation;
  options.deadline = group_deadline();
  options.cancelled = cancel_forming_.get_token();
  options.predecessor = std::move(before.group);
  options.on_hang = on_hang();
  options.note = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  return value_or_throw(nccl_.make_group(device, std::move(options), exchange));
}

std::string train_context::impl::describe() {
  auto lock = std::lock_guard{communicator_mutex_};
  auto step = word_.load().step;
  auto text = "step " + std::to_string(step) + ", ";
  text += communicator_ ? collectives::to_string(communicator_->record()) : "no communicator yet";
  return gpu_group_ ? text + "; GPU: " + gpu_group_->describe() : text;
}

void train_context::impl::fill_in(worker_beat& beat) noexcept {
  auto word = word_.load();
  auto has_committed =
      word.phase == runtime::step_phase::committed || word.phase == runtime::step_phase::committed_and_frozen;
  beat.generation = generation_id{word.generation};
  beat.committed = step_id{has_committed || word.step == 0 ? word.step : word.step - 1};
  beat.progress = activity_.progress();
  beat.activity = activity_.kind();
  auto lock = std::lock_guard{communicator_mutex_};
  // Its own kernels are the user's code, wherever the training thread waits for them.
  if (beat.activity == activity_kind::collective && gpu_group_ && gpu_group_->awaits_own_gpu())
    beat.activity = activity_kind::user_code;
}

worker_finished train_context::impl::run(const std::function<void(train_context&)>& function) {
  worker_finished result;
  result.run = begin_.run;
  result.worker = begin_.worker;
  try {
    prepare();
    auto context = train_context{*this};
    function(context);
    // What the training function has asked for is durable when it counts as finished.
    if (custom_loop_)
      await_checkpoints();
    result.state_sha256 = state_sha256_;
    // a custom loop leaves its loop by itself, in whichever step its ranks agree on.
    result.stopped = stopped_ || (custom_loop_ && stop_requested_);
  } catch (const worker_released&) {
    result.reason = {errc::stopped, "this worker is not needed any more"};
  } catch (const exception& x) {
    result.reason = x.reason();
    result.needs_restart = is_loss_of_group(x.reason());
    auto lock = std::lock_guard{communicator_mutex_};
    // What was asked of actors that have ended with the run is a consequence, as a cut-off collective is.
    if (abort_reason_ && aborted_ >= generation_ && x.code() == errc::unreachable)
      result.reason = *abort_reason_;
  } catch (const std::exception& x) {
    result.reason = {errc::user_error, x.what()};
    // What a function makes of the loss of its group is a consequence of that.
    result.needs_restart = lost_in_own_loop_;
  } catch (...) {
    result.reason = {errc::user_error, "the training function threw something that is no std::exception"};
  }
  if (result.reason.code != errc::none)
    result.reason.message = "rank " + std::to_string(begin_.place.rank.value) + " after step " +
                            std::to_string(step_.value) + ": " + result.reason.message;
  result.generation = begin_.place.generation;
  result.step = step_;
  auto scope = runtime::activity::scope{activity_, activity_kind::control};
  pusher_->flush();
  return result;
}

void train_context::impl::command(const control_command& message) {
  commands_.add(message);
  if (message.kind == command_kind::stop)
    stop_requested_ = true;
}

void train_context::impl::abort(const abort_training& message) {
  auto lock = std::lock_guard{communicator_mutex_};
  if (message.generation < generation_)
    return;
  if (staging_.number > 0 && message.generation >= staging_.generation) {
    cancel_forming_.request_stop();
    if (followed_)
      followed_->abort(message.reason);
  }
  // The first reason for a generation stays.
  if (aborted_ < message.generation)
    abort_reason_ = message.reason;
  aborted_ = std::max(aborted_, message.generation);
  // A generation that this worker has not heard of yet is over before it comes there.
  if (message.generation != generation_)
    return;
  word_.freeze();
  snapshots_->abandon();
  cancel_forming_.request_stop();
  if (communicator_)
    communicator_->abort(message.reason);
  if (gpu_group_)
    gpu_group_->abort(message.reason);
}

std::uint64_t train_context::impl::micros() const {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - started_).count());
}

void train_context::impl::report_step(step_id step, metric_map values) {
  last_metrics_ = values;
  // The others have said it.
  if (followed_)
    return;
  pusher_->report({step, micros(), std::move(values)});
}

void train_context::impl::agree_on(const step_plan& plan) {
  auto invalid = [](const std::string& what) { throw exception{errc::invalid_argument, what}; };
  if (plan.data.samples == 0)
    invalid("the data set is empty: step_plan.data.samples must be positive");
  if (plan.batch_samples == 0)
    invalid("step_plan.batch_samples is 0: a step needs at least one sample");
  if (plan.steps == 0)
    invalid("nobody says how many steps to do: set run.steps or step_plan.steps");
  if (plan.steps > (std::uint64_t{1} << 42) / plan.batch_samples)
    invalid("step_plan.steps times step_plan.batch_samples is beyond 2^42 samples");
  run_plan message;
  message.steps = plan.steps;
  message.batch_samples = plan.batch_samples;
  message.data_samples = plan.data.samples;
  message.data_fingerprint = std::to_string(plan.data.samples) + " samples, " + plan.data.fingerprint;
  agree_on(std::move(message));
}

void train_context::impl::agree_on(run_plan message) {
  state_.check_restored();
  message.run = begin_.run;
  message.worker = begin_.worker;
  message.tensors = actors::describe_tensors(state_.specs());
  message.loop = loops_ == 0 ? 0 : loops_ - 1;
  message.evaluations = evaluations_before_loop_;
  for (const auto& tensor : state_.specs())
    message.state_bytes += tensor.size_bytes();
  auto scope = runtime::activity::scope{activity_, activity_kind::control};
  for (;;) {
    message.generation = begin_.place.generation;
    auto accepted = link_.agree(message);
    if (accepted)
      break;
    if (custom_loop_ || !is_loss_of_group(accepted.error()))
      throw exception{std::move(accepted.error())};
    regroup(std::move(accepted.error()));
  }
  agreed_ = true;
  evaluations_before_loop_.clear();
  prepare_checkpoints();
}

void train_context::impl::for_each_step(step_plan plan, const std::function<void(step&)>& body) {
  if (plan.steps == 0)
    plan.steps = begin_.steps;
  ++loops_;
  // A joiner has nothing to do in the loops that the others have behind them.
  if (!has_state_ && loops_ < begin_.earlier_evaluations.size()) {
    evaluations_before_loop_.clear();
    return;
  }
  agree_on(plan);
  in_loop_ = true;
  auto driver = step_driver{*this, plan};
  if (!has_state_ && !join(driver, body)) {
    in_loop_ = false;
    return;
  }
  for (auto id = step_id{step_.value + 1}; id.value <= plan.steps; ++id.value) {
    driver.run(id, body);
    step_ = id;
    pusher_->applied(id);
    if (!end_of_step(id, id.value == plan.steps))
      break;
  }
  in_loop_ = false;
  stager_.abort({errc::aborted, "the others have done their last step"});
  if (begin_.verify_determinism > 0 && begin_.place.rank == rank_id{0})
    std::fprintf(stderr,
                 "determinism: %llu shards were computed twice, %llu of them by another worker, with equal bits%s%s\n",
                 static_cast<unsigned long long>(driver.checked_shards()),
                 static_cast<unsigned long long>(driver.checked_elsewhere()), frameworks_.empty() ? "" : "; ",
                 frameworks_.c_str());
  // What is tracked belongs to the training function, and is gone when that has returned.
  state_sha256_ = state_.sha256();
}

void train_context::impl::pass_barrier(step_id step) {
  auto scope = runtime::activity::scope{activity_, activity_kind::collective};
  auto digest = digest_to_compare(step);
  auto [in_flight, owed] = checkpoint_words();
  // Each word becomes its maximum over the ranks; a digest and its complement become maximum and minimum. Who does not
  // compare has nothing to add to either.
  std::array<std::uint64_t, 7> words{
      commands_.highest(), digest.value_or(0), digest ? ~*digest : 0, step.value, ~step.value, in_flight, owed};
  value_or_throw(communicator_->barrier(words));
  comparison_ = state_comparison::slice;
  if (words[3] != ~words[4])
    throw exception{errc::mismatch, "the ranks are at different steps, " + std::to_string(~words[4]) + " and " +
                                        std::to_string(words[3]) + ": an invariant of Troupe is broken"};
  if (begin_.place.world_size > 1 && words[1] != ~words[2])
    compare_replicas(step);
  if (!word_.pass())
    throw exception{errc::aborted, "the group was given up in step " + std::to_string(step.value)};
  committed_ = step;
  commands_agreed_ = words[0];
  agreed_in_ = begin_.place.generation;
  in_flight_agreed_ = words[5];
  owed_agreed_ = words[6] != 0;
  note_pause_at(step);
}

std::optional<std::uint64_t> train_context::impl::digest_to_compare(step_id step) const {
  // Who is alone has nobody to differ from.
  if (begin_.place.world_size == 1 || comparison_ == state_comparison::nothing)
    return std::nullopt;
  return comparison_ == state_comparison::whole ? state_.digest() : state_.digest_of_slice(step.value);
}

void train_context::impl::note_pause_at(step_id step) {
  auto now = std::chrono::steady_clock::now();
  if (auto from = std::exchange(pause_began_, std::nullopt)) {
    auto pause = std::chrono::duration_cast<std::chrono::microseconds>(now - *from).count();
    pusher_->record(pause_row{begin_.place.generation, step, static_cast<std::uint64_t>(pause)});
  }
  last_pass_ = now;
  failed_formings_ = 0;
}

void train_context::impl::compare_replicas(step_id step) {
  auto mine = state_.digests();
  auto all = value_or_throw(communicator_->all_gather_bytes(std::as_bytes(std::span{mine})));
  auto text = std::string{};
  for (std::size_t part = 0; part < mine.size(); ++part) {
    auto ranks = std::string{};
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      auto same =
          all[rank].size() == all[0].size() && std::equal(all[rank].begin() + static_cast<std::ptrdiff_t>(part * 8),
                                                          all[rank].begin() + static_cast<std::ptrdiff_t>(part * 8 + 8),
                                                          all[0].begin() + static_cast<std::ptrdiff_t>(part * 8));
      if (!same)
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    }
    if (!ranks.empty())
      text += (text.empty() ? "" : "; ") + state_.name_of_part(part) + " on rank " + ranks;
  }
  throw exception{errc::mismatch, "at the start of step " + std::to_string(step.value) +
                                      " the tracked state differs from rank 0's: " + text +
                                      ". The training function computes differently on different ranks: uninitialised "
                                      "memory, an untracked random generator, or code that depends on the rank"};
}

bool train_context::impl::end_of_step(step_id step, bool last) {
  auto stop = false;
  auto regroup_in = generation_id{};
  auto staging = std::optional<control_command>{};
  auto asked = false;
  if (commands_agreed_ > commands_done_) {
    auto commands = commands_.take(commands_done_, commands_agreed_, command_limit);
    if (commands.empty())
      throw exception{errc::timed_out, "command " + std::to_string(commands_agreed_) +
                                           ", which another rank has, has not come from the driver within " +
                                           std::to_string(command_limit.count()) + " s"};
    commands_done_ = commands_agreed_;
    for (const auto& each : commands) {
      stop = stop || each.kind == command_kind::stop;
      asked = asked || each.kind == command_kind::checkpoint;
      if (each.kind == command_kind::regroup)
        regroup_in = each.generation;
      if (each.kind == command_kind::stage)
        staging = each;
    }
  }
  runtime::checkpoint_boundary at;
  at.last = last || stop;
  at.due = begin_.checkpoint_every_steps > 0 && step.value % begin_.checkpoint_every_steps == 0;
  at.asked = asked;
  at.regroups = regroup_in == begin_.place.generation;
  checkpoint_at(step, at);
  // If the group was lost meanwhile, another generation is there already.
  if (!stop && !last && staging && staging->generation == begin_.place.generation)
    stage_state(step, *staging);
  if (!stop && regroup_in == begin_.place.generation) {
    stager_.push_end(step, commands_agreed_, evaluations_);
    between_steps_ = true;
    regroup({});
    between_steps_ = false;
  }
  stopped_ = stop && !last;
  return !stop;
}

std::vector<double>
train_context::impl::evaluate(std::uint64_t samples, std::size_t number_of_sums,
                              const std::function<void(std::span<const std::uint64_t>, std::span<double>)>& function) {
  if (followed_)
    return followed_evaluation();
  if (!agreed_)
    state_.check_restored_so_far();
  if (auto* known = evaluation_of_others()) {
    evaluations_before_loop_.push_back(*known);
    return *known;
  }
  for (;;) {
    auto number = evaluations_ + 1;
    try {
      last_evaluation_ = evaluate_once(samples, number_of_sums, function);
      evaluations_ = number;
    } catch (const exception& x) {
      if (custom_loop_ || !is_loss_of_group(x.reason()))
        throw;
      regroup(x.reason());
    }
    // Another rank may have had the result before the group was lost.
    if (evaluations_ == number) {
      if (in_loop_)
        stager_.push_evaluation(last_evaluation_);
      else
        evaluations_before_loop_.push_back(last_evaluation_);
      return last_evaluation_;
    }
  }
}

/// A joiner takes what the others have found at this place.
const std::vector<double>* train_context::impl::evaluation_of_others() {
  if (has_state_)
    return nullptr;
  auto number = evaluations_before_loop_.size();
  if (loops_ >= begin_.earlier_evaluations.size() || number >= begin_.earlier_evaluations[loops_].size())
    throw exception{errc::mismatch, "a joiner evaluates what the others did not: the training function does not do the "
                                    "same on all workers"};
  return &begin_.earlier_evaluations[loops_][number];
}

std::vector<double> train_context::impl::evaluate_once(
    std::uint64_t samples, std::size_t number_of_sums,
    const std::function<void(std::span<const std::uint64_t>, std::span<double>)>& function) {
  if (communicator_ == nullptr)
    throw exception{errc::aborted, "there is no group"};
  auto layout = collectives::bucket_layout{{{dtype::f64, number_of_sums}}};
  auto sums = value_or_throw(collectives::leaf_accumulator::make(layout, begin_.shards, communicator_->memory()));
  auto result = value_or_throw(communicator_->make_bucket(layout));
  auto range = begin_.place.ownership[begin_.place.rank.value];
  std::vector<std::uint64_t> indices;
  sums.begin(range);
  for (auto v = range.first; v < range.last; ++v) {
    auto bucket = sums.next(shard_id{v});
    indices.clear();
    for (auto i = v * samples / begin_.shards; i < (v + 1) * samples / begin_.shards; ++i)
      indices.push_back(i);
    function(indices, {reinterpret_cast<double*>(bucket.data()), number_of_sums});
  }
  sums.end();
  auto scope = runtime::activity::scope{activity_, activity_kind::collective};
  value_or_throw(communicator_->reduce_leaves(layout, begin_.shards, begin_.place.ownership, sums.partials(), *result));
  auto* first = reinterpret_cast<const double*>(result->bytes().data());
  return {first, first + number_of_sums};
}

void train_context::impl::report(metric_map values, save_checkpoint checkpoint) {
  custom_loop_ = true;
  ++step_.value;
  report_step(step_, std::move(values));
  pusher_->applied(step_);
  if (checkpoint == save_checkpoint::yes)
    report_with_checkpoint(step_);
}

// -- step_driver ------------------------------------------------------------------------------------------------------

namespace {

/// Parts of a bucket begin on boundaries of so many elements.
constexpr std::uint64_t part_granule_elements = 1024;

/// The gradient, and behind it the metrics.
collectives::bucket_layout layout_of(const step_plan& plan) {
  auto elements = plan.gradient_elements;
  // The metrics are a part of their own then: they are complete last, whichever way the gradient is computed.
  if (elements * sizeof(float) > plan.bucket_bytes)
    elements = (elements + part_granule_elements - 1) / part_granule_elements * part_granule_elements;
  return collectives::bucket_layout{{{dtype::f32, elements}, {dtype::f64, plan.metrics.size()}}};
}

std::vector<collectives::byte_range> parts_of(const step_plan& plan, const collectives::bucket_layout& layout) {
  if (plan.gradient_elements * sizeof(float) <= plan.bucket_bytes)
    return {{0, layout.size_bytes()}};
  auto gradient = collectives::bucket_layout{{layout.segments().front()}};
  auto parts = collectives::cut_bucket(gradient, plan.bucket_bytes);
  if (!plan.metrics.empty())
    parts.push_back({gradient.size_bytes(), layout.size_bytes()});
  return parts;
}

std::size_t gradient_parts_of(const step_plan& plan, std::size_t parts) {
  return parts == 1 || plan.metrics.empty() ? parts : parts - 1;
}

} // namespace

step_driver::step_driver(train_context::impl& context, const step_plan& plan)
    : context_(context),
      plan_(plan),
      order_(plan.data.samples, plan.batch_samples, context.begin_.shards, context.begin_.seed),
      // Of a body that has been looked at elsewhere, nothing new is to be learned.
      check_(!context.is_joiner() || context.begin_.check_every_step),
      step_(*this) {}

step_driver::~step_driver() {
  // What was started uses this object's memory, and may wait for ranks that do not come any more. In a group that is
  // gone, nothing is under way.
  const auto reduces_on_gpu = on_gpu_ && !on_gpu_->is_settled() && context_.is_gpu_group(on_gpu_->group());
  if (!reduces_on_gpu && std::ranges::all_of(started_, &collectives::pending_call::is_done))
    return;
  context_.give_up_groups({errc::aborted, "the training function left step " + std::to_string(step_.id_.value) +
                                              " while its gradient was being reduced"});
  if (reduces_on_gpu)
    on_gpu_->settle();
  for (const auto& call : started_)
    (void)call.wait();
}

void step_driver::end_started_calls() {
  const auto rests = context_.rest();
  if (on_gpu_)
    on_gpu_->settle();
  for (const auto& call : started_)
    (void)call.wait();
}

void step_driver::run(step_id id, const std::function<void(step&)>& body) {
  step_.id_ = id;
  do {
    while (!context_.word_.begin(context_.begin_.place.generation, id))
      context_.regroup({});
    interrupted_ = true;
    if (generation_ != context_.begin_.place.generation && !try_to_adopt())
      continue;
    interrupted_ = false;
    try_body(body);
    // A handler of the user's for everything may have kept the interruption to itself.
  } while (interrupted_);
  check_ = context_.begin_.check_every_step;
  // What counts was computed in the generation of `range_`, even if another has begun since.
  if (context_.begin_.keep_ledger)
    context_.pusher_->record(ledger_row{id, generation_, range_, samples_digest_});
}

/// Forming a group for a GPU's memory may find a peer lost.
bool step_driver::try_to_adopt() {
  try {
    adopt_generation();
    return true;
  } catch (const exception& x) {
    generation_ = {};
    if (!plan_.on_gpu || !context_.may_form_again(x.reason()))
      throw;
    context_.regroup(x.reason());
    return false;
  }
}

void step_driver::adopt_generation() {
  generation_ = context_.begin_.place.generation;
  range_ = context_.begin_.place.ownership[context_.begin_.place.rank.value];
  // The old ones first: they may be large.
  result_.reset();
  sums_.reset();
  on_gpu_.reset();
  if (plan_.on_gpu) {
    auto layout = layout_of(plan_);
    auto cut = parts_of(plan_, layout);
    on_gpu_ = std::make_unique<runtime::gpu_reduction>(context_.gpu_group(), context_.gpu().stream, layout,
                                                       context_.begin_.shards, std::move(cut));
    return;
  }
  sums_.emplace(value_or_throw(
      collectives::leaf_accumulator::make(layout_of(plan_), context_.begin_.shards, context_.group().memory())));
  result_ = value_or_throw(context_.group().make_bucket(sums_->layout(), parts_of(plan_, sums_->layout())));
}

void step_driver::try_body(const std::function<void(step&)>& body) {
  step_.shards_.owner_ = &step_;
  step_.shards_.range_ = range_;
  next_shard_ = range_.first;
  samples_digest_ = 0;
  reduced_ = computed_again_ = false;
  first_result_open_ = {};
  const auto& place = context_.begin_.place;
  redundant_ = runtime::choose_redundant_check(step_.id_, context_.begin_.verify_determinism, context_.begin_.shards,
                                               place.ownership);
  step_.shards_.again_ = computes_again() ? std::optional{redundant_->shard} : std::nullopt;
  if (check_)
    digests_before_ = context_.state_.digests();
  complete_.assign(parts().size(), 0);
  started_.clear();
  on_gpu_ ? on_gpu_->begin(range_) : sums_->begin(range_);
  run_body(body);
}

void step_driver::run_body(const std::function<void(step&)>& body) {
  try {
    body(step_);
  } catch (const step_interrupted&) {
    return;
  }
  if (!reduced_ && !interrupted_ && !context_.has_lost_others())
    throw exception{errc::user_error,
                    "the body of step " + std::to_string(step_.id_.value) +
                        " returned without calling step.all_reduce(): every rank has to, or the others "
                        "wait for it"};
}

bool step_driver::repeat(step_id id, const std::function<void(step&)>& body) {
  step_.id_ = id;
  step_.shards_.owner_ = &step_;
  step_.shards_.range_ = range_ = {};
  step_.shards_.again_.reset();
  redundant_.reset();
  next_shard_ = 0;
  reduced_ = interrupted_ = false;
  // It may have had a place in a generation that was never formed.
  generation_ = context_.begin_.place.generation;
  struct scope {
    explicit scope(bool& what) : what_(what) { what_ = true; }
    ~scope() { what_ = false; }
    bool& what_;
  } const repeats{repeating_};
  run_body(body);
  return reduced_ && !interrupted_ && !context_.has_lost_others();
}

/// The parts of the bucket that are reduced by a call each.
std::vector<collectives::byte_range> step_driver::parts() const {
  auto all = on_gpu_ ? on_gpu_->parts() : std::span{result_->parts()};
  return {all.begin(), all.end()};
}

std::size_t step_driver::started() const {
  return on_gpu_ ? on_gpu_->started() : started_.size();
}

/// What the others have reduced in the step that this joiner repeats.
void step_driver::take_from_others() {
  auto bytes = context_.gradient_of_others(step_.id_);
  if (!bytes)
    throw step_interrupted{};
  auto layout = layout_of(plan_);
  auto size = layout.size_bytes();
  if (bytes->size() != size)
    throw exception{errc::mismatch, "the others have reduced " + std::to_string(bytes->size()) + " bytes in step " +
                                        std::to_string(step_.id_.value) + ", this worker's plan has " +
                                        std::to_string(size)};
  repeated_.reserve(size);
  std::ranges::copy(*bytes, repeated_.bytes().begin());
  if (plan_.on_gpu) {
    auto& gpu = context_.gpu();
    if (gpu_repeated_.size_bytes() < size)
      gpu_repeated_ = value_or_throw(collectives::device_memory::make(gpu.device, size));
    value_or_throw(gpu.copier->write(gpu_repeated_.data(), repeated_.bytes().first(size)));
  }
  reduced_ = true;
}

double step_driver::metric(std::size_t index) const {
  if (on_gpu_ && !repeating_)
    return gpu_metrics_[index];
  auto bytes = repeating_ ? std::span<const std::byte>{repeated_.bytes()} : std::span{result_->bytes()};
  // The root has divided it.
  return reinterpret_cast<const double*>(bytes.data() + layout_of(plan_).offset_bytes(1))[index];
}

/// An evaluation in the body before `all_reduce` may have lost its group: what was computed so far is of another
/// ownership.
void step_driver::leave_if_regrouped() {
  if (reduced_ || generation_ == context_.begin_.place.generation)
    return;
  interrupted_ = true;
  throw step_interrupted{};
}

void step_driver::open_shard(shard& target, shard_id id) {
  leave_if_regrouped();
  if (reduced_)
    throw exception{errc::user_error, "the body of step " + std::to_string(step_.id_.value) +
                                          " computes a shard after all_reduce: contributions come before it"};
  if (id.value != next_shard_)
    throw exception{errc::user_error, "the body of step " + std::to_string(step_.id_.value) + " takes shard " +
                                          std::to_string(id.value) + " when shard " + std::to_string(next_shard_) +
                                          " is due: go through step.shards() once"};
  ++next_shard_;
  keep_first_result();
  auto bucket = on_gpu_ ? on_gpu_->next(id) : sums_->next(id);
  if (redundant_ && redundant_->shard == id)
    first_result_open_ = bucket;
  fill(target, id, bucket);
  if (context_.begin_.keep_ledger)
    samples_digest_ = digest_of_samples(samples_digest_, samples_);
}

void step_driver::fill(shard& target, shard_id id, std::span<std::byte> bucket) {
  context_.activity_.touch();
  order_.samples_of(step_.id_, id, samples_);
  target.owner_ = &step_;
  target.id_ = id;
  target.samples_ = samples_;
  auto gradient = std::span{reinterpret_cast<float*>(bucket.data()), plan_.gradient_elements};
  (plan_.on_gpu ? target.gpu_gradient_ : target.gradient_) = gradient;
  target.metrics_ = {reinterpret_cast<double*>(bucket.data() + layout_of(plan_).offset_bytes(1)), plan_.metrics.size()};
}

void step_driver::check_untouched() const {
  const auto& state = context_.state_;
  auto now = state.digests();
  for (std::size_t part = 0; part < now.size(); ++part)
    if (part >= digests_before_.size() || now[part] != digests_before_[part])
      throw exception{errc::user_error,
                      "the body of step " + std::to_string(step_.id_.value) +
                          " wrote tracked state before all_reduce (" + state.name_of_part(part) +
                          "): an interrupted try could not be repeated. Write contributions first, and "
                          "apply after all_reduce"};
}

std::span<const float> step_driver::all_reduce() {
  if (plan_.on_gpu)
    throw exception{errc::user_error, "step.all_reduce() of a plan that is on_gpu: call step.all_reduce_on_gpu()"};
  settle_step();
  auto bytes = repeating_ ? std::span<const std::byte>{repeated_.bytes()} : std::span{result_->bytes()};
  return {reinterpret_cast<const float*>(bytes.data()), plan_.gradient_elements};
}

std::span<const float> step_driver::all_reduce_on_gpu() {
  if (!plan_.on_gpu)
    throw exception{errc::user_error, "step.all_reduce_on_gpu() of a plan that is not: set step_plan.on_gpu"};
  settle_step();
  const auto* data = repeating_ ? gpu_repeated_.data() : on_gpu_->result().data();
  return {reinterpret_cast<const float*>(data), plan_.gradient_elements};
}

void step_driver::settle_step() {
  leave_if_regrouped();
  if (reduced_)
    throw exception{errc::user_error, "step.all_reduce() was called twice in step " + std::to_string(step_.id_.value)};
  if (next_shard_ != range_.last)
    throw exception{errc::user_error, "the body of step " + std::to_string(step_.id_.value) + " computed " +
                                          std::to_string(next_shard_ - range_.first) + " of its " +
                                          std::to_string(range_.size()) +
                                          " shards before all_reduce: go through all of step.shards()"};
  if (repeating_)
    return take_from_others();
  if (computes_again() && !computed_again_)
    throw exception{errc::user_error, "the body of step " + std::to_string(step_.id_.value) +
                                          " did not compute shard " + std::to_string(redundant_->shard.value) +
                                          " again before all_reduce: go through all of step.shards()"};
  keep_first_result();
  if (check_)
    check_untouched();
  try {
    reduce();
  } catch (const exception& x) {
    lose_group(x.reason());
    // Somebody has committed: what was reduced counts, and lies where the old generation left it.
  }
  reduced_ = true;
}

/// Forms the next group. Returns if the step counts all the same; else it is left, to be computed again.
void step_driver::lose_group(error reason) {
  if (!context_.is_loss_of_group(reason))
    throw exception{std::move(reason)};
  end_started_calls();
  context_.regroup(std::move(reason));
  if (context_.committed() < step_.id_) {
    interrupted_ = true;
    throw step_interrupted{};
  }
}

/// On return the step has committed.
void step_driver::reduce() {
  auto scope = runtime::activity::scope{context_.activity_, activity_kind::collective};
  if (redundant_)
    compare_results();
  if (on_gpu_) {
    while (started() < parts().size())
      start_next_part();
    {
      const auto rests = context_.rest();
      on_gpu_->finish();
    }
    gpu_metrics_.resize(plan_.metrics.size());
    auto metrics = on_gpu_->result().subspan(layout_of(plan_).offset_bytes(1));
    value_or_throw(context_.gpu().copier->read(metrics.data(), std::as_writable_bytes(std::span{gpu_metrics_})));
  } else if (started_.empty()) {
    // Nothing is under way: this thread does it itself.
    sums_->end();
    for (std::size_t turn = 0; turn < result_->parts().size(); ++turn)
      value_or_throw(reduce_part(part_at(turn)));
  } else {
    while (started_.size() < result_->parts().size())
      start_next_part();
    for (const auto& call : started_)
      value_or_throw(call.wait());
  }
  if (!context_.word_.reduced())
    throw exception{errc::aborted, "the group was given up in step " + std::to_string(step_.id_.value)};
  context_.reduced_ = step_.id_;
  context_.pass_barrier(step_.id_);
  hand_to_joiners();
}

void step_driver::hand_to_joiners() {
  if (!on_gpu_)
    return context_.stager_.push_gradient(step_.id_, result_->bytes());
  if (!context_.stager_.is_active() || context_.begin_.place.rank != rank_id{})
    return;
  auto reduced = on_gpu_->result();
  repeated_.reserve(reduced.size());
  auto copy = repeated_.bytes().first(reduced.size());
  value_or_throw(context_.gpu().copier->read(reduced.data(), copy));
  context_.stager_.push_gradient(step_.id_, copy);
}

void step_driver::mark_ready(const shard& which, std::uint64_t first, std::uint64_t count) {
  leave_if_regrouped();
  auto end = first + count;
  if (end < first || end > plan_.gradient_elements || reduced_)
    throw exception{errc::user_error, "shard.mark_ready(" + std::to_string(first) + ", " + std::to_string(count) +
                                          ") in step " + std::to_string(step_.id_.value) + ": the gradient has " +
                                          std::to_string(plan_.gradient_elements) +
                                          " elements, and is complete before all_reduce"};
  auto parts = this->parts();
  auto is_last_shard = which.id_.value + 1 == range_.last;
  // What is computed twice is compared before anything is reduced.
  if (!is_last_shard || parts.size() == 1 || redundant_)
    return;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    auto from = std::max(first, parts[part].first / sizeof(float));
    auto to = std::min(end, parts[part].last / sizeof(float));
    complete_[part] += from < to ? to - from : 0;
  }
  try {
    start_complete_parts();
  } catch (const exception& x) {
    // A group in the memory of GPUs that is given up takes no more.
    lose_group(x.reason());
    leave_if_regrouped();
  }
}

// -- shards that are computed twice -----------------------------------------------------------------------------------

bool step_driver::computes_again() const {
  return redundant_ && redundant_->other == context_.begin_.place.rank;
}

void step_driver::open_shard_again(shard& target) {
  leave_if_regrouped();
  if (reduced_ || computed_again_ || next_shard_ != range_.last)
    throw exception{errc::user_error, "the body of step " + std::to_string(step_.id_.value) +
                                          " goes through step.shards() out of order: once, before all_reduce"};
  keep_first_result();
  fill(target, redundant_->shard, on_gpu_ ? second_bucket_on_gpu() : second_bucket());
  computed_again_ = true;
}

std::span<std::byte> step_driver::second_bucket() {
  auto size = layout_of(plan_).size_bytes();
  second_result_.reserve(size);
  auto bucket = second_result_.bytes().first(size);
  std::ranges::fill(bucket, std::byte{0});
  return bucket;
}

std::span<std::byte> step_driver::second_bucket_on_gpu() {
  auto& gpu = context_.gpu();
  auto size = layout_of(plan_).size_bytes();
  if (second_on_gpu_.size_bytes() < size)
    second_on_gpu_ = value_or_throw(collectives::device_memory::make(gpu.device, size));
  value_or_throw(gpu.device->clear(second_on_gpu_.data(), size, gpu.stream.handle()));
  return second_on_gpu_.bytes().first(size);
}

void step_driver::keep_second_result() {
  if (!on_gpu_ || !computes_again())
    return;
  auto size = layout_of(plan_).size_bytes();
  second_result_.reserve(size);
  value_or_throw(context_.gpu().copier->read(second_on_gpu_.data(), second_result_.bytes().first(size)));
}

/// The owner's contribution, before others are added to it.
void step_driver::keep_first_result() {
  if (first_result_open_.data() == nullptr)
    return;
  const auto bucket = std::exchange(first_result_open_, {});
  first_result_.reserve(bucket.size());
  if (on_gpu_)
    value_or_throw(context_.gpu().copier->read(bucket.data(), first_result_.bytes().first(bucket.size())));
  else
    std::ranges::copy(bucket, first_result_.bytes().begin());
}

std::span<const std::byte> step_driver::result_part(std::span<const std::byte> bucket, std::size_t part) const {
  if (part < compared_parts_.size())
    return bucket.subspan(compared_parts_[part].first * sizeof(float), compared_parts_[part].elements * sizeof(float));
  return bucket.subspan(layout_of(plan_).offset_bytes(1), plan_.metrics.size() * sizeof(double));
}

/// What is taken of the results that this rank has, the owner's first.
std::vector<std::byte>
step_driver::both_results(const std::function<void(std::span<const std::byte>, std::vector<std::byte>&)>& take) const {
  std::vector<std::byte> result;
  auto size = layout_of(plan_).size_bytes();
  if (redundant_->owner == context_.begin_.place.rank)
    take(std::span{first_result_.bytes()}.first(size), result);
  if (computes_again())
    take(std::span{second_result_.bytes()}.first(size), result);
  return result;
}

void step_driver::compare_results() {
  keep_second_result();
  compared_parts_ = runtime::parts_of_gradient(context_.gradient_tensors_, plan_.gradient_elements);
  // The metrics are the last part.
  auto parts = compared_parts_.size() + 1;
  auto exchange = [&](std::size_t bytes, const auto& take) {
    auto all = value_or_throw(context_.group().all_gather_bytes(both_results(take)));
    auto& first = all[redundant_->owner.value];
    auto& second = all[redundant_->other.value];
    if (first.size() < bytes || second.size() < bytes)
      throw exception{errc::mismatch,
                      "the ranks disagree about which shard is computed twice: an invariant of Troupe is "
                      "broken"};
    return std::pair{std::vector(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(bytes)),
                     std::vector(second.end() - static_cast<std::ptrdiff_t>(bytes), second.end())};
  };
  auto [first, second] = exchange(parts * sizeof(std::uint64_t), [&](auto bucket, auto& out) {
    for (std::size_t part = 0; part < parts; ++part) {
      auto digest = serialization::xxh3(result_part(bucket, part));
      auto bytes = std::as_bytes(std::span{&digest, 1});
      out.insert(out.end(), bytes.begin(), bytes.end());
    }
  });
  if (first == second) {
    ++checked_shards_;
    checked_elsewhere_ += redundant_->owner == redundant_->other ? 0 : 1;
    return;
  }
  std::vector<std::string> names;
  auto worst = std::optional<std::size_t>{};
  for (std::size_t part = 0; part < parts; ++part) {
    auto at = static_cast<std::ptrdiff_t>(part * sizeof(std::uint64_t));
    if (std::equal(first.begin() + at, first.begin() + at + sizeof(std::uint64_t), second.begin() + at))
      continue;
    worst = worst.value_or(part);
    names.push_back(part < compared_parts_.size() ? compared_parts_[part].name : "the sums of the metrics");
  }
  auto bytes = *worst < compared_parts_.size() ? compared_parts_[*worst].elements * sizeof(float)
                                               : plan_.metrics.size() * sizeof(double);
  auto [mine, theirs] = exchange(bytes, [&](auto bucket, auto& out) {
    auto values = result_part(bucket, *worst);
    out.insert(out.end(), values.begin(), values.end());
  });
  auto numbers = [](const std::vector<std::byte>& values, auto type) {
    using number = decltype(type);
    return std::span{reinterpret_cast<const number*>(values.data()), values.size() / sizeof(number)};
  };
  auto apart = *worst < compared_parts_.size()
                   ? runtime::difference_of(numbers(mine, float{}), numbers(theirs, float{}))
                   : runtime::difference_of(numbers(mine, double{}), numbers(theirs, double{}));
  throw exception{errc::mismatch,
                  runtime::describe_disagreement(step_.id_, *redundant_, names, apart, context_.frameworks_)};
}

/// All ranks reduce the parts in the same order: the gradient's from its end to its begin, then the metrics.
std::size_t step_driver::part_at(std::size_t turn) const {
  auto gradient_parts = gradient_parts_of(plan_, parts().size());
  return turn < gradient_parts ? gradient_parts - 1 - turn : turn;
}

void step_driver::start_complete_parts() {
  auto parts = this->parts();
  while (started() < gradient_parts_of(plan_, parts.size())) {
    auto part = part_at(started());
    auto range = parts[part];
    auto wanted = std::min(range.last / sizeof(float), plan_.gradient_elements) - range.first / sizeof(float);
    if (complete_[part] < wanted)
      return;
    if (check_ && started() == 0)
      check_untouched();
    start_next_part();
  }
}

/// The part of the last shard's contribution joins the sums of the others, and then those of the other ranks.
void step_driver::start_next_part() {
  auto part = part_at(started());
  if (on_gpu_) {
    const auto& begin = context_.begin_;
    return on_gpu_->start(part, {begin.shards, begin.place.ownership, plan_.batch_samples, begin.fast_reduction});
  }
  if (started_.empty())
    sums_->close();
  sums_->finish(result_->parts()[part]);
  started_.push_back(context_.group().start([this, part] { return reduce_part(part); }));
}

/// In this thread or the group's.
expected<void> step_driver::reduce_part(std::size_t part) {
  runtime::prepare_arithmetic_thread();
  auto& group = context_.group();
  auto batch = plan_.batch_samples;
  if (context_.begin_.fast_reduction)
    return group.all_reduce_fast(sums_->layout(), add_up_partials(result_->parts()[part]), *result_, batch, part);
  return group.reduce_leaves(sums_->layout(), context_.begin_.shards, context_.begin_.place.ownership,
                             sums_->partials(), *result_, batch, part);
}

std::span<const std::byte> step_driver::add_up_partials(collectives::byte_range part) {
  auto size = sums_->layout().size_bytes();
  auto partials = sums_->partials();
  if (partials.size() == 1)
    return {partials[0].data, size};
  added_.reserve(size);
  auto bucket = added_.bytes().first(size);
  std::ranges::fill(bucket.subspan(part.first, part.size_bytes()), std::byte{0});
  for (const auto& partial : partials)
    collectives::combine(sums_->layout(), part, collectives::reduce_op::sum, bucket.data() + part.first,
                         bucket.data() + part.first, partial.data + part.first);
  return bucket;
}

} // namespace troupe
