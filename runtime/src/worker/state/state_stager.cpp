#include "worker/state/state_stager.hpp"
#include "worker/state/state_chunks.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace troupe::runtime {

namespace {

/// Precedes a frame's bytes. The committed step follows only on request: sent earlier, it would be stale when read.
struct frame_header {
  staging_kind kind{};
  std::uint64_t step = 0;
  std::uint64_t size_bytes = 0;
};

/// A joiner's request for the last committed step. Its value is ignored.
using question = std::uint64_t;

template <class T>
std::span<const std::byte> bytes_of(const T& x) {
  return std::as_bytes(std::span{&x, 1});
}

template <class T>
std::span<std::byte> writable_bytes_of(T& x) {
  return std::as_writable_bytes(std::span{&x, 1});
}

/// Calls `f(chunk)` for each chunk in order, until it fails.
template <class Byte, class F>
expected<void> for_each_chunk(std::span<Byte> bytes, F f) {
  while (!bytes.empty()) {
    auto size = std::min<std::size_t>(bytes.size(), state_chunk_bytes);
    TROUPE_TRY(f(bytes.first(size)));
    bytes = bytes.subspan(size);
  }
  return {};
}

std::uint64_t size_bytes_of(const tracked_state& state) {
  auto result = std::uint64_t{0};
  for (const auto& tensor : state.tensors())
    result += tensor.spec.size_bytes();
  return result;
}

/// CBOR, because a metric may be NaN or infinite.
std::vector<std::byte> describe(const tracked_state& state, const transferred_extras& extras) {
  auto text = nlohmann::json::to_cbor(
      {{"values", state.values()}, {"metrics", extras.last_metrics}, {"state_bytes", size_bytes_of(state)}});
  auto bytes = std::as_bytes(std::span{text});
  return {bytes.begin(), bytes.end()};
}

error broken(const std::string& what) {
  return {errc::internal, "staged state: " + what + ": an invariant of Troupe is broken"};
}

} // namespace

// A member's side.

state_stager::~state_stager() {
  abort({errc::aborted, "the worker ends"});
  if (thread_.joinable())
    thread_.join();
}

void state_stager::begin(staging_settings settings, const tracked_state& state, const transferred_extras& extras) {
  abort({errc::aborted, "another group of joiners has come"});
  if (thread_.joinable())
    thread_.join();
  settings_ = std::move(settings);
  {
    auto lock = std::lock_guard{mutex_};
    phase_ = phase::open;
    last_error_ = {};
    cancel_forming_ = {};
    latest_ = settings_.step;
    queued_bytes_ = 0;
  }
  try {
    stage_share(state, extras);
    thread_ = std::thread{[this] { run(); }};
  } catch (const std::exception& x) {
    // No memory or no thread: training continues without the joiners.
    leave(nullptr, {errc::unsatisfiable, std::string{"cannot stage the state: "} + x.what()});
  }
}

/// Chunk c is the share of source c mod N.
void state_stager::stage_share(const tracked_state& state, const transferred_extras& extras) {
  auto chunks = chunks_of(state);
  auto size = std::size_t{0};
  for (std::size_t i = settings_.rank.value; i < chunks.size(); i += settings_.sources)
    size += chunks[i].size_bytes;
  share_.reserve(size);
  auto rest = share_.bytes();
  staged_chunks_.clear();
  for (std::size_t i = settings_.rank.value; i < chunks.size(); i += settings_.sources) {
    auto copy = rest.first(chunks[i].size_bytes);
    state.copy_out(chunks[i].tensor, chunks[i].offset_bytes, copy);
    staged_chunks_.push_back(copy);
    rest = rest.subspan(copy.size());
  }
  if (is_first())
    snapshot_ = {staging_kind::snapshot, settings_.step, describe(state, extras)};
}

void state_stager::push_gradient(step_id step, std::span<const std::byte> bytes) {
  push(staging_kind::gradient, step, bytes);
}

void state_stager::push_evaluation(std::span<const double> values) {
  push(staging_kind::evaluation, {}, std::as_bytes(values));
}

void state_stager::push_end(step_id boundary, std::uint64_t commands_agreed, std::uint64_t evaluations) {
  const auto counts = std::array{commands_agreed, evaluations};
  push(staging_kind::end, boundary, bytes_of(counts));
}

bool state_stager::takes_frames() const {
  return phase_ == phase::open && is_first() && last_error_.code == errc::none;
}

void state_stager::push(staging_kind kind, step_id step, std::span<const std::byte> bytes) {
  auto added = frame{kind, step, {}};
  {
    auto lock = std::unique_lock{mutex_};
    if (!takes_frames())
      return;
    queued_bytes_ += bytes.size();
    if (queued_bytes_ >
        std::max<std::uint64_t>(settings_.queue_limit_bytes, settings_.queue_limit_gradients * bytes.size())) {
      lock.unlock();
      return abort({errc::aborted,
                    fmt::format("the joiners are more than {} bytes of gradients behind: they are slower than training",
                                settings_.queue_limit_bytes)});
    }
    if (kind == staging_kind::gradient && !spare_.empty()) {
      added.bytes = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  try {
    added.bytes.assign(bytes.begin(), bytes.end());
    auto lock = std::lock_guard{mutex_};
    if (!takes_frames())
      return;
    queue_.push_back(std::move(added));
    if (kind == staging_kind::end)
      phase_ = phase::ending;
    if (kind == staging_kind::gradient)
      latest_ = step;
  } catch (const std::bad_alloc&) {
    return abort({errc::aborted, "no memory for the gradients that the joiners need"});
  }
  changed_.notify_one();
}

void state_stager::abort(error reason) {
  auto lock = std::unique_lock{mutex_};
  if (phase_ == phase::none || last_error_.code != errc::none)
    return;
  if (reason.code == errc::none)
    reason.code = errc::aborted;
  last_error_ = std::move(reason);
  queue_.clear();
  if (group_ != nullptr)
    group_->abort(last_error_);
  const auto cancel = cancel_forming_;
  lock.unlock();
  changed_.notify_one();
  // Not under the lock: this runs callbacks that `form` has registered.
  cancel.request_stop();
}

bool state_stager::is_active() const {
  auto lock = std::lock_guard{mutex_};
  return phase_ != phase::none;
}

error state_stager::last_error() const {
  auto lock = std::lock_guard{mutex_};
  return last_error_;
}

// A member's thread.

void state_stager::run() {
  auto group = std::unique_ptr<collectives::communicator>{};
  auto reason = error{};
  try {
    group = value_or_throw(settings_.form(cancel_forming_.get_token()));
    if (settings_.deadline)
      group->set_deadline(*settings_.deadline);
    adopt(*group);
    // A member with nothing to send leaves early, so wait until all ranks are connected.
    value_or_throw(group->barrier());
    if (is_first())
      value_or_throw(give(*group, snapshot_));
    value_or_throw(give_share(*group));
    if (is_first())
      value_or_throw(give_frames(*group));
  } catch (const exception& x) {
    reason = x.reason();
  } catch (const std::exception& x) {
    reason = {errc::internal, std::string{"staging the state: "} + x.what()};
  }
  leave(std::move(group), std::move(reason));
}

/// After this call, `abort` reaches the group.
void state_stager::adopt(collectives::communicator& group) {
  if (group.rank() != settings_.rank || group.world_size() != settings_.sources + settings_.joiners)
    throw exception{broken(
        fmt::format("rank {} of {} is another place than that of this member", group.rank(), group.world_size()))};
  auto lock = std::lock_guard{mutex_};
  if (last_error_.code != errc::none)
    throw exception{last_error_};
  group_ = &group;
}

expected<void> state_stager::give_share(collectives::communicator& group) {
  for (auto chunk : staged_chunks_)
    TROUPE_TRY(give_to_all(group, chunk));
  return {};
}

expected<void> state_stager::give_frames(collectives::communicator& group) {
  for (auto is_last = false; !is_last;) {
    auto next = take_frame();
    is_last = next.kind == staging_kind::end;
    TROUPE_TRY(give(group, next));
    release(std::move(next));
  }
  return {};
}

expected<void> state_stager::give(collectives::communicator& group, const frame& what) {
  auto header = frame_header{what.kind, what.step.value, what.bytes.size()};
  TROUPE_TRY(give_to_all(group, bytes_of(header)));
  TROUPE_TRY(for_each_chunk(std::span{what.bytes}, [&](auto chunk) { return give_to_all(group, chunk); }));
  for (std::uint32_t i = 0; i < settings_.joiners; ++i) {
    const auto joiner = rank_id{settings_.sources + i};
    auto asked = question{};
    TROUPE_TRY(group.receive(joiner, writable_bytes_of(asked)));
    auto latest = latest_step().value;
    TROUPE_TRY(group.send(joiner, bytes_of(latest)));
  }
  return {};
}

step_id state_stager::latest_step() const {
  auto lock = std::lock_guard{mutex_};
  return latest_;
}

expected<void> state_stager::give_to_all(collectives::communicator& group, std::span<const std::byte> bytes) {
  for (std::uint32_t i = 0; i < settings_.joiners; ++i)
    TROUPE_TRY(group.send(rank_id{settings_.sources + i}, bytes));
  return {};
}

/// Throws the reason of an abort.
state_stager::frame state_stager::take_frame() {
  auto lock = std::unique_lock{mutex_};
  changed_.wait(lock, [this] { return !queue_.empty() || last_error_.code != errc::none; });
  if (last_error_.code != errc::none)
    throw exception{last_error_};
  auto result = std::move(queue_.front());
  queue_.pop_front();
  return result;
}

void state_stager::release(frame sent) {
  auto lock = std::lock_guard{mutex_};
  queued_bytes_ -= sent.bytes.size();
  if (sent.kind == staging_kind::gradient)
    spare_.push_back(std::move(sent.bytes));
}

void state_stager::leave(std::unique_ptr<collectives::communicator> group, error reason) {
  {
    auto lock = std::lock_guard{mutex_};
    group_ = nullptr;
    if (last_error_.code == errc::none)
      last_error_ = std::move(reason);
    queue_.clear();
    spare_.clear();
  }
  group.reset();
  // Free this share of the state.
  staged_chunks_.clear();
  share_ = collectives::aligned_buffer{};
  if (settings_.given_up && last_error().code != errc::none)
    settings_.given_up();
  auto lock = std::lock_guard{mutex_};
  phase_ = phase::none;
}

// -- a joiner's side -----------------------------------------------------------------------------------------------

staged_state::staged_state(std::unique_ptr<collectives::communicator> group, std::uint32_t sources)
    : group_(std::move(group)), sources_(sources) {}

expected<step_id> staged_state::receive(tracked_state& state, transferred_extras& extras) {
  TROUPE_TRY(group_->barrier());
  TROUPE_TRY(auto snapshot, take_frame());
  auto beside = nlohmann::json::from_cbor(
      reinterpret_cast<const std::uint8_t*>(snapshot.bytes.data()),
      reinterpret_cast<const std::uint8_t*>(snapshot.bytes.data()) + snapshot.bytes.size(), true, false);
  if (snapshot.kind != staging_kind::snapshot || beside.is_discarded())
    return fail(broken("the staged state's metadata is unreadable"));
  auto theirs = beside.at("state_bytes").get<std::uint64_t>();
  if (auto mine = size_bytes_of(state); mine != theirs)
    return fail(errc::mismatch,
                fmt::format("this worker tracks tensors of {} bytes, the others of {}; track the same tensors on all "
                            "workers",
                            mine, theirs));
  auto carrier = chunk_carrier{state};
  auto chunks = chunks_of(state);
  for (std::size_t i = 0; i < chunks.size(); ++i)
    TROUPE_TRY(carrier.receive(*group_, rank_id{static_cast<std::uint32_t>(i % sources_)}, chunks[i]));
  state.values() = std::move(beside.at("values"));
  extras.last_metrics = beside.at("metrics").get<metric_map>();
  return snapshot.step;
}

expected<staged_frame> staged_state::next() {
  TROUPE_TRY(auto got, take_frame());
  switch (got.kind) {
  case staging_kind::gradient:
    return gradient_frame{got.step, got.latest, got.bytes};
  case staging_kind::evaluation: {
    auto values = std::vector<double>(got.bytes.size() / sizeof(double));
    std::ranges::copy(got.bytes, std::as_writable_bytes(std::span{values}).begin());
    return evaluation_frame{std::move(values)};
  }
  case staging_kind::end: {
    auto counts = std::array<std::uint64_t, 2>{};
    if (got.bytes.size() != sizeof counts)
      return fail(broken(fmt::format("an end of {} bytes", got.bytes.size())));
    std::ranges::copy(got.bytes, writable_bytes_of(counts).begin());
    return end_frame{got.step, counts[0], counts[1]};
  }
  case staging_kind::snapshot:
    break;
  }
  return fail(broken(fmt::format("frame of kind {}", static_cast<std::uint64_t>(got.kind))));
}

expected<staged_state::arrived> staged_state::take_frame() {
  auto header = frame_header{};
  TROUPE_TRY(take_from_first(writable_bytes_of(header)));
  buffer_.reserve(header.size_bytes);
  auto bytes = buffer_.bytes().first(header.size_bytes);
  TROUPE_TRY(take_from_first(bytes));
  TROUPE_TRY(group_->send(rank_id{0}, bytes_of(question{})));
  auto latest = std::uint64_t{0};
  TROUPE_TRY(take_from_first(writable_bytes_of(latest)));
  return arrived{header.kind, step_id{header.step}, step_id{latest}, bytes};
}

expected<void> staged_state::take_from_first(std::span<std::byte> bytes) {
  return for_each_chunk(bytes, [this](auto chunk) { return group_->receive(rank_id{0}, chunk); });
}

} // namespace troupe::runtime
