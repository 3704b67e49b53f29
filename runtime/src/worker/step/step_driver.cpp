#include "worker/step/step_driver.hpp"

#include <troupe/runtime/process_usage.hpp>

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <utility>

namespace troupe {

namespace {

using clock = std::chrono::steady_clock;

/// The driver gets at most 64 rows a second, but for one from each rank.
clock::duration interval_of_times(std::size_t ranks) {
  return std::chrono::milliseconds{1000 + ranks * 1000 / 64};
}

} // namespace

step_driver::step_driver(train_context::impl& session, const runtime::loop_plan& plan)
    : session_(session),
      plan_(plan),
      bucket_(plan),
      order_(plan.data.samples, plan.batch_samples, session.settings().shards, session.settings().seed, plan.order),
      checker_(session.settings().verify_determinism, plan, bucket_, session.group()),
      body_check_(session.settings().check_every_step ? runtime::body_check::frequency::each_step
                                                      : runtime::body_check::frequency::sampled,
                  session.has_state()),
      finite_(plan.metrics) {
  if (session.settings().keep_ledger)
    digester_.emplace(plan, bucket_, session.gradient_tensors(), session.group());
}

step_driver::~step_driver() {
  session_.set_body({});
  if (auto row = timer_.take())
    record(std::move(*row));
  if (!exchange_ || !exchange_->is_under_way())
    return;
  // What was started uses this object's memory, and may wait for ranks that do not come any more.
  session_.group().give_up(
      {errc::aborted, fmt::format("the training function left step {} while its gradient was being reduced", at_.id)});
  exchange_->wait_until_idle();
}

std::uint64_t step_driver::sent_by_group() {
  auto& group = session_.group();
  return group.has_communicator() ? group.communicator().sent().sent_bytes : 0;
}

/// About once a second.
void step_driver::record(times_row row) {
  row.resident_bytes = runtime::resident_bytes();
  session_.record(std::move(row));
}

std::uint64_t step_driver::seed() const noexcept {
  return session_.settings().seed;
}

void step_driver::report(metric_map values) {
  session_.report_step(at_.id, std::move(values));
}

void step_driver::finish() {
  if (state_ != try_state::reduced)
    throw exception{errc::user_error,
                    fmt::format("step.finish() before step.all_reduce() in step {}: decide by what is "
                                "the same on every rank, which is known after it",
                                at_.id)};
  finishes_run_ = true;
}

void step_driver::note_not_finite(shard_id shard, std::size_t metric, double value) {
  finite_.note(at_.id, shard, metric, value);
}

/// The step is committed, and not applied. The mean is the same on every rank, and so is the decision.
void step_driver::check_finite() {
  std::vector<double> means;
  for (std::size_t i = 0; i < plan_.metrics.size(); ++i)
    means.push_back(metric(i, plan_.metrics[i]));
  const auto found = finite_.check(at_.id, means);
  // What a GPU contributes is not looked at.
  if (plan_.on_gpu && session_.protocol().rank() == rank_id{})
    for (const auto& row : found.first)
      session_.record(row);
  if (!found.text.empty() && session_.settings().end_on_not_finite)
    throw exception{
        errc::invalid_argument,
        fmt::format("in step {} the mean of {}: the run ends before the step is applied (failure.not_finite), "
                    "so that its latest checkpoint is good. Look for the rank and shard in the warning; "
                    "with a smaller learning rate, begin a new run from that checkpoint (load_checkpoint, "
                    "--from)",
                    at_.id, found.text)};
}

// -- a step of a member -----------------------------------------------------------------------------------------------

void step_driver::run(step_id id, const step_body& body) {
  at_.id = id;
  mode_ = mode::member;
  do {
    while (!session_.begin_step(id))
      session_.regroup({});
    state_ = try_state::interrupted;
    if (at_.generation != session_.protocol().generation() && !adopt_generation())
      continue;
    try_body(body);
    // A handler of the user's for all exceptions may have kept the interruption to itself.
  } while (state_ == try_state::interrupted);
  timer_.note_sent(sent_by_group());
  if (auto row = timer_.end(id, at_.generation, at_.rank, clock::now()))
    record(std::move(*row));
  body_check_.end_step();
  // What counts was computed in the generation of `at_.range`, even if another has begun since.
  if (digester_)
    session_.record(ledger_row{id, at_.generation, at_.range, shards_.samples_digest,
                               digester_->digest(id, *exchange_, session_.state(), at_.rank, at_.ranks)});
}

/// False if the next generation is formed instead: forming a device group may find a peer lost.
bool step_driver::adopt_generation() {
  try {
    at_.generation = session_.protocol().generation();
    at_.range = session_.protocol().shards();
    at_.rank = session_.protocol().rank();
    at_.ranks = session_.protocol().ownership().size();
    timer_.set_interval(interval_of_times(at_.ranks));
    timer_.begin_group(sent_by_group());
    form_exchange();
    return true;
  } catch (const exception& x) {
    at_.generation = {};
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
  finite_.begin();
  const auto& protocol = session_.protocol();
  checker_.begin(at_.id, session_.settings().shards, protocol.ownership(), protocol.rank());
  shards_.next = at_.range.first;
  shards_.samples_digest = 0;
  state_ = try_state::computing;
  timer_.begin(clock::now());
  body_check_.begin(session_.state());
  shards_.ready.assign(bucket_.parts().size(), 0);
  exchange_->begin(at_.range);
  run_body(body);
}

void step_driver::run_body(const step_body& body) {
  session_.set_body(at_.id);
  try {
    session_.state().begin_body(at_.id.value);
    body(*this);
  } catch (const step_interrupted&) {
    session_.set_body({});
    return;
  } catch (const worker_released&) {
    throw;
  } catch (const exception& x) {
    // Troupe's own errors about the body say that the state may not be what it should be.
    const auto code = x.code();
    if (code == errc::device_error || code == errc::io_error || code == errc::not_found || code == errc::damaged)
      save_if_last(x.reason());
    throw;
  } catch (const std::exception& x) {
    save_if_last({errc::user_error, x.what()});
    throw;
  } catch (...) {
    save_if_last({errc::user_error, "the training function threw something that is no std::exception"});
    throw;
  }
  session_.set_body({});
  if (state_ == try_state::computing && !session_.members().catch_up().has_lost_members())
    throw exception{errc::user_error, fmt::format("the body of step {} returned without calling step.all_reduce(): "
                                                  "every rank has to, or the others wait for it",
                                                  at_.id)};
  if (state_ == try_state::reduced)
    session_.state().end_body();
}

/// The body has thrown. Before the reduction the state is that of the step before, and goes with the training function.
void step_driver::save_if_last(error reason) {
  const auto& protocol = session_.protocol();
  if (mode_ != mode::member || state_ != try_state::computing || protocol.committed() != protocol.step() ||
      protocol.committed() == session_.restored_step())
    return;
  reason = session_.with_place(std::move(reason));
  if (!session_.members().has_to_save(reason))
    return;
  session_.group().give_up(reason);
  {
    const auto quiet = session_.quiet();
    exchange_->wait_until_idle();
  }
  session_.members().save_before_end();
}

// -- a step that a joiner repeats -------------------------------------------------------------------------------------

bool step_driver::repeat(step_id id, const step_body& body) {
  at_.id = id;
  finishes_run_ = false;
  at_.range = {};
  checker_.begin_without_check();
  shards_.next = 0;
  state_ = try_state::computing;
  mode_ = mode::joiner;
  // It may have had a place in a generation that was never formed.
  at_.generation = session_.protocol().generation();
  run_body(body);
  return state_ == try_state::reduced && !session_.members().catch_up().has_lost_members();
}

void step_driver::take_from_members() {
  auto bytes = session_.members().gradient_of_members(at_.id);
  if (!bytes) {
    state_ = try_state::interrupted;
    throw step_interrupted{};
  }
  const auto size = bucket_.size_bytes();
  if (bytes->size() != size)
    throw exception{errc::mismatch,
                    fmt::format("the others have reduced {} bytes in step {}, this worker's plan has {}", bytes->size(),
                                at_.id, size)};
  repeated_.host.reserve(size);
  std::ranges::copy(*bytes, repeated_.host.bytes().begin());
  if (plan_.on_gpu) {
    auto& gpu = session_.group().gpu();
    if (repeated_.gpu.size_bytes() < size)
      repeated_.gpu = value_or_throw(collectives::device_memory::make(gpu.device, size));
    value_or_throw(gpu.copier->write(repeated_.gpu.bytes(), repeated_.host.bytes().first(size)));
  }
  state_ = try_state::reduced;
}

// -- shards -----------------------------------------------------------------------------------------------------------

/// An evaluation in the body before `all_reduce` may have lost its group: what was computed so far is of another
/// ownership.
void step_driver::leave_if_regrouped() {
  if (state_ == try_state::reduced || at_.generation == session_.protocol().generation())
    return;
  state_ = try_state::interrupted;
  throw step_interrupted{};
}

runtime::bucket_memory step_driver::open_own(shard_id id) {
  if (state_ == try_state::reduced)
    throw exception{
        errc::user_error,
        fmt::format("the body of step {} computes a shard after all_reduce: contributions come before it", at_.id)};
  if (id.value != shards_.next)
    throw exception{
        errc::user_error,
        fmt::format("the body of step {} takes shard {} when shard {} is due: go through step.shards() once", at_.id,
                    id, shards_.next)};
  ++shards_.next;
  checker_.keep_first(*exchange_);
  auto bucket = exchange_->next(id);
  checker_.on_open(id, bucket);
  return bucket;
}

/// The shard that this rank computes only to be compared.
runtime::bucket_memory step_driver::open_again() {
  if (state_ == try_state::reduced || checker_.has_computed_again() || shards_.next != at_.range.last)
    throw exception{
        errc::user_error,
        fmt::format("the body of step {} goes through step.shards() out of order: once, before all_reduce", at_.id)};
  checker_.keep_first(*exchange_);
  return checker_.open_again();
}

runtime::bucket_memory step_driver::open(basic_shard& target, std::uint32_t place) {
  leave_if_regrouped();
  const auto is_own = place < at_.range.size();
  const auto id = is_own ? shard_id{at_.range.first + place} : *checker_.again();
  auto bucket = is_own ? open_own(id) : open_again();
  session_.touch();
  order_.samples_of(at_.id, id, shards_.samples);
  if (is_own && session_.settings().keep_ledger)
    shards_.samples_digest = digest_of_samples(shards_.samples_digest, shards_.samples);
  target.driver_ = this;
  target.id_ = id;
  target.samples_ = shards_.samples;
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
                                                  first, count, at_.id, plan_.gradient_elements)};
  const auto parts = bucket_.parts();
  const auto is_last_shard = which.value + 1 == at_.range.last;
  // What is computed twice is compared before anything is reduced.
  if (!is_last_shard || parts.size() == 1 || checker_.is_due())
    return;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const auto from = std::max(first, parts[part].first / sizeof(float));
    const auto to = std::min(end, parts[part].last / sizeof(float));
    shards_.ready[part] += from < to ? to - from : 0;
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
    if (shards_.ready[part] < bucket_.gradient_elements(part))
      return;
    if (exchange_->started() == 0)
      body_check_.check(at_.id, session_.state());
    exchange_->start(part);
  }
}

// -- the reduction ----------------------------------------------------------------------------------------------------

double step_driver::metric(std::size_t index, std::string_view name) const {
  if (state_ != try_state::reduced)
    throw exception{errc::user_error, fmt::format("step.mean('{}') before step.all_reduce()", name)};
  // The root has divided it.
  if (mode_ == mode::member)
    return exchange_->metrics()[index];
  return reinterpret_cast<const double*>(repeated_.host.bytes().data() + bucket_.metrics_offset())[index];
}

std::span<const float> step_driver::all_reduce() {
  commit_step();
  const auto bucket = mode_ == mode::joiner ? std::span<const std::byte>{repeated_.host.bytes()}
                                            : std::get<std::span<const std::byte>>(exchange_->result());
  return {reinterpret_cast<const float*>(bucket.data()), plan_.gradient_elements};
}

device_span<const float> step_driver::all_reduce_on_gpu() {
  commit_step();
  const auto bucket = mode_ == mode::joiner ? device_span<const std::byte>{repeated_.gpu.bytes()}
                                            : std::get<device_span<const std::byte>>(exchange_->result());
  return bucket.as<const float>().first(plan_.gradient_elements);
}

/// Throws unless the body may reduce now. Returns once the step counts.
void step_driver::commit_step() {
  leave_if_regrouped();
  if (state_ == try_state::reduced)
    throw exception{errc::user_error, fmt::format("step.all_reduce() was called twice in step {}", at_.id)};
  if (shards_.next != at_.range.last)
    throw exception{errc::user_error, fmt::format("the body of step {} computed {} of its {} shards before all_reduce: "
                                                  "go through all of step.shards()",
                                                  at_.id, shards_.next - at_.range.first, at_.range.size())};
  if (mode_ == mode::joiner)
    return take_from_members();
  if (checker_.again() && !checker_.has_computed_again())
    throw exception{errc::user_error, fmt::format("the body of step {} did not compute shard {} again before "
                                                  "all_reduce: go through all of step.shards()",
                                                  at_.id, *checker_.again())};
  checker_.keep_first(*exchange_);
  body_check_.check(at_.id, session_.state());
  for (const auto& row : finite_.take())
    session_.record(row);
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
  if (!session_.is_loss_of_group(reason))
    throw exception{std::move(reason)};
  state_ = try_state::interrupted;
  {
    const auto quiet = session_.quiet();
    exchange_->wait_until_idle();
  }
  session_.regroup(std::move(reason));
  timer_.leave_out(clock::now());
  if (session_.protocol().committed() < at_.id)
    throw step_interrupted{};
}

/// On return the step is committed.
void step_driver::reduce() {
  const auto scope = session_.in_collective();
  timer_.enter(runtime::step_phase::wait, clock::now());
  checker_.compare(*exchange_, session_.gradient_tensors(), session_.frameworks());
  finish_exchange();
  timer_.enter(runtime::step_phase::barrier, clock::now());
  session_.commit(at_.id);
  timer_.enter(runtime::step_phase::compute, clock::now());
  hand_to_joiners();
}

void step_driver::finish_exchange() {
  try {
    if (!plan_.on_gpu)
      return exchange_->finish();
    while (exchange_->started() < bucket_.parts().size())
      exchange_->start(bucket_.part_at(exchange_->started()));
    const auto quiet = session_.quiet();
    exchange_->finish();
  } catch (const exception& x) {
    if (x.reason().code != errc::mismatch)
      throw;
    throw exception{errc::mismatch, x.reason().message +
                                        "; if step.finish() was called on some ranks only: the decision has to be the "
                                        "same on all"};
  }
}

void step_driver::hand_to_joiners() {
  const auto reduced = exchange_->result();
  if (const auto* on_host = std::get_if<std::span<const std::byte>>(&reduced))
    return session_.stager().push_gradient(at_.id, *on_host);
  if (!session_.stager().is_active() || session_.protocol().rank() != rank_id{})
    return;
  const auto& on_gpu = std::get<device_span<const std::byte>>(reduced);
  repeated_.host.reserve(on_gpu.size());
  const auto copy = repeated_.host.bytes().first(on_gpu.size());
  value_or_throw(session_.group().gpu().copier->read(on_gpu, copy));
  session_.stager().push_gradient(at_.id, copy);
}

} // namespace troupe
