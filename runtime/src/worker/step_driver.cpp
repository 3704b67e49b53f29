#include "worker/step_driver.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace troupe {

step_driver::step_driver(train_context::impl& session, const step_plan& plan)
    : session_(session),
      plan_(plan),
      bucket_(plan),
      order_(plan.data.samples, plan.batch_samples, session.settings().shards, session.settings().seed),
      checker_(session.settings().verify_determinism, plan, bucket_, session.group()),
      // A joiner's body was checked by the members.
      checks_body_(session.has_state() || session.settings().check_every_step),
      step_(*this) {}

step_driver::~step_driver() {
  if (!exchange_ || !exchange_->is_under_way())
    return;
  // What was started uses this object's memory, and may wait for ranks that do not come any more.
  session_.group().give_up(
      {errc::aborted,
       fmt::format("the training function left step {} while its gradient was being reduced", step_.id_)});
  exchange_->settle();
}

std::uint64_t step_driver::seed() const noexcept {
  return session_.settings().seed;
}

void step_driver::report(metric_map values) {
  session_.report_step(step_.id_, std::move(values));
}

// -- a step of a member -----------------------------------------------------------------------------------------------

void step_driver::run(step_id id, const std::function<void(step&)>& body) {
  step_.id_ = id;
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
  checks_body_ = session_.settings().check_every_step;
  // What counts was computed in the generation of `range_`, even if another has begun since.
  if (session_.settings().keep_ledger)
    session_.record(ledger_row{id, generation_, range_, samples_digest_});
}

/// False if the next generation is formed instead: forming a device group may find a peer lost.
bool step_driver::adopt_generation() {
  try {
    generation_ = session_.protocol().generation();
    range_ = session_.protocol().shards();
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
  auto terms = runtime::exchange_terms{session_.settings().shards, protocol.place().ownership, plan_.batch_samples,
                                       session_.settings().fast_reduction};
  exchange_ = plan_.on_gpu ? runtime::make_device_exchange(session_.group(), bucket_, std::move(terms), protocol.step())
                           : runtime::make_host_exchange(session_.group().communicator(), bucket_, std::move(terms));
}

void step_driver::try_body(const std::function<void(step&)>& body) {
  const auto& place = session_.protocol().place();
  checker_.begin(step_.id_, session_.settings().shards, place.ownership, place.rank);
  step_.shards_.owner_ = &step_;
  step_.shards_.range_ = range_;
  step_.shards_.again_ = checker_.again();
  next_shard_ = range_.first;
  samples_digest_ = 0;
  state_ = try_state::computing;
  digests_before_ = checks_body_ ? session_.state().digests() : std::vector<std::uint64_t>{};
  ready_.assign(bucket_.parts().size(), 0);
  exchange_->begin(range_);
  run_body(body);
}

void step_driver::run_body(const std::function<void(step&)>& body) {
  try {
    body(step_);
  } catch (const step_interrupted&) {
    return;
  }
  if (state_ == try_state::computing && !session_.has_lost_members())
    throw exception{errc::user_error, fmt::format("the body of step {} returned without calling step.all_reduce(): "
                                                  "every rank has to, or the others wait for it",
                                                  step_.id_)};
}

// -- a step that a joiner repeats -------------------------------------------------------------------------------------

bool step_driver::repeat(step_id id, const std::function<void(step&)>& body) {
  step_.id_ = id;
  step_.shards_.owner_ = &step_;
  step_.shards_.range_ = range_ = {};
  step_.shards_.again_.reset();
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
  auto bytes = session_.gradient_of_members(step_.id_);
  if (!bytes) {
    state_ = try_state::interrupted;
    throw step_interrupted{};
  }
  const auto size = bucket_.size_bytes();
  if (bytes->size() != size)
    throw exception{errc::mismatch,
                    fmt::format("the others have reduced {} bytes in step {}, this worker's plan has {}", bytes->size(),
                                step_.id_, size)};
  repeated_.reserve(size);
  std::ranges::copy(*bytes, repeated_.bytes().begin());
  if (plan_.on_gpu) {
    auto& gpu = session_.group().gpu();
    if (repeated_on_gpu_.size_bytes() < size)
      repeated_on_gpu_ = value_or_throw(collectives::device_memory::make(gpu.device, size));
    value_or_throw(gpu.copier->write(repeated_on_gpu_.data(), repeated_.bytes().first(size)));
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

void step_driver::open_shard(shard& target, shard_id id) {
  leave_if_regrouped();
  if (state_ == try_state::reduced)
    throw exception{
        errc::user_error,
        fmt::format("the body of step {} computes a shard after all_reduce: contributions come before it", step_.id_)};
  if (id.value != next_shard_)
    throw exception{
        errc::user_error,
        fmt::format("the body of step {} takes shard {} when shard {} is due: go through step.shards() once", step_.id_,
                    id, next_shard_)};
  ++next_shard_;
  checker_.keep_first(*exchange_);
  auto bucket = exchange_->next(id);
  checker_.on_open(id, bucket);
  fill(target, id, bucket);
  if (session_.settings().keep_ledger)
    samples_digest_ = digest_of_samples(samples_digest_, samples_);
}

void step_driver::open_shard_again(shard& target) {
  leave_if_regrouped();
  if (state_ == try_state::reduced || checker_.has_computed_again() || next_shard_ != range_.last)
    throw exception{
        errc::user_error,
        fmt::format("the body of step {} goes through step.shards() out of order: once, before all_reduce", step_.id_)};
  checker_.keep_first(*exchange_);
  fill(target, *checker_.again(), checker_.open_again());
}

void step_driver::fill(shard& target, shard_id id, std::span<std::byte> bucket) {
  session_.touch();
  order_.samples_of(step_.id_, id, samples_);
  target.owner_ = &step_;
  target.id_ = id;
  target.samples_ = samples_;
  auto gradient = std::span{reinterpret_cast<float*>(bucket.data()), plan_.gradient_elements};
  (plan_.on_gpu ? target.gpu_gradient_ : target.gradient_) = gradient;
  target.metrics_ = {reinterpret_cast<double*>(bucket.data() + bucket_.metrics_offset()), plan_.metrics.size()};
}

void step_driver::mark_ready(const shard& which, std::uint64_t first, std::uint64_t count) {
  leave_if_regrouped();
  const auto end = first + count;
  if (end < first || end > plan_.gradient_elements || state_ == try_state::reduced)
    throw exception{errc::user_error, fmt::format("shard.mark_ready({}, {}) in step {}: the gradient has {} elements, "
                                                  "and is complete before all_reduce",
                                                  first, count, step_.id_, plan_.gradient_elements)};
  const auto parts = bucket_.parts();
  const auto is_last_shard = which.id_.value + 1 == range_.last;
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
                                  step_.id_, state.name_of_part(part))};
}

// -- the reduction ----------------------------------------------------------------------------------------------------

std::span<const std::byte> step_driver::result() const {
  if (mode_ == mode::joiner)
    return repeated_.bytes();
  return exchange_->result();
}

double step_driver::metric(std::size_t index, std::string_view name) const {
  if (state_ != try_state::reduced)
    throw exception{errc::user_error, fmt::format("step.mean('{}') before step.all_reduce()", name)};
  // The root has divided it.
  if (mode_ == mode::member)
    return exchange_->metrics()[index];
  return reinterpret_cast<const double*>(result().data() + bucket_.metrics_offset())[index];
}

std::span<const float> step_driver::all_reduce() {
  if (plan_.on_gpu)
    throw exception{errc::user_error, "step.all_reduce() of a plan that is on_gpu: call step.all_reduce_on_gpu()"};
  settle_step();
  return {reinterpret_cast<const float*>(result().data()), plan_.gradient_elements};
}

std::span<const float> step_driver::all_reduce_on_gpu() {
  if (!plan_.on_gpu)
    throw exception{errc::user_error, "step.all_reduce_on_gpu() of a plan that is not: set step_plan.on_gpu"};
  settle_step();
  const auto* data = mode_ == mode::joiner ? repeated_on_gpu_.data() : exchange_->result().data();
  return {reinterpret_cast<const float*>(data), plan_.gradient_elements};
}

/// Throws unless the body may reduce now. Returns once the step counts.
void step_driver::settle_step() {
  leave_if_regrouped();
  if (state_ == try_state::reduced)
    throw exception{errc::user_error, fmt::format("step.all_reduce() was called twice in step {}", step_.id_)};
  if (next_shard_ != range_.last)
    throw exception{errc::user_error, fmt::format("the body of step {} computed {} of its {} shards before all_reduce: "
                                                  "go through all of step.shards()",
                                                  step_.id_, next_shard_ - range_.first, range_.size())};
  if (mode_ == mode::joiner)
    return take_from_members();
  if (checker_.again() && !checker_.has_computed_again())
    throw exception{errc::user_error, fmt::format("the body of step {} did not compute shard {} again before "
                                                  "all_reduce: go through all of step.shards()",
                                                  step_.id_, *checker_.again())};
  checker_.keep_first(*exchange_);
  check_untouched();
  try {
    reduce();
  } catch (const exception& x) {
    // If the step counts all the same, what was reduced lies where the old generation left it.
    lose_group(x.reason());
  }
  state_ = try_state::reduced;
}

/// Forms the next group. Returns if the step counts all the same; otherwise it is left, to be computed again.
void step_driver::lose_group(error reason) {
  if (!session_.is_loss_of_group(reason))
    throw exception{std::move(reason)};
  {
    const auto quiet = session_.quiet();
    exchange_->settle();
  }
  session_.regroup(std::move(reason));
  if (session_.protocol().committed() < step_.id_) {
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
  session_.commit(step_.id_);
  hand_to_joiners();
}

void step_driver::hand_to_joiners() {
  if (!plan_.on_gpu)
    return session_.stager().push_gradient(step_.id_, exchange_->result());
  if (!session_.stager().is_active() || session_.protocol().rank() != rank_id{})
    return;
  const auto reduced = exchange_->result();
  repeated_.reserve(reduced.size());
  const auto copy = repeated_.bytes().first(reduced.size());
  exchange_->read(reduced, copy);
  session_.stager().push_gradient(step_.id_, copy);
}

} // namespace troupe
