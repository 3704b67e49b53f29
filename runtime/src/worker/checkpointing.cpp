#include "net/part_stream.hpp"
#include "worker/session.hpp"
#include "worker/staging_memory.hpp"

#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <cstdio>
#include <fstream>

/// What a worker does about checkpoints: the part of `train_context::impl` that stops training for a copy.
namespace troupe {

runtime::snapshot_writer::destination train_context::impl::checkpoint_destination() {
  return {[this](const runtime::staged_part& part, const std::stop_token& stop) {
            return part_stream_ ? part_stream_->put(part, stop) : write_to_directory(part, stop);
          },
          [this](const checkpoint_part& part) {
            // A run that is resumed from here keeps the history up to here: it has to be with the driver before the
            // checkpoint counts.
            pusher_->flush();
            auto outcome = link_.deliver(part);
            if (outcome && outcome->reason.code == errc::none)
              part_writer_.committed(run_directory_ / "checkpoints" / serialization::checkpoint_name(part.step));
            return outcome;
          }};
}

expected<serialization::part_report> train_context::impl::write_to_directory(const runtime::staged_part& part,
                                                                             const std::stop_token& stop) {
  const auto& head = part.head;
  auto name = serialization::temporary_name(head.step, head.generation, head.attempt);
  auto report = part_writer_.write(run_directory_ / "checkpoints" / name, head.rank.value, part.plan, part.bytes, stop);
  for (const auto& notice : part_writer_.take_notices())
    std::fprintf(stderr, "%s\n", notice.c_str());
  return report;
}

void train_context::impl::choose_sync() {
  if (begin_.sync == checkpoint_sync::shared || (begin_.sync == checkpoint_sync::automatic && sees_storage()))
    return;
  if (begin_.part_stream.empty())
    throw exception{errc::unreachable,
                    "this worker has no way to " + (run_directory_ / "checkpoints").string() +
                        " of the driver's: no such directory is shared, and the driver takes no streamed parts"};
  part_stream_ = value_or_throw(link_.open_part_stream(begin_.part_stream));
  if (begin_.sync == checkpoint_sync::automatic)
    std::fprintf(stderr, "does not see the driver's %s: checkpoints are streamed to %s\n", run_directory_.c_str(),
                 begin_.part_stream.c_str());
}

/// Each reads what the other has written: a directory of the same name may be another one.
bool train_context::impl::sees_storage() {
  // All on one machine.
  if (begin_.part_stream.empty() && (begin_.place.host_address.empty() || begin_.place.host_address == "127.0.0.1"))
    return true;
  auto scope = runtime::activity::scope{activity_, activity_kind::control};
  auto nonce = serialization::random_hex(16);
  auto directory = run_directory_ / "checkpoints";
  storage_probe probe{begin_.run, begin_.worker, ".probe-" + std::to_string(begin_.worker.value) + "-" + nonce, nonce};
  auto out = std::ofstream{directory / probe.file};
  out << nonce << '\n';
  // A network file system shows it to others when it is closed.
  out.close();
  if (!out)
    return false;
  auto view = link_.probe(probe);
  auto ignored = std::error_code{};
  std::filesystem::remove(directory / probe.file, ignored);
  if (!view || !view->seen || view->nonce.empty())
    return false;
  auto theirs = std::string{};
  auto in = std::ifstream{directory / view->file};
  return std::getline(in, theirs) && theirs == view->nonce;
}

void train_context::impl::prepare_checkpoints() {
  // The last one, and one that somebody asks for, may take their time.
  if (begin_.checkpoint_every_steps == 0 && !custom_loop_)
    return;
  auto plan = serialization::plan_chunks(state_.specs(), begin_.place.world_size);
  snapshots_->prepare(runtime::share_bytes(plan, begin_.place.rank.value), state_.distant_memory());
}

std::array<std::uint64_t, 2> train_context::impl::checkpoint_words() {
  // In this order: one that ends in between is in one of the two.
  auto in_flight = std::uint64_t{snapshots_->in_flight()};
  checkpoint_owed_ = snapshots_->take_lost() || checkpoint_owed_;
  return {in_flight, checkpoint_owed_ ? std::uint64_t{1} : std::uint64_t{0}};
}

void train_context::impl::checkpoint_at(step_id step, runtime::checkpoint_boundary at) {
  if (state_.tensors().empty() && state_.values().empty())
    return;
  at.agreed = agreed_in_ == begin_.place.generation;
  at.in_flight = in_flight_agreed_;
  at.owed = at.agreed ? owed_agreed_ : checkpoint_owed_;
  at.max_in_flight = begin_.checkpoints_in_flight;
  if (at.agreed) {
    asked_open_ = at.asked || (asked_open_ && (at.in_flight > 0 || at.owed));
    at.asked = at.asked || (at.regroups && asked_open_);
  }
  at.retrying = retrying_;
  switch (runtime::decide_checkpoint(at)) {
  case runtime::checkpoint_decision::none:
    return;
  case runtime::checkpoint_decision::take:
    retrying_ = at.owed;
    return begin_checkpoint(step);
  case runtime::checkpoint_decision::wait:
    return wait_for_checkpoints(at);
  case runtime::checkpoint_decision::take_and_wait:
    return finish_checkpoint(step, at.last);
  case runtime::checkpoint_decision::postpone:
    checkpoint_owed_ = true;
    return;
  case runtime::checkpoint_decision::skip:
    if (begin_.place.rank == rank_id{})
      pusher_->skipped(step);
    return;
  }
}

checkpoint_part train_context::impl::describe_part(step_id step) const {
  checkpoint_part part;
  part.run = begin_.run;
  part.generation = begin_.place.generation;
  part.step = step;
  part.attempt = 1;
  part.rank = begin_.place.rank;
  part.world_size = begin_.place.world_size;
  part.tensors = state_.specs();
  part.metrics = last_metrics_;
  part.values_json = state_.values().dump();
  return part;
}

void train_context::impl::begin_checkpoint(step_id step) {
  auto scope = runtime::activity::scope{activity_, activity_kind::checkpoint};
  auto part = describe_part(step);
  auto plan = serialization::plan_chunks(part.tensors, part.world_size);
  snapshots_->begin(std::move(part), std::move(plan), state_);
  checkpoint_owed_ = false;
}

/// What loses a member is abandoned for all, and taken again by who is left.
void train_context::impl::finish_checkpoint(step_id step, bool must) {
  auto scope = runtime::activity::scope{activity_, activity_kind::checkpoint};
  for (;;) {
    begin_checkpoint(step);
    auto outcome = snapshots_->wait();
    if (outcome)
      return;
    if (custom_loop_ || !is_loss_of_group(outcome.error()))
      throw exception{std::move(outcome.error())};
    regroup(std::move(outcome.error()));
    // Who was overtaken in this step's barrier does not come back to it, unless nothing comes after it.
    if (!must) {
      checkpoint_owed_ = true;
      return;
    }
  }
}

/// If the generation ends meanwhile, the next boundary hears of it.
void train_context::impl::wait_for_checkpoints(const runtime::checkpoint_boundary& at) {
  auto scope = runtime::activity::scope{activity_, activity_kind::checkpoint};
  auto outcome = snapshots_->wait();
  checkpoint_owed_ = checkpoint_owed_ || at.due || at.owed || !outcome;
}

expected<void> train_context::impl::save_last_copy() {
  const auto step = rest_.wait(std::chrono::seconds{10});
  if (!step)
    return fail(errc::timed_out, "the training function does not wait for the group: its state may change");
  if (!has_state_ || (state_.tensors().empty() && state_.values().empty()))
    return fail(errc::not_found, "nothing is tracked");
  auto part = describe_part(*step);
  // Others that hang may do as this one does.
  part.attempt = serialization::first_last_copy + part.rank.value;
  part.rank = {};
  part.world_size = 1;
  try {
    const auto plan = serialization::plan_chunks(part.tensors, part.world_size);
    // Not pinned: a device that hangs may keep whoever pins memory, or gives it back, waiting.
    runtime::staging_memory memory;
    const auto size = runtime::share_bytes(plan, 0);
    value_or_throw(memory.reserve(size));
    runtime::copy_share(plan, 0, state_, memory.bytes().first(size));
    // The snapshot writer's thread has its own, and may be busy.
    if (part_stream_) {
      const auto stream = value_or_throw(link_.open_part_stream(begin_.part_stream));
      part.report = value_or_throw(stream->put({part, plan, memory.bytes().first(size)}, {}));
    } else {
      const auto name = serialization::temporary_name(part.step, part.generation, part.attempt);
      part.report = value_or_throw(serialization::reusing_writer{}.write(run_directory_ / "checkpoints" / name, 0, plan,
                                                                         memory.bytes().first(size)));
    }
    pusher_->flush();
    const auto outcome = value_or_throw(link_.deliver_last(part));
    // What is there of this step is as good.
    if (outcome.reason.code != errc::none && outcome.reason.code != errc::already_exists)
      throw exception{outcome.reason};
    std::fprintf(stderr, "the last that has the state has saved that of step %llu before its end: %s\n",
                 static_cast<unsigned long long>(step->value), outcome.path.c_str());
    return {};
  } catch (const exception& x) {
    return fail(x.reason());
  }
}

void train_context::impl::report_with_checkpoint(step_id step) {
  auto in_flight = checkpoint_words()[0];
  // Parts of different steps would wait for each other for ever.
  std::array<std::uint64_t, 4> words{step.value, ~step.value, in_flight, stop_requested_ ? 1u : 0u};
  call_group([&](auto& group) { return group.barrier(words); });
  if (words[0] != ~words[1])
    throw exception{errc::mismatch, "the ranks report a checkpoint at different steps, " + std::to_string(~words[1]) +
                                        " and " + std::to_string(words[0]) +
                                        ": each report counts as a step, so every rank has to report equally often"};
  // A checkpoint says which run it belongs to, and cannot be resumed otherwise.
  if (!agreed_) {
    run_plan message;
    message.steps = begin_.steps;
    agree_on(std::move(message));
  }
  agreed_in_ = begin_.place.generation;
  in_flight_agreed_ = words[2];
  runtime::checkpoint_boundary at;
  at.due = true;
  at.last = words[3] != 0 || step.value == begin_.steps;
  checkpoint_at(step, at);
}

void train_context::impl::await_checkpoints() {
  auto scope = runtime::activity::scope{activity_, activity_kind::checkpoint};
  auto last = snapshots_->wait();
  if (snapshots_->take_lost())
    throw exception{last ? error{errc::aborted, "a checkpoint was overtaken by the end of its generation"}
                         : std::move(last.error())};
}

} // namespace troupe
