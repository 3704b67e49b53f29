#include "worker/step_driver.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fmt/format.h>
#include <utility>

namespace troupe {

namespace {

constexpr std::uint64_t most_steps_between_checks = 1024;

} // namespace

step_driver::step_driver(train_context::impl& session, const runtime::loop_plan& plan)
    : session_(session),
      plan_(plan),
      bucket_(plan),
      order_(plan.data.samples, plan.batch_samples, session.settings().shards, session.settings().seed),
      checker_(session.settings().verify_determinism, plan, bucket_, session.group()),
      // A joiner's body was checked by the members.
      checks_body_(session.has_state() || session.settings().check_every_step),
      finite_(plan.metrics.size()) {
  if (session.settings().keep_ledger)
    digester_.emplace(plan, bucket_, session.gradient_tensors(), session.group());
}

step_driver::~step_driver() {
  session_.set_body({});
  if (!exchange_ || !exchange_->is_under_way())
    return;
  // What was started uses this object's memory, and may wait for ranks that do not come any more.
  session_.group().give_up(
      {errc::aborted, fmt::format("the training function left step {} while its gradient was being reduced", id_)});
  exchange_->wait_until_idle();
}

std::uint64_t step_driver::seed() const noexcept {
  return session_.settings().seed;
}

void step_driver::report(metric_map values) {
  session_.report_step(id_, std::move(values));
}

void step_driver::finish() {
  if (state_ != try_state::reduced)
    throw exception{errc::user_error,
                    fmt::format("step.finish() before step.all_reduce() in step {}: decide by what is "
                                "the same on every rank, which is known after it",
                                id_)};
  finishes_run_ = true;
}

// -- metrics that are not finite --------------------------------------------------------------------------------------

void step_driver::note_not_finite(shard_id shard, std::size_t metric, double value) {
  auto& contributed = finite_[metric].contributed;
  if (!contributed)
    contributed = not_finite_row{id_, shard, plan_.metrics[metric], value};
}

/// Before others can end the run because of it. The first in a row of steps says it all.
void step_driver::tell_not_finite() {
  for (auto& each : finite_) {
    const auto row = std::exchange(each.contributed, std::nullopt);
    if (std::exchange(each.contributes_finite, !row) && row)
      session_.record(*row);
  }
}

/// The step is committed, and not applied. The mean is the same on every rank, and so is the decision.
void step_driver::check_finite() {
  auto text = std::string{};
  for (std::size_t i = 0; i < finite_.size(); ++i) {
    const auto mean = metric(i, plan_.metrics[i]);
    const auto is_first = std::exchange(finite_[i].was_finite, std::isfinite(mean));
    if (std::isfinite(mean))
      continue;
    // On a GPU nobody sees it come in.
    if (is_first && plan_.on_gpu && session_.protocol().rank() == rank_id{})
      session_.record(not_finite_row{id_, {}, plan_.metrics[i], mean});
    text += fmt::format("{}{} is {}", text.empty() ? "" : ", ", plan_.metrics[i], mean);
  }
  if (!text.empty() && session_.settings().end_on_not_finite)
    throw exception{errc::invalid_argument,
                    fmt::format("in step {} the mean of {}: the run ends before it is applied, with "
                                "the checkpoint before it (failure.not_finite). Look for the rank and "
                                "shard in the warning; resume with a smaller learning rate as a new "
                                "run from that checkpoint (load_checkpoint, --from)",
                                id_, text)};
}

// -- a step of a member -----------------------------------------------------------------------------------------------

void step_driver::run(step_id id, const step_body& body) {
  id_ = id;
  mode_ = mode::member;
  do {
    while (!session_.begin_step(id))
      session_.regroup({});
    state_ = try_state::interrupted;
    if (generation_ != session_.protocol().generation() && !adopt_generation())
      continue;
    try_body(body);
    // A handler of the user's for all exceptions may have kept the interruption to itself.
  } while (state_ == try_state::interrupted);
  // Rarer and rarer, and for ever: what writes early from some step on is found at little cost.
  ++steps_run_;
  checks_body_ = session_.settings().check_every_step || std::has_single_bit(steps_run_ + 1) ||
                 (steps_run_ + 1) % most_steps_between_checks == 0;
  // What counts was computed in the generation of `range_`, even if another has begun since.
  if (digester_)
    session_.record(ledger_row{id, generation_, range_, samples_digest_,
                               digester_->digest(id, *exchange_, session_.state(), rank_, ranks_)});
}

/// False if the next generation is formed instead: forming a device group may find a peer lost.
bool step_driver::adopt_generation() {
  try {
    generation_ = session_.protocol().generation();
    range_ = session_.protocol().shards();
    rank_ = session_.protocol().rank();
    ranks_ = session_.protocol().ownership().size();
    form_exchange();
    return true;
  } catch (const exception& x) {
    generation_ = {};
    if (!plan_.on_gpu || !session_.may_form_again(x.reason()))
      throw;
    session_.regroup(x.reason());
    return false;
  }
}

void step_driver::form_exchange() {
  // The old one first: it may be large.
  exchange_.reset();
  const auto& protocol = session_.protocol();
  auto terms = runtime::exchange_terms{session_.settings().shards, protocol.ownership(), plan_.batch_samples,
                                       session_.settings().fast_reduction};
  exchange_ = plan_.on_gpu ? runtime::make_device_exchange(session_.group(), bucket_, std::move(terms), protocol.step())
                           : runtime::make_host_exchange(session_.group().communicator(), bucket_, std::move(terms));
}

void step_driver::try_body(const step_body& body) {
  finishes_run_ = false;
  for (auto& each : finite_)
    each.contributed.reset();
  const auto& protocol = session_.protocol();
  checker_.begin(id_, session_.settings().shards, protocol.ownership(), protocol.rank());
  next_shard_ = range_.first;
  samples_digest_ = 0;
  state_ = try_state::computing;
  digests_before_ = checks_body_ ? session_.state().digests() : std::vector<std::uint64_t>{};
  ready_.assign(bucket_.parts().size(), 0);
  exchange_->begin(range_);
  run_body(body);
}

void step_driver::run_body(const step_body& body) {
  session_.set_body(id_);
  try {
    body(*this);
  } catch (const step_interrupted&) {
    session_.set_body({});
    return;
  }
  session_.set_body({});
  if (state_ == try_state::computing && !session_.has_lost_members())
    throw exception{errc::user_error, fmt::format("the body of step {} returned without calling step.all_reduce(): "
                                                  "every rank has to, or the others wait for it",
                                                  id_)};
}

// -- a step that a joiner repeats -------------------------------------------------------------------------------------

bool step_driver::repeat(step_id id, const step_body& body) {
  id_ = id;
  finishes_run_ = false;
  range_ = {};
  checker_.begin_without_check();
  next_shard_ = 0;
  state_ = try_state::computing;
  mode_ = mode::joiner;
  // It may have had a place in a generation that was never formed.
  generation_ = session_.protocol().generation();
  run_body(body);
  return state_ == try_state::reduced && !session_.has_lost_members();
}

void step_driver::take_from_members() {
  auto bytes = session_.gradient_of_members(id_);
  if (!bytes) {
    state_ = try_state::interrupted;
    throw step_interrupted{};
  }
  const auto size = bucket_.size_bytes();
  if (bytes->size() != size)
    throw exception{errc::mismatch,
                    fmt::format("the others have reduced {} bytes in step {}, this worker's plan has {}", bytes->size(),
                                id_, size)};
  repeated_.reserve(size);
  std::ranges::copy(*bytes, repeated_.bytes().begin());
  if (plan_.on_gpu) {
    auto& gpu = session_.group().gpu();
    if (repeated_on_gpu_.size_bytes() < size)
      repeated_on_gpu_ = value_or_throw(collectives::device_memory::make(gpu.device, size));
    value_or_throw(gpu.copier->write(repeated_on_gpu_.bytes(), repeated_.bytes().first(size)));
  }
  state_ = try_state::reduced;
}

// -- shards -----------------------------------------------------------------------------------------------------------

/// An evaluation in the body before `all_reduce` may have lost its group: what was computed so far is of another
/// ownership.
void step_driver::leave_if_regrouped() {
  if (state_ == try_state::reduced || generation_ == session_.protocol().generation())
    return;
  state_ = try_state::interrupted;
  throw step_interrupted{};
}

runtime::bucket_memory step_driver::open_own(shard_id id) {
  if (state_ == try_state::reduced)
    throw exception{
        errc::user_error,
        fmt::format("the body of step {} computes a shard after all_reduce: contributions come before it", id_)};
  if (id.value != next_shard_)
    throw exception{
        errc::user_error,
        fmt::format("the body of step {} takes shard {} when shard {} is due: go through step.shards() once", id_, id,
                    next_shard_)};
  ++next_shard_;
  checker_.keep_first(*exchange_);
  auto bucket = exchange_->next(id);
  checker_.on_open(id, bucket);
  return bucket;
}

/// The shard that this rank computes only to be compared.
runtime::bucket_memory step_driver::open_again() {
  if (state_ == try_state::reduced || checker_.has_computed_again() || next_shard_ != range_.last)
    throw exception{
        errc::user_error,
        fmt::format("the body of step {} goes through step.shards() out of order: once, before all_reduce", id_)};
  checker_.keep_first(*exchange_);
  return checker_.open_again();
}

runtime::bucket_memory step_driver::open(basic_shard& target, std::uint32_t place) {
  leave_if_regrouped();
  const auto is_own = place < range_.size();
  const auto id = is_own ? shard_id{range_.first + place} : *checker_.again();
  auto bucket = is_own ? open_own(id) : open_again();
  session_.touch();
  order_.samples_of(id_, id, samples_);
  if (is_own && session_.settings().keep_ledger)
    samples_digest_ = digest_of_samples(samples_digest_, samples_);
  target.driver_ = this;
  target.id_ = id;
  target.samples_ = samples_;
  return bucket;
}

void step_driver::open_shard(shard& target, std::uint32_t place) {
  const auto bucket = std::get<std::span<std::byte>>(open(target, place));
  target.gradient_ = {reinterpret_cast<float*>(bucket.data()), plan_.gradient_elements};
  target.metrics_ = {reinterpret_cast<double*>(bucket.data() + bucket_.metrics_offset()), plan_.metrics.size()};
}

void step_driver::open_shard(device_shard& target, std::uint32_t place) {
  const auto bucket = std::get<device_span<std::byte>>(open(target, place));
  target.gradient_ = bucket.as<float>().first(plan_.gradient_elements);
  target.metrics_ = bucket.subspan(bucket_.metrics_offset()).as<double>().first(plan_.metrics.size());
}

void step_driver::mark_ready(shard_id which, std::uint64_t first, std::uint64_t count) {
  leave_if_regrouped();
  const auto end = first + count;
  if (end < first || end > plan_.gradient_elements || state_ == try_state::reduced)
    throw exception{errc::user_error, fmt::format("shard.mark_ready({}, {}) in step {}: the gradient has {} elements, "
                                                  "and is complete before all_reduce",
                                                  first, count, id_, plan_.gradient_elements)};
  const auto parts = bucket_.parts();
  const auto is_last_shard = which.value + 1 == range_.last;
  // What is computed twice is compared before anything is reduced.
  if (!is_last_shard || parts.size() == 1 || checker_.is_due())
    return;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const auto from = std::max(first, parts[part].first / sizeof(float));
    const auto to = std::min(end, parts[part].last / sizeof(float));
    ready_[part] += from < to ? to - from : 0;
  }
  try {
    start_complete_parts();
  } catch (const exception& x) {
    // A group in the memory of GPUs that is given up takes no more.
    lose_group(x.reason());
    leave_if_regrouped();
  }
}

void step_driver::start_complete_parts() {
  while (exchange_->started() < bucket_.gradient_parts()) {
    const auto part = bucket_.part_at(exchange_->started());
    if (ready_[part] < bucket_.gradient_elements(part))
      return;
    if (exchange_->started() == 0)
      check_untouched();
    exchange_->start(part);
  }
}

void step_driver::check_untouched() const {
  if (digests_before_.empty())
    return;
  const auto& state = session_.state();
  const auto now = state.digests();
  for (std::size_t part = 0; part < now.size(); ++part)
    if (part >= digests_before_.size() || now[part] != digests_before_[part])
      throw exception{errc::user_error,
                      fmt::format("the body of step {} wrote tracked state before all_reduce ({}): an interrupted try "
                                  "could not be repeated. Write contributions first, and apply after all_reduce",
                                  id_, state.name_of_part(part))};
}

// -- the reduction ----------------------------------------------------------------------------------------------------

double step_driver::metric(std::size_t index, std::string_view name) const {
  if (state_ != try_state::reduced)
    throw exception{errc::user_error, fmt::format("step.mean('{}') before step.all_reduce()", name)};
  // The root has divided it.
  if (mode_ == mode::member)
    return exchange_->metrics()[index];
  return reinterpret_cast<const double*>(repeated_.bytes().data() + bucket_.metrics_offset())[index];
}

std::span<const float> step_driver::all_reduce() {
  commit_step();
  const auto bucket = mode_ == mode::joiner ? std::span<const std::byte>{repeated_.bytes()}
                                            : std::get<std::span<const std::byte>>(exchange_->result());
  return {reinterpret_cast<const float*>(bucket.data()), plan_.gradient_elements};
}

device_span<const float> step_driver::all_reduce_on_gpu() {
  commit_step();
  const auto bucket = mode_ == mode::joiner ? device_span<const std::byte>{repeated_on_gpu_.bytes()}
                                            : std::get<device_span<const std::byte>>(exchange_->result());
  return bucket.as<const float>().first(plan_.gradient_elements);
}

/// Throws unless the body may reduce now. Returns once the step counts.
void step_driver::commit_step() {
  leave_if_regrouped();
  if (state_ == try_state::reduced)
    throw exception{errc::user_error, fmt::format("step.all_reduce() was called twice in step {}", id_)};
  if (next_shard_ != range_.last)
    throw exception{errc::user_error, fmt::format("the body of step {} computed {} of its {} shards before all_reduce: "
                                                  "go through all of step.shards()",
                                                  id_, next_shard_ - range_.first, range_.size())};
  if (mode_ == mode::joiner)
    return take_from_members();
  if (checker_.again() && !checker_.has_computed_again())
    throw exception{errc::user_error, fmt::format("the body of step {} did not compute shard {} again before "
                                                  "all_reduce: go through all of step.shards()",
                                                  id_, *checker_.again())};
  checker_.keep_first(*exchange_);
  check_untouched();
  tell_not_finite();
  try {
    reduce();
  } catch (const exception& x) {
    // If the step counts all the same, what was reduced lies where the old generation left it.
    lose_group(x.reason());
  }
  state_ = try_state::reduced;
  check_finite();
}

/// Forms the next group. Returns if the step counts all the same; otherwise it is left, to be computed again.
void step_driver::lose_group(error reason) {
  if (!session_.is_loss_of_group(reason)) {
    // Those who finish the run gather bytes, and nobody else does between two steps.
    if (reason.code == errc::mismatch && reason.message.find("all_gather_bytes") != std::string::npos)
      reason.message += fmt::format("; step.finish() was called on some ranks in step {}, and not on this one: the "
                                    "decision has to be the same on all",
                                    id_.value - 1);
    throw exception{std::move(reason)};
  }
  {
    const auto quiet = session_.quiet();
    exchange_->wait_until_idle();
  }
  session_.regroup(std::move(reason));
  if (session_.protocol().committed() < id_) {
    state_ = try_state::interrupted;
    throw step_interrupted{};
  }
}

/// On return the step is committed.
void step_driver::reduce() {
  const auto scope = session_.in_collective();
  checker_.compare(*exchange_, session_.gradient_tensors(), session_.frameworks());
  if (plan_.on_gpu) {
    while (exchange_->started() < bucket_.parts().size())
      exchange_->start(bucket_.part_at(exchange_->started()));
    const auto quiet = session_.quiet();
    exchange_->finish();
  } else {
    exchange_->finish();
  }
  session_.commit(id_);
  hand_to_joiners();
}

void step_driver::hand_to_joiners() {
  const auto reduced = exchange_->result();
  if (const auto* on_host = std::get_if<std::span<const std::byte>>(&reduced))
    return session_.stager().push_gradient(id_, *on_host);
  if (!session_.stager().is_active() || session_.protocol().rank() != rank_id{})
    return;
  const auto& on_gpu = std::get<device_span<const std::byte>>(reduced);
  repeated_.reserve(on_gpu.size());
  const auto copy = repeated_.bytes().first(on_gpu.size());
  value_or_throw(session_.group().gpu().copier->read(on_gpu, copy));
  session_.stager().push_gradient(id_, copy);
}

} // namespace troupe
