#include "worker/state/checkpointer.hpp"

#include "net/parts/part_stream.hpp"
#include "worker/state/staging_memory.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <cstdio>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

namespace troupe::runtime {

namespace {

/// How long the last copy waits until the training function leaves the state unchanged.
constexpr auto quiescence_limit = std::chrono::seconds{10};

} // namespace

checkpointer::checkpointer(const begin_training& begin, driver_client& driver, tracked_state& state,
                           metrics_pusher& pusher, activity& doing)
    : begin_(begin),
      driver_(driver),
      state_(state),
      pusher_(pusher),
      activity_(doing),
      agreement_(begin.checkpoints.every_steps, begin.checkpoints.max_in_flight, begin.checkpoints.may_skip),
      part_writer_(begin.checkpoints.reuse_unchanged ? serialization::reuse_policy{}
                                                     : serialization::reuse_policy::none()),
      snapshots_(destination(), begin.checkpoints.max_in_flight) {}

std::filesystem::path checkpointer::directory() const {
  return std::filesystem::path{begin_.settings.directory} / "checkpoints";
}

// -- how parts travel -------------------------------------------------------------------------------------------------

snapshot_writer::destination checkpointer::destination() {
  return {[this](const staged_part& part, const std::stop_token& stop) {
            const auto to = streamed_.lock()->to;
            return to ? to->put(part, stop) : write_to_directory(part, stop);
          },
          [this](const checkpoint_part& part) {
            // A resumed run keeps the metrics up to its checkpoint, so the driver must have them before it commits.
            pusher_.flush();
            auto outcome = driver_.deliver(part);
            if (outcome && outcome->reason.code == errc::none)
              part_writer_.committed(directory() / serialization::checkpoint_name(part.step));
            return outcome;
          }};
}

expected<serialization::part_report> checkpointer::write_to_directory(const staged_part& part,
                                                                      const std::stop_token& stop) {
  const auto& head = part.head;
  auto name = serialization::temporary_name({head.run, head.step, head.generation, head.attempt});
  auto report = part_writer_.write(directory() / name, head.rank.value, part.plan, part.bytes, stop);
  for (const auto& notice : part_writer_.take_notices())
    std::fprintf(stderr, "%s\n", notice.c_str());
  return report;
}

void checkpointer::choose_sync(const group_place& place) {
  const auto& how = begin_.checkpoints;
  if (how.sync == checkpoint_sync::shared || (how.sync == checkpoint_sync::automatic && sees_storage(place)))
    return;
  if (place.part_stream.empty())
    throw exception{errc::unreachable,
                    fmt::format("this worker cannot reach the driver's {}: no such directory is shared, and the driver "
                                "accepts no streamed parts",
                                directory().string())};
  stream_to(place.part_stream);
  if (how.sync == checkpoint_sync::automatic)
    std::fprintf(stderr, "does not see the driver's %s: checkpoints are streamed to %s\n",
                 begin_.settings.directory.c_str(), place.part_stream.c_str());
}

void checkpointer::stream_to(const std::string& address) {
  *streamed_.lock() = {address, value_or_throw(driver_.open_part_stream(address))};
}

/// Driver and worker each read a file that the other wrote: directories of the same name may differ.
bool checkpointer::sees_storage(const group_place& place) {
  // All on one machine.
  if (place.part_stream.empty() && (place.host_address.empty() || place.host_address == "127.0.0.1"))
    return true;
  auto scope = activity::scope{activity_, activity_kind::control};
  auto nonce = serialization::random_hex(16);
  storage_probe probe{begin_.run, begin_.worker, fmt::format(".probe-{}-{}", begin_.worker, nonce), nonce};
  auto out = std::ofstream{directory() / probe.file};
  out << nonce << '\n';
  // Network file systems make a file visible to others on close.
  out.close();
  if (!out)
    return false;
  auto view = driver_.probe(probe);
  auto ignored = std::error_code{};
  std::filesystem::remove(directory() / probe.file, ignored);
  if (!view || !view->seen || view->nonce.empty())
    return false;
  auto theirs = std::string{};
  auto in = std::ifstream{directory() / view->file};
  return std::getline(in, theirs) && theirs == view->nonce;
}

std::optional<step_id> checkpointer::restore() {
  const auto& resume = begin_.resume;
  if (resume.checkpoint.empty())
    return std::nullopt;
  auto step_of = [&](const serialization::manifest& content) {
    return resume.restore_step ? std::optional{content.step} : std::nullopt;
  };
  if (const auto address = streamed_.lock()->address; !address.empty()) {
    // Use a separate connection: the writer's thread uses the other.
    auto stream = value_or_throw(driver_.open_part_stream(address));
    auto source = value_or_throw(stream->open_source());
    const auto step = step_of(source->content());
    state_.restore_from(std::move(source), resume.load);
    return step;
  }
  auto source = std::make_shared<const serialization::checkpoint>(
      value_or_throw(serialization::checkpoint::open(resume.checkpoint)));
  const auto step = step_of(source->content());
  state_.restore_from(std::move(source), resume.load);
  return step;
}

void checkpointer::follow_driver(const group_place& place) {
  if (const auto now = streamed_.lock()->address;
      !now.empty() && !place.part_stream.empty() && now != place.part_stream)
    stream_to(place.part_stream);
}

void checkpointer::prepare(const group_place& place) {
  auto plan = serialization::plan_chunks(state_.specs(), place.world_size);
  snapshots_.prepare(share_bytes(plan, place.rank.value), state_.distant_memory());
}

// -- at boundaries ----------------------------------------------------------------------------------------------------

checkpointer::words checkpointer::barrier_words() {
  // In this order, a checkpoint that ends in between is counted by one of the two.
  const auto in_flight = std::uint64_t{snapshots_.in_flight()};
  if (snapshots_.take_lost())
    agreement_.owe();
  return {in_flight, agreement_.is_owed()};
}

bool checkpointer::tracks_nothing() const {
  return state_.tensors().empty() && state_.values().empty();
}

void checkpointer::at_boundary(step_id step, const actors::consider_checkpoint& what,
                               const std::function<group_place()>& place,
                               const std::function<void(error)>& lose_group) {
  using decision = actors::checkpoint_decision;
  if (tracks_nothing())
    return;
  auto scope = activity::scope{activity_, activity_kind::checkpoint};
  const auto now = place();
  switch (agreement_.decide(step, what, now.generation)) {
  case decision::none:
    return;
  case decision::take:
    return begin(step, now, what.finishes_run);
  case decision::wait_and_take:
    // If the generation ends meanwhile, the next boundary owes one.
    if (!snapshots_.wait())
      return agreement_.owe();
    return begin(step, now, what.finishes_run);
  case decision::wait:
    // If the generation ends meanwhile, the next boundary owes one.
    return agreement_.on_waited(step, !snapshots_.wait());
  case decision::take_and_wait:
    for (;;) {
      begin(step, place(), what.finishes_run);
      auto outcome = snapshots_.wait();
      if (outcome)
        return;
      // If a member is lost, all abandon the checkpoint and the survivors retake it.
      lose_group(std::move(outcome.error()));
      // A worker that was overtaken in this step's barrier does not return to it unless the step is the last.
      if (!what.is_last)
        return agreement_.owe();
    }
  case decision::postpone:
    return agreement_.owe();
  case decision::skip:
    if (now.rank == rank_id{})
      pusher_.skipped(step);
    return;
  }
}

checkpoint_part checkpointer::describe_part(step_id step, const group_place& place) const {
  checkpoint_part part;
  part.run = begin_.run;
  part.generation = place.generation;
  part.step = step;
  part.attempt = 1;
  part.rank = place.rank;
  part.world_size = place.world_size;
  part.tensors = state_.specs();
  part.metrics = last_metrics_;
  part.values_json = state_.values().dump();
  return part;
}

void checkpointer::begin(step_id step, const group_place& place, bool finishes_run) {
  auto part = describe_part(step, place);
  part.finishes_run = finishes_run;
  auto plan = serialization::plan_chunks(part.tensors, part.world_size);
  snapshots_.begin(std::move(part), std::move(plan), state_);
  agreement_.on_begun();
}

void checkpointer::finish() {
  auto scope = activity::scope{activity_, activity_kind::checkpoint};
  auto last = snapshots_.wait();
  if (snapshots_.take_lost())
    throw exception{last ? error{errc::aborted, "a checkpoint was overtaken by the end of its generation"}
                         : std::move(last.error())};
}

expected<void> checkpointer::save_last_copy(quiescence_gate& gate, const group_place& place) {
  const auto step = gate.wait(quiescence_limit);
  if (!step)
    return fail(errc::timed_out, "the training function does not wait for the group: its state may change");
  if (tracks_nothing())
    return fail(errc::not_found, "nothing is tracked");
  auto part = describe_part(*step, place);
  // Other hanging workers may save a copy at the same time: keep the names apart.
  part.attempt = serialization::first_last_copy + part.rank.value;
  part.rank = {};
  part.world_size = 1;
  try {
    const auto plan = serialization::plan_chunks(part.tensors, part.world_size);
    // Not pinned: pinning or unpinning memory may block while the device hangs.
    staging_memory memory;
    const auto size = share_bytes(plan, 0);
    value_or_throw(memory.reserve(size));
    copy_share(plan, 0, state_, memory.bytes().first(size));
    // Not the snapshot writer's stream, whose thread may be busy.
    if (const auto address = streamed_.lock()->address; !address.empty()) {
      const auto stream = value_or_throw(driver_.open_part_stream(address));
      part.report = value_or_throw(stream->put({part, plan, memory.bytes().first(size)}, {}));
    } else {
      const auto name = serialization::temporary_name({part.run, part.step, part.generation, part.attempt});
      part.report = value_or_throw(
          serialization::reusing_writer{}.write(directory() / name, 0, plan, memory.bytes().first(size)));
    }
    pusher_.flush();
    const auto outcome = value_or_throw(driver_.deliver_last(part));
    if (outcome.reason.code != errc::none)
      throw exception{outcome.reason};
    std::fprintf(stderr, "saved the state of step %llu before this process ends: %s\n",
                 static_cast<unsigned long long>(step->value), outcome.path.c_str());
    return {};
  } catch (const exception& x) {
    return fail(x.reason());
  }
}

} // namespace troupe::runtime
