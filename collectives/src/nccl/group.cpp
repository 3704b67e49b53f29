#include "nccl/group.hpp"

#include "device/abort_escalation.hpp"
#include "device/basic_group.hpp"
#include "device/giving_up.hpp"
#include "device/schedule.hpp"
#include "nccl/memory.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fmt/format.h>
#include <optional>
#include <thread>

namespace troupe::collectives {

namespace {

using clock = std::chrono::steady_clock;

/// What the ranks exchange before the group is formed.
struct introduction {
  std::uint64_t generation = 0;
  std::uint32_t world_size = 0;
  std::string device;
  int version = 0;
  /// The previous group, if it can be shrunk; otherwise 0.
  std::uint64_t old_generation = 0;
  std::uint32_t old_rank = 0;
  std::uint32_t old_world_size = 0;

  [[nodiscard]] std::string to_text() const {
    return fmt::format("nccl1 {} {} {} {} {} {} {}", generation, world_size, version, old_generation, old_rank,
                       old_world_size, device);
  }

  [[nodiscard]] static bool parse(const std::string& text, introduction& x) {
    char device[128] = {};
    unsigned long long generation = 0;
    unsigned long long old_generation = 0;
    if (std::sscanf(text.c_str(), "nccl1 %llu %u %d %llu %u %u %127[^\n]", &generation, &x.world_size, &x.version,
                    &old_generation, &x.old_rank, &x.old_world_size, device) != 7)
      return false;
    x.generation = generation;
    x.old_generation = old_generation;
    x.device = device;
    return true;
  }
};

/// The lost old ranks, if the old group can be shrunk to the new one: all new ranks were in it, in the same order.
std::optional<std::vector<int>> plan_shrink(const std::vector<introduction>& ranks) {
  std::vector<int> lost;
  std::uint32_t next = 0;
  for (const auto& x : ranks) {
    if (x.old_generation == 0 || x.old_generation != ranks[0].old_generation ||
        x.old_world_size != ranks[0].old_world_size || x.old_rank < next)
      return std::nullopt;
    for (; next < x.old_rank; ++next)
      lost.push_back(static_cast<int>(next));
    ++next;
  }
  for (; next < ranks[0].old_world_size; ++next)
    lost.push_back(static_cast<int>(next));
  if (lost.empty())
    return std::nullopt;
  return lost;
}

/// From NCCL 2.30 on, two ranks on one device are allowed, as an experiment.
constexpr int first_with_shared_devices = 23000;

class nccl_device_group final : public basic_device_group {
 public:
  nccl_device_group(std::shared_ptr<const nccl::library> library, std::shared_ptr<device> where,
                    const nccl_options& options)
      : basic_device_group(where, options.rank, options.world_size, options.generation, options.deadline,
                           fmt::format("nccl {}", nccl::version_text(library->version)), options.on_hang),
        library_(library),
        memory_(nccl_memory::of(std::move(library), where)),
        received_(where),
        sums_(std::move(where)) {}

  ~nccl_device_group() override {
    stop();
    if (has_failed())
      let_go();
    else if (!is_replaced_)
      leave();
    {
      const std::lock_guard lock{watch_mutex_};
      is_ending_ = true;
    }
    watch_changed_.notify_all();
    if (watchdog_.joinable())
      watchdog_.join();
    // Revoked or replaced, and no new group was made from it.
    if (auto* left = take()) {
      memory_->leave(left, false);
      abort_beside(left);
    }
  }

  expected<void> connect(nccl_options& options, const address_exchange& exchange);

  expected<device_memory> allocate(std::uint64_t size_bytes) override { return memory_->allocate(size_bytes); }
  bool can_be_predecessor() const noexcept override { return true; }

 private:
  // -- forming

  /// What NCCL reads and writes in the background. Leaked if nobody waits for its end.
  struct request {
    nccl::comm made = nullptr;
    nccl::config config;
    std::vector<int> lost = {};
  };

  static nccl::comm leave_behind(std::unique_ptr<request> asked);

  expected<std::vector<introduction>> introduce(const nccl_options& options, nccl_device_group* predecessor,
                                                const address_exchange& exchange) const;
  expected<void> await(nccl::comm group, const char* what, const nccl_options& options, clock::time_point begun_at,
                       std::chrono::milliseconds limit);
  expected<nccl::comm> shrink(nccl_device_group& predecessor, std::vector<int> lost, const nccl_options& options);
  expected<nccl::comm> connect_by(const nccl::unique_id& id, const nccl_options& options);
  expected<nccl::comm> agree_on(expected<nccl::comm> shrunk, const nccl_options& options,
                                const address_exchange& exchange);

  // -- reducing

  expected<void> reduce_exactly(const reduction& what) override;
  expected<void> reduce_fast(const reduction& what) override;

  /// The first of several calls that failed.
  struct outcome {
    nccl::result code = nccl::success;
    const char* call = "";

    void note(const char* name, nccl::result x) {
      if (code == nccl::success && x != nccl::success && x != nccl::in_progress) {
        code = x;
        call = name;
      }
    }
  };

  /// Makes a group of NCCL calls and waits until they are on the stream.
  template <class F>
  expected<void> grouped(const std::string& what, clock::time_point ends_at, F calls);
  expected<void> use_memory(const std::byte* data);
  expected<void> look_around() override;
  [[nodiscard]] tl::unexpected<error> refused(const char* call, nccl::result code, errc loss = errc::aborted) const;

  // -- giving up

  void wake() noexcept override;
  void let_go() noexcept override;
  void leave() noexcept;
  void watch();
  [[nodiscard]] bool comes_to_rest(nccl::comm group) noexcept;
  [[nodiscard]] bool lock_before(clock::time_point ends_at) noexcept;
  void give_up();
  void abort_beside(nccl::comm group) noexcept;

  /// This object owns the communicator until a thread takes it to end it. Every NCCL call holds the mutex: none of them
  /// blocks, and the communicator cannot be freed meanwhile.
  [[nodiscard]] nccl::comm take() noexcept {
    const std::lock_guard lock{comm_mutex_};
    return std::exchange(comm_, nullptr);
  }

  const std::shared_ptr<const nccl::library> library_;
  const std::shared_ptr<nccl_memory> memory_;
  std::mutex comm_mutex_;
  nccl::comm comm_ = nullptr;
  device_scratch received_;
  device_scratch sums_;
  /// The new group has replaced this one. Finalizing it would wait for ranks that are gone.
  bool is_replaced_ = false;

  std::mutex watch_mutex_;
  std::condition_variable watch_changed_;
  bool is_given_up_ = false;
  bool is_let_go_ = false;
  bool is_revoked_ = false;
  bool is_ending_ = false;
  std::thread watchdog_;
};

/// NCCL reports connections that break because a peer died as remote errors or as system errors. The driver knows in
/// either case who is lost.
tl::unexpected<error> nccl_device_group::refused(const char* call, nccl::result code, errc loss) const {
  std::string text = fmt::format("{}: {}", call, library_->get_error_string(code));
  if (const auto* last = library_->get_last_error(nullptr); last != nullptr && *last != '\0')
    text += fmt::format(" ({})", last);
  const auto is_loss = code == nccl::remote_error || code == nccl::system_error;
  return fail(is_loss ? loss : errc::device_error, std::move(text));
}

// -- forming ---------------------------------------------------------------------------------------------------------

expected<std::vector<introduction>> nccl_device_group::introduce(const nccl_options& options,
                                                                 nccl_device_group* predecessor,
                                                                 const address_exchange& exchange) const {
  introduction mine{generation_.value, world_size_, where_->info().uuid, library_->version};
  if (predecessor != nullptr) {
    mine.old_generation = predecessor->generation_.value;
    mine.old_rank = predecessor->rank_.value;
    mine.old_world_size = predecessor->world_size_;
  }
  auto blobs = exchange(mine.to_text());
  if (!blobs)
    return fail(std::move(blobs.error()));
  std::vector<introduction> result(blobs->size());
  for (std::size_t i = 0; i < blobs->size(); ++i)
    if (!introduction::parse((*blobs)[i], result[i]) || result[i].generation != generation_.value ||
        result[i].world_size != world_size_ || blobs->size() != world_size_)
      return fail(
          errc::mismatch,
          fmt::format("{}: rank {}'s introduction is from another generation or group, or malformed", named(), i));
  for (std::size_t i = 0; i < result.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (result[i].device == result[k].device && library_->version < first_with_shared_devices)
        return fail(errc::invalid_argument,
                    fmt::format("{}: ranks {} and {} are on one GPU, which NCCL {} does not support: give each its own "
                                "GPU, or leave the choice of the transport to Troupe",
                                named(), k, i, nccl::version_text(library_->version)));
  if (options.cancelled.stop_requested())
    return fail(errc::aborted, fmt::format("{}: cancelled while the group was being formed", named()));
  return result;
}

/// Waits until NCCL has finished in the background. An unreachable peer may be lost, or behind a firewall: unlike a
/// loss, this is not retried for ever.
expected<void> nccl_device_group::await(nccl::comm group, const char* what, const nccl_options& options,
                                        clock::time_point begun_at, std::chrono::milliseconds limit) {
  for (;;) {
    auto code = nccl::success;
    if (const auto asked = library_->comm_get_async_error(group, &code); asked != nccl::success)
      return refused("ncclCommGetAsyncError", asked, errc::unreachable);
    if (code == nccl::success)
      return {};
    if (code != nccl::in_progress)
      return refused(what, code, errc::unreachable);
    if (options.cancelled.stop_requested())
      return fail(errc::aborted, fmt::format("{}: cancelled while the group was being formed", named()));
    if (clock::now() > begun_at + limit)
      return fail(
          errc::timed_out,
          fmt::format("{}: {} did not end within {} ms: a rank is late or lost, or the hosts cannot reach each other",
                      named(), what, limit.count()));
    std::this_thread::sleep_for(std::chrono::microseconds{200});
  }
}

/// Keeps it for the life of the process, reachable for leak checkers: NCCL may still write to it.
nccl::comm nccl_device_group::leave_behind(std::unique_ptr<request> asked) {
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::vector<std::unique_ptr<request>>;
  const std::lock_guard lock{mutex};
  return all.emplace_back(std::move(asked))->made;
}

expected<nccl::comm> nccl_device_group::shrink(nccl_device_group& predecessor, std::vector<int> lost,
                                               const nccl_options& options) {
  auto* parent = predecessor.take();
  if (parent == nullptr)
    return fail(errc::aborted, "the previous group is gone");
  memory_->leave(parent, false);
  const auto begun_at = clock::now();
  auto asked = std::make_unique<request>();
  asked->lost = std::move(lost);
  auto code = library_->comm_shrink(parent, asked->lost.data(), static_cast<int>(asked->lost.size()), &asked->made,
                                    &asked->config, 0);
  expected<void> done;
  if (code != nccl::success && code != nccl::in_progress)
    done = refused("ncclCommShrink", code);
  // The new communicator is ready when the old one has finished the call.
  if (done)
    done = await(parent, "ncclCommShrink", options, begun_at, options.shrink_deadline);
  if (done && asked->made == nullptr)
    done = fail(errc::device_error, "ncclCommShrink: returned no communicator");
  if (done)
    done = await(asked->made, "ncclCommShrink", options, begun_at, options.shrink_deadline);
  abort_beside(parent);
  if (done)
    return asked->made;
  if (auto* made = leave_behind(std::move(asked)); made != nullptr)
    abort_beside(made);
  return fail(std::move(done.error()));
}

expected<nccl::comm> nccl_device_group::connect_by(const nccl::unique_id& id, const nccl_options& options) {
  auto asked = std::make_unique<request>();
  const auto code = library_->comm_init_rank_config(&asked->made, static_cast<int>(world_size_), id,
                                                    static_cast<int>(rank_.value), &asked->config);
  if (code != nccl::success && code != nccl::in_progress)
    return refused("ncclCommInitRankConfig", code, errc::unreachable);
  if (auto done = await(asked->made, "ncclCommInitRankConfig", options, clock::now(), options.connect_deadline);
      !done) {
    abort_beside(leave_behind(std::move(asked)));
    return fail(std::move(done.error()));
  }
  return asked->made;
}

/// All ranks agree on whether the old group was shrunk. Rank 0 also sends an id in case some failed, or the reason why
/// it has none.
expected<nccl::comm> nccl_device_group::agree_on(expected<nccl::comm> shrunk, const nccl_options& options,
                                                 const address_exchange& exchange) {
  const auto is_shrunk = shrunk && *shrunk != nullptr;
  const auto drop = [&] {
    if (is_shrunk)
      abort_beside(*shrunk);
  };
  std::string word = is_shrunk ? "1" : "0";
  expected<void> has_id;
  if (rank_.value == 0) {
    nccl::unique_id id{};
    if (const auto code = library_->get_unique_id(&id); code != nccl::success) {
      has_id = refused("ncclGetUniqueId", code, errc::unreachable);
      word.append("e").append(has_id.error().message);
    } else {
      word.append("i").append(id.internal, sizeof(id.internal));
    }
  }
  auto words = exchange(std::move(word));
  if (!words) {
    drop();
    return fail(std::move(words.error()));
  }
  if (std::ranges::all_of(*words, [](const std::string& x) { return x.starts_with('1'); }))
    return shrunk;
  drop();
  // This rank has the cause; the driver reports it to the others.
  if (!has_id)
    return fail(std::move(has_id.error()));
  const auto& first = words->front();
  nccl::unique_id id{};
  if (first.size() > 1 && first[1] == 'e')
    return fail(errc::aborted, fmt::format("{}: rank 0 got no id from NCCL: {}", named(), first.substr(2)));
  if (first.size() != 2 + sizeof(id.internal) || first[1] != 'i')
    return fail(errc::mismatch, fmt::format("{}: rank 0 sent no NCCL id", named()));
  std::memcpy(id.internal, first.data() + 2, sizeof(id.internal));
  return connect_by(id, options);
}

expected<void> nccl_device_group::connect(nccl_options& options, const address_exchange& exchange) {
  auto* predecessor = dynamic_cast<nccl_device_group*>(options.predecessor.get());
  if (predecessor != nullptr)
    predecessor->is_replaced_ = true;
  if (auto opened = open(); !opened)
    return opened;
  if (auto current = where_->make_current(); !current)
    return current;
  if (predecessor != nullptr) {
    // Ends whatever it is still doing.
    static_cast<void>(predecessor->finish());
    if (predecessor->has_failed())
      predecessor->let_go();
    const std::lock_guard lock{predecessor->watch_mutex_};
    const auto is_quiet = predecessor->is_revoked_ || !predecessor->has_failed();
    if (!library_->can_shrink() || !is_quiet || predecessor->library_ != library_)
      predecessor = nullptr;
  }
  auto ranks = introduce(options, predecessor, exchange);
  if (!ranks)
    return fail(std::move(ranks.error()));
  expected<nccl::comm> made = nccl::comm{nullptr};
  if (const auto lost = plan_shrink(*ranks)) {
    made = shrink(*predecessor, *lost, options);
    if (!made && options.note)
      options.note(fmt::format("{}: the previous group cannot be shrunk ({}); forming a new one", named(),
                               made.error().message));
  }
  options.predecessor.reset();
  made = agree_on(std::move(made), options, exchange);
  if (!made)
    return fail(std::move(made.error()));
  comm_ = *made;
  watchdog_ = std::thread{[this] { watch(); }};
  return {};
}

// -- reducing --------------------------------------------------------------------------------------------------------

template <class F>
expected<void> nccl_device_group::grouped(const std::string& what, clock::time_point ends_at, F calls) {
  if (auto current = where_->make_current(); !current)
    return current;
  {
    const std::lock_guard lock{comm_mutex_};
    if (comm_ == nullptr)
      return state();
    if (const auto code = library_->group_start(); code != nccl::success)
      return refused("ncclGroupStart", code);
    outcome made;
    calls(comm_, made);
    // Also after a failed call: the group has to be closed.
    made.note("ncclGroupEnd", library_->group_end());
    if (made.code != nccl::success)
      return refused(made.call, made.code);
  }
  // The kernels are on the stream only once this is done, and no other call may be made before.
  return poll(
      [this]() -> expected<bool> {
        const std::lock_guard lock{comm_mutex_};
        if (comm_ == nullptr)
          return false;
        auto code = nccl::success;
        if (const auto asked = library_->comm_get_async_error(comm_, &code); asked != nccl::success)
          return refused("ncclCommGetAsyncError", asked);
        if (code == nccl::in_progress)
          return false;
        if (code != nccl::success)
          return refused("NCCL", code);
        return true;
      },
      what, ends_at);
}

/// While it waits: asks whether NCCL has lost a peer.
expected<void> nccl_device_group::look_around() {
  if (auto fine = state(); !fine)
    return fine;
  const std::lock_guard lock{comm_mutex_};
  auto code = nccl::success;
  if (comm_ == nullptr || library_->comm_get_async_error(comm_, &code) != nccl::success)
    return {};
  if (code != nccl::success && code != nccl::in_progress)
    return refused("NCCL", code);
  return {};
}

expected<void> nccl_device_group::use_memory(const std::byte* data) {
  const std::lock_guard lock{comm_mutex_};
  // Registration only makes it faster: memory that cannot be registered is used as it is.
  if (comm_ != nullptr && library_->can_register())
    static_cast<void>(memory_->use(comm_, data));
  return {};
}

expected<void> nccl_device_group::reduce_exactly(const reduction& what) {
  const auto range = what.range();
  if (range.size_bytes() == 0)
    return {};
  const auto schedule = plan_device_schedule(*what.plan, what.layout, range, world_size_, rank_.value);
  auto room = received_.reserve(schedule.received_bytes);
  if (!room)
    return fail(std::move(room.error()));
  for (const auto& operand : what.operands)
    if (auto used = use_memory(operand.data); !used)
      return used;
  auto* result = what.result->data();
  if (auto used = use_memory(result); !used)
    return used;
  if (auto held = what.ready->hold(stream_); !held)
    return held;
  const auto send = [&](nccl::comm group, const std::byte* data, std::uint64_t size_bytes, std::uint32_t peer) {
    return library_->send(data, size_bytes, nccl::uint8, static_cast<int>(peer), group, stream_.handle());
  };
  const auto receive = [&](nccl::comm group, std::byte* data, std::uint64_t size_bytes, std::uint32_t peer) {
    return library_->receive(data, size_bytes, nccl::uint8, static_cast<int>(peer), group, stream_.handle());
  };
  if (world_size_ > 1) {
    if (auto moved = grouped(what.call, what.ends_at,
                             [&](nccl::comm group, outcome& made) {
                               for (const auto& x : schedule.sends)
                                 made.note("ncclSend", send(group, what.operands[x.index].data + x.offset_bytes,
                                                            x.size_bytes, x.peer));
                               for (const auto& x : schedule.receives)
                                 made.note("ncclRecv", receive(group, *room + x.offset_bytes, x.size_bytes, x.peer));
                             });
        !moved)
      return moved;
    if (auto marked = mark(stream_.handle(), waits_for::peers); !marked)
      return marked;
  }
  std::vector<const std::byte*> operands;
  for (const auto& place : schedule.operands)
    operands.push_back(place.is_mine ? what.operands[place.position].data + place.offset_bytes
                                     : *room + place.offset_bytes);
  const auto slice = schedule.slices[rank_.value];
  if (auto put = arithmetic_.reduce(*what.plan, what.layout, what.divisor, operands, slice, result + slice.first,
                                    stream_.handle());
      !put)
    return put;
  if (!schedule.is_spread)
    return expect(stream_.handle(), what, waits_for::own_gpu);
  if (auto marked = mark(stream_.handle(), waits_for::own_gpu); !marked)
    return marked;
  if (auto moved =
          grouped(what.call, what.ends_at,
                  [&](nccl::comm group, outcome& made) {
                    if (schedule.is_even)
                      return made.note("ncclAllGather",
                                       library_->all_gather(result + slice.first, result + range.first,
                                                            slice.size_bytes(), nccl::uint8, group, stream_.handle()));
                    for (std::uint32_t k = 1; k < world_size_; ++k) {
                      const auto to = (rank_.value + k) % world_size_;
                      const auto from = (rank_.value + world_size_ - k) % world_size_;
                      const auto theirs = schedule.slices[from];
                      if (slice.size_bytes() != 0)
                        made.note("ncclSend", send(group, result + slice.first, slice.size_bytes(), to));
                      if (theirs.size_bytes() != 0)
                        made.note("ncclRecv", receive(group, result + theirs.first, theirs.size_bytes(), from));
                    }
                  });
      !moved)
    return moved;
  return expect(stream_.handle(), what, waits_for::peers);
}

expected<void> nccl_device_group::reduce_fast(const reduction& what) {
  const auto range = what.range();
  if (range.size_bytes() == 0)
    return {};
  const auto* contribution = what.operands[0].data + range.first;
  auto* result = what.result->data() + range.first;
  if (auto used = use_memory(contribution); !used)
    return used;
  if (auto used = use_memory(result); !used)
    return used;
  if (auto held = what.ready->hold(stream_); !held)
    return held;
  const auto pieces = what.layout.part(range);
  auto summed = grouped(what.call, what.ends_at, [&](nccl::comm group, outcome& made) {
    for (std::size_t i = 0; i < pieces.segments().size(); ++i) {
      const auto at = pieces.offset_bytes(i);
      const auto type = pieces.segments()[i].type;
      const auto elements = (pieces.offset_bytes(i + 1) - at) / size_of(type);
      made.note("ncclAllReduce", library_->all_reduce(contribution + at, result + at, elements, nccl::type_of(type),
                                                      nccl::sum, group, stream_.handle()));
    }
  });
  if (!summed)
    return summed;
  if (what.divisor != 1) {
    auto sum = sums_.reserve(pieces.offset_in_sums(pieces.size_bytes()));
    if (!sum)
      return fail(std::move(sum.error()));
    if (auto put = arithmetic_.widen(what.layout, result, range, *sum, stream_.handle()); !put)
      return put;
    if (auto put = arithmetic_.finish(what.layout, what.divisor, *sum, range, result, stream_.handle()); !put)
      return put;
  }
  return expect(stream_.handle(), what, waits_for::peers);
}

// -- giving up -------------------------------------------------------------------------------------------------------

void nccl_device_group::wake() noexcept {
  {
    const std::lock_guard lock{watch_mutex_};
    is_given_up_ = true;
  }
  watch_changed_.notify_all();
}

/// Returns once NCCL has released the streams. If it hangs, ends this process.
void nccl_device_group::let_go() noexcept {
  std::unique_lock lock{watch_mutex_};
  if (!watchdog_.joinable())
    return;
  watch_changed_.wait(lock, [this] { return is_let_go_; });
  lock.unlock();
  settle(stream_);
}

/// All work is done: the others leave too, or have left.
void nccl_device_group::leave() noexcept {
  auto* group = take();
  if (group == nullptr)
    return;
  memory_->leave(group, true);
  static_cast<void>(where_->make_current());
  auto code = library_->comm_finalize(group);
  for (const auto ends_at = clock::now() + on_hang_.abort_deadline;
       code == nccl::in_progress && clock::now() < ends_at;) {
    std::this_thread::sleep_for(std::chrono::microseconds{200});
    if (library_->comm_get_async_error(group, &code) != nccl::success)
      code = nccl::internal_error;
  }
  if (code == nccl::success)
    static_cast<void>(library_->comm_destroy(group));
  else
    abort_beside(group);
}

/// For a communicator without running work: if NCCL hangs here, it harms nobody.
void nccl_device_group::abort_beside(nccl::comm group) noexcept {
  struct outcome {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
  };
  auto shared = std::make_shared<outcome>();
  std::thread{[library = library_, where = where_, group, shared] {
    static_cast<void>(where->make_current());
    static_cast<void>(library->comm_abort(group));
    {
      const std::lock_guard lock{shared->mutex};
      shared->is_done = true;
    }
    shared->changed.notify_all();
  }}.detach();
  std::unique_lock lock{shared->mutex};
  shared->changed.wait_for(lock, on_hang_.abort_deadline, [&] { return shared->is_done; });
}

void nccl_device_group::watch() {
  {
    std::unique_lock lock{watch_mutex_};
    watch_changed_.wait(lock, [this] { return is_given_up_ || is_ending_; });
    if (!is_given_up_)
      return;
  }
  give_up();
  {
    const std::lock_guard lock{watch_mutex_};
    is_let_go_ = true;
  }
  watch_changed_.notify_all();
}

/// Whether no call is running on it and none has failed. NCCL up to 2.30.7 frees a running call when it revokes the
/// communicator, and accesses it later. A failed communicator never reports that it is revoked.
bool nccl_device_group::comes_to_rest(nccl::comm group) noexcept {
  static_cast<void>(where_->make_current());
  auto code = nccl::in_progress;
  for (const auto ends_at = clock::now() + std::chrono::milliseconds{100};;) {
    if (library_->comm_get_async_error(group, &code) != nccl::success)
      return false;
    if (code != nccl::in_progress || clock::now() > ends_at)
      return code == nccl::success;
    std::this_thread::sleep_for(std::chrono::microseconds{200});
  }
}

/// Not a std::timed_mutex: GCC 12's ThreadSanitizer does not understand how it is locked.
bool nccl_device_group::lock_before(clock::time_point ends_at) noexcept {
  while (!comm_mutex_.try_lock()) {
    if (clock::now() > ends_at)
      return false;
    std::this_thread::sleep_for(std::chrono::microseconds{200});
  }
  return true;
}

void nccl_device_group::give_up() {
  // A call that hangs keeps the mutex: then only the process can end, not the communicator.
  auto* group = nccl::comm{nullptr};
  const auto is_reachable = lock_before(clock::now() + on_hang_.abort_deadline);
  if (is_reachable) {
    group = std::exchange(comm_, nullptr);
    comm_mutex_.unlock();
  }
  if (is_reachable && group == nullptr)
    return;
  // From now on no memory is deregistered from it.
  memory_->leave(group, false);
  escalation_calls calls;
  if (is_reachable) {
    // An abort frees the communicator: it starts when no call is inside NCCL, and no call follows it.
    struct turn {
      std::mutex mutex;
      bool is_over = false;
    };
    const auto turns = std::make_shared<turn>();
    calls.revoke = [library = library_, where = where_, group, turns] {
      static_cast<void>(where->make_current());
      auto code = nccl::in_progress;
      for (bool has_begun = false; code == nccl::in_progress; has_begun = true) {
        if (has_begun)
          std::this_thread::sleep_for(std::chrono::milliseconds{1});
        const std::lock_guard lock{turns->mutex};
        if (turns->is_over)
          return false;
        // Revoke once it is quiet.
        if (!has_begun)
          code = library->comm_revoke(group, 0);
        else if (library->comm_get_async_error(group, &code) != nccl::success)
          code = nccl::internal_error;
      }
      return code == nccl::success;
    };
    calls.abort = [library = library_, where = where_, group, turns] {
      static_cast<void>(where->make_current());
      const std::lock_guard lock{turns->mutex};
      turns->is_over = true;
      return library->comm_abort(group) == nccl::success;
    };
  }
  abort_escalation escalation{library_->can_shrink() && is_reachable && comes_to_rest(group), limits_of(on_hang_)};
  const auto end = escalate(escalation, escalation.begin(clock::now()), on_hang_, named(), calls);
  const std::scoped_lock locks{comm_mutex_, watch_mutex_};
  is_process_ending_ = end == escalation_end::ends_process;
  if (end == escalation_end::revoked) {
    comm_ = group;
    is_revoked_ = true;
  }
}

} // namespace

expected<std::unique_ptr<device_group>> make_nccl_group(std::shared_ptr<const nccl::library> library,
                                                        std::shared_ptr<device> where, nccl_options options,
                                                        const address_exchange& exchange) {
  if (options.world_size == 0 || options.rank.value >= options.world_size)
    return fail(errc::invalid_argument, fmt::format("rank {} is not one of {} ranks; name a rank of the group",
                                                    options.rank, options.world_size));
  auto group = std::make_unique<nccl_device_group>(std::move(library), std::move(where), options);
  if (auto connected = group->connect(options, exchange); !connected)
    return fail(std::move(connected.error()));
  return group;
}

expected<std::unique_ptr<device_group>> make_nccl_group(std::shared_ptr<device> where, nccl_options options,
                                                        const address_exchange& exchange) {
  auto library = nccl::open_library();
  if (!library)
    return fail(std::move(library.error()));
  return make_nccl_group(std::move(*library), std::move(where), std::move(options), exchange);
}

} // namespace troupe::collectives
