#include "nccl_exchange.hpp"

#include <bit>
#include <condition_variable>
#include <cstddef>

/// Replaces NCCL on machines without GPUs (README.md): a library with its functions for ranks that are processes or
/// threads, over sockets and the fake CUDA runtime. It keeps NCCL's rules for non-blocking communicators: calls return
/// at once, their work is on the stream only when the state is success again, a group is one piece of work, an
/// operation whose peer is gone does not end on its own, and an abort frees the communicator. A program that violates
/// NCCL's rules ends with "fake NCCL: " and the reason, so that no test misses it.

using namespace fake_nccl;

namespace {

// -- the communicator ------------------------------------------------------------------------------------------------

class communicator;

/// Assigns a handle to the communicator.
nccl::comm hand_out(std::shared_ptr<communicator> made);

/// One rank's communicator. Calls come from any thread; work runs on the threads of streams.
class communicator : public std::enable_shared_from_this<communicator> {
 public:
  communicator(const rendezvous& where, int rank, int size, const cudaUUID_t& device)
      : mesh_(where, rank, size, device) {
    former_ = std::thread{[this] { form(); }};
  }
  ~communicator() { former_.join(); }
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;

  /// Queues an operation for the stream, together with the others of its group.
  [[nodiscard]] nccl::result add(const char* call, const operation& what) {
    const std::lock_guard lock{mutex_};
    demand_idle(call, phase_ == phase::used);
    demand(what.peer >= 0 && what.peer < mesh_.size(), call, "the peer is not a rank of the communicator");
    demand(pending_.empty() || pending_.front().stream == what.stream, call,
           "groups on several streams are not supported");
    if (failure_.code == nccl::success)
      pending_.push_back(what);
    return report(failure_);
  }

  /// Called when the group is closed.
  void launch() {
    const std::lock_guard lock{mutex_};
    become_busy();
  }

  /// Returns the state. Enqueues pending work on its stream if it is ready.
  [[nodiscard]] nccl::result poll() {
    const std::lock_guard lock{mutex_};
    const auto is_hanging = phase_ == phase::revoked && is_set("TROUPE_FAKE_NCCL_REVOKE_HANGS");
    if (failure_.code == nccl::success && (!is_formed_ || clock::now() < ready_at_ || is_hanging))
      return nccl::in_progress;
    if (child_ && !has_made_child())
      return nccl::in_progress;
    if (!pending_.empty())
      place();
    if (failure_.code != nccl::success)
      return report(failure_);
    // A communicator that is finalized or revoked becomes idle.
    if (phase_ != phase::used && unfinished_ != 0)
      return nccl::in_progress;
    is_busy_ = false;
    return nccl::success;
  }

  [[nodiscard]] nccl::result finalize() {
    const std::lock_guard lock{mutex_};
    demand_idle("ncclCommFinalize", phase_ == phase::used);
    if (failure_.code != nccl::success)
      return report(failure_);
    phase_ = phase::finalized;
    become_busy();
    return nccl::in_progress;
  }

  [[nodiscard]] nccl::result revoke() {
    const std::lock_guard lock{mutex_};
    demand_idle("ncclCommRevoke", phase_ == phase::used);
    phase_ = phase::revoked;
    become_busy();
    if (!is_set("TROUPE_FAKE_NCCL_REVOKE_HANGS"))
      give_up();
    return nccl::in_progress;
  }

  /// Writes `*made` when the state is success again.
  [[nodiscard]] nccl::result shrink(const std::set<int>& excluded, nccl::comm* made) {
    constexpr const auto* call = "ncclCommShrink";
    const std::lock_guard lock{mutex_};
    demand_idle(call, phase_ != phase::finalized);
    demand(unfinished_ == 0, call, "work of the communicator is still on a stream");
    demand(*excluded.begin() >= 0 && *excluded.rbegin() < mesh_.size() && !excluded.contains(mesh_.rank()), call,
           "an excluded rank is the caller's, or not a rank of the communicator");
    if (failure_.code != nccl::success)
      return report(failure_);
    if (mesh_.rank() == 0 && is_set("TROUPE_FAKE_NCCL_SHRINK_FAILS"))
      return report({nccl::system_error, "Call to shrink failed: as TROUPE_FAKE_NCCL_SHRINK_FAILS says"});
    const auto below = std::distance(excluded.begin(), excluded.lower_bound(mesh_.rank()));
    child_ = std::make_shared<communicator>(child_of(mesh_.where(), shrinks_++), mesh_.rank() - static_cast<int>(below),
                                            mesh_.size() - static_cast<int>(excluded.size()), mesh_.device());
    made_ = made;
    become_busy();
    return nccl::in_progress;
  }

  void destroy() {
    std::unique_lock lock{mutex_};
    demand_idle("ncclCommDestroy", failure_.code == nccl::success);
    wait_for_work(lock);
    mesh_.close();
  }

  void abort() {
    std::unique_lock lock{mutex_};
    pending_.clear();
    if (is_set("TROUPE_FAKE_NCCL_ABORT_HANGS"))
      wait_for_work(lock);
    give_up();
    changed_.wait(lock, [this] { return is_formed_; });
    wait_for_work(lock);
    mesh_.close();
    if (child_)
      child_->abort();
    child_ = nullptr;
  }

  [[nodiscard]] void* add_registration(const void* data) {
    const std::lock_guard lock{mutex_};
    demand_idle("ncclCommRegister", phase_ == phase::used);
    for (const auto& [handle, registered] : registrations_)
      demand(registered != data, "ncclCommRegister", "the memory is already registered");
    auto* handle = reinterpret_cast<void*>(16 * ++last_registration_); // NOLINT(performance-no-int-to-ptr)
    registrations_[handle] = data;
    return handle;
  }

  void remove_registration(void* handle) {
    const std::lock_guard lock{mutex_};
    demand(registrations_.erase(handle) == 1, "ncclCommDeregister", "the handle does not belong to the communicator");
  }

 private:
  enum class phase { used, finalized, revoked };

  /// The work of one group on a stream.
  struct placed {
    std::shared_ptr<communicator> owner;
    std::vector<operation> all;
    std::uint64_t number;
  };

  /// Checks that the state has been success since the last asynchronous call, and that this call is allowed.
  void demand_idle(const char* call, bool is_allowed) const {
    demand(!is_busy_ || failure_.code != nccl::success, call, "the communicator is still in progress");
    demand(is_allowed, call, "the communicator is finalized, revoked or broken");
  }

  void become_busy() {
    is_busy_ = true;
    ready_at_ = clock::now() + std::chrono::microseconds{300};
  }

  void form() {
    auto formed = mesh_.form(is_given_up_);
    const std::lock_guard lock{mutex_};
    is_formed_ = true;
    failure_ = std::move(formed);
    changed_.notify_all();
  }

  void give_up() {
    is_given_up_ = true;
    pending_.clear();
    changed_.notify_all();
  }

  /// A lost device does no work.
  void wait_for_work(std::unique_lock<std::mutex>& lock) {
    int device = 0;
    while (unfinished_ != 0 && cudaGetDevice(&device) == cudaSuccess)
      changed_.wait_for(lock, std::chrono::milliseconds{glance_ms});
  }

  /// Or has failed to do so.
  bool has_made_child() {
    const auto state = child_->poll();
    if (state == nccl::in_progress)
      return false;
    if (state == nccl::success)
      *made_ = hand_out(child_);
    else
      failure_ = {state, last_error.load()};
    child_ = nullptr;
    return true;
  }

  void place() {
    auto* stream = static_cast<cudaStream_t>(pending_.front().stream);
    auto work = std::make_unique<placed>(placed{shared_from_this(), std::exchange(pending_, {}), placed_});
    if (const auto code = cudaLaunchHostFunc(stream, &run_placed, work.get()); code != cudaSuccess) {
      failure_ = cuda_failure(code);
      return;
    }
    static_cast<void>(work.release());
    ++placed_;
    ++unfinished_;
  }

  static void run_placed(void* argument) {
    const std::unique_ptr<placed> work{static_cast<placed*>(argument)};
    work->owner->run(*work);
  }

  void run(placed& work) {
    {
      std::unique_lock lock{mutex_};
      changed_.wait(lock, [&] { return turn_ == work.number || is_given_up_; });
    }
    if (!is_given_up_)
      group_work{mesh_}.run(std::move(work.all), is_given_up_, [this](int peer) { on_peer_gone(peer); });
    const std::lock_guard lock{mutex_};
    ++turn_;
    --unfinished_;
    changed_.notify_all();
  }

  /// NCCL notices a lost peer only over a network, not between processes on one host.
  void on_peer_gone(int peer) {
    if (!is_set("TROUPE_FAKE_NCCL_NOTICES"))
      return;
    const std::lock_guard lock{mutex_};
    failure_ = {nccl::remote_error, "Connection closed by remote peer, rank " + std::to_string(peer)};
  }

  mesh mesh_;
  std::atomic<bool> is_given_up_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_formed_ = false;
  /// Until a caller has seen success.
  bool is_busy_ = true;
  clock::time_point ready_at_;
  phase phase_ = phase::used;
  outcome failure_;
  std::vector<operation> pending_;
  /// Pieces of work: enqueued, completed (in this order across streams), and not yet completed.
  std::uint64_t placed_ = 0;
  std::uint64_t turn_ = 0;
  std::uint64_t unfinished_ = 0;
  std::uint64_t shrinks_ = 0;
  std::shared_ptr<communicator> child_;
  nccl::comm* made_ = nullptr;
  std::map<void*, const void*> registrations_;
  std::uintptr_t last_registration_ = 0;
  std::thread former_;
};

// -- handles ---------------------------------------------------------------------------------------------------------

/// The objects that are not freed. A handle is a number that is never reused, so that calls on freed objects are found.
struct registry {
  struct entry {
    std::shared_ptr<communicator> group;
    /// Calls that have not returned yet.
    int calls = 0;
  };

  std::mutex mutex;
  std::map<nccl::comm, entry> groups;
  std::uintptr_t last_handle = 0;
  /// Blocks and their sizes.
  std::map<const void*, std::uint64_t> memory;
};

/// Never destroyed: threads of streams live as long as the process.
registry& everything() {
  static auto& result = *new registry;
  return result;
}

nccl::comm hand_out(std::shared_ptr<communicator> made) {
  auto& known = everything();
  const std::lock_guard lock{known.mutex};
  auto* handle = reinterpret_cast<nccl::comm>(16 * ++known.last_handle); // NOLINT(performance-no-int-to-ptr)
  known.groups[handle].group = std::move(made);
  return handle;
}

/// A call on a communicator, until it returns.
class call {
 public:
  call(nccl::comm handle, const char* name) : handle_(handle), name_(name) {
    auto& known = everything();
    const std::lock_guard lock{known.mutex};
    const auto found = known.groups.find(handle);
    demand(found != known.groups.end(), name, "the communicator is freed or invalid");
    group_ = found->second.group;
    ++found->second.calls;
  }
  call(const call&) = delete;
  call& operator=(const call&) = delete;
  ~call() {
    auto& known = everything();
    const std::lock_guard lock{known.mutex};
    if (const auto found = known.groups.find(handle_); found != known.groups.end())
      --found->second.calls;
  }

  communicator* operator->() const { return group_.get(); }

  /// Invalidates the handle. No other thread may be in a call with it.
  void free() const {
    auto& known = everything();
    const std::lock_guard lock{known.mutex};
    const auto found = known.groups.find(handle_);
    demand(found != known.groups.end() && found->second.calls == 1, name_, "another thread is in a call on it");
    known.groups.erase(found);
  }

 private:
  const nccl::comm handle_;
  const char* const name_;
  std::shared_ptr<communicator> group_;
};

thread_local int group_depth = 0;
thread_local std::set<nccl::comm> grouped;

nccl::result close_group() {
  const auto all = std::exchange(grouped, {});
  for (auto* handle : all)
    call(handle, "ncclGroupEnd")->launch();
  return all.empty() ? nccl::success : nccl::in_progress;
}

nccl::result add(const char* name, nccl::comm group, const operation& what) {
  const auto has_memory =
      (what.what == kind::receive || what.from != nullptr) && (what.what == kind::send || what.to != nullptr);
  demand(what.size_bytes() == 0 || has_memory, name, "a null pointer");
  if (const auto code = call(group, name)->add(name, what); code != nccl::success)
    return code;
  grouped.insert(group);
  return group_depth == 0 ? close_group() : nccl::success;
}

void demand_config(const char* name, const nccl::config* how) {
  demand(how != nullptr && how->magic == 0xcafebeef, name, "the configuration is not initialized");
  demand(how->blocking == 0, name, "blocking communicators are not supported");
}

} // namespace

// -- NCCL's functions ------------------------------------------------------------------------------------------------

// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

nccl::result ncclGetVersion(int* version) {
  *version = library_version();
  return nccl::success;
}

nccl::result ncclGetUniqueId(nccl::unique_id* id) {
  if (::getrandom(id->internal, sizeof(id->internal), 0) != static_cast<ssize_t>(sizeof(id->internal)))
    return report({nccl::system_error, "Call to getrandom failed"});
  return nccl::success;
}

/// The rank's device is the current one of the calling thread.
nccl::result ncclCommInitRankConfig(nccl::comm* made, int ranks, nccl::unique_id id, int rank, nccl::config* how) {
  constexpr const auto* name = "ncclCommInitRankConfig";
  demand(made != nullptr && rank >= 0 && rank < ranks, name, "the rank is out of range, or there is no communicator");
  demand_config(name, how);
  demand(group_depth == 0, name, "communicators cannot be formed in groups");
  int device = 0;
  cudaDeviceProp properties{};
  if (const auto code = cudaGetDevice(&device); code != cudaSuccess)
    return report(cuda_failure(code));
  if (const auto code = cudaGetDeviceProperties(&properties, device); code != cudaSuccess)
    return report(cuda_failure(code));
  // The rest of the id is random, too.
  rendezvous where{};
  std::memcpy(where.data(), id.internal, sizeof(where));
  *made = hand_out(std::make_shared<communicator>(where, rank, ranks, properties.uuid));
  return nccl::in_progress;
}

nccl::result ncclCommFinalize(nccl::comm group) {
  return call(group, "ncclCommFinalize")->finalize();
}

nccl::result ncclCommDestroy(nccl::comm group) {
  const call made{group, "ncclCommDestroy"};
  made.free();
  made->destroy();
  return nccl::success;
}

nccl::result ncclCommAbort(nccl::comm group) {
  const call made{group, "ncclCommAbort"};
  made.free();
  made->abort();
  return nccl::success;
}

nccl::result ncclCommGetAsyncError(nccl::comm group, nccl::result* state) {
  *state = call(group, "ncclCommGetAsyncError")->poll();
  return nccl::success;
}

const char* ncclGetErrorString(nccl::result code) {
  switch (code) {
  case nccl::success:
    return "no error";
  case nccl::unhandled_cuda_error:
    return "unhandled cuda error";
  case nccl::system_error:
    return "unhandled system error";
  case nccl::internal_error:
    return "internal error";
  case nccl::invalid_argument:
    return "invalid argument";
  case nccl::invalid_usage:
    return "invalid usage";
  case nccl::remote_error:
    return "remote process exited or there was a network error";
  case nccl::in_progress:
    return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(nccl::comm) {
  return last_error;
}

nccl::result ncclGroupStart() {
  ++group_depth;
  return nccl::success;
}

nccl::result ncclGroupEnd() {
  demand(group_depth > 0, "ncclGroupEnd", "no group is open");
  return --group_depth == 0 ? close_group() : nccl::success;
}

nccl::result ncclSend(const void* data, std::size_t count, nccl::data_type type, int peer, nccl::comm group,
                      void* stream) {
  return add("ncclSend", group, {kind::send, peer, data, nullptr, count, type, stream});
}

nccl::result ncclRecv(void* data, std::size_t count, nccl::data_type type, int peer, nccl::comm group, void* stream) {
  return add("ncclRecv", group, {kind::receive, peer, nullptr, data, count, type, stream});
}

nccl::result ncclAllGather(const void* from, void* to, std::size_t count, nccl::data_type type, nccl::comm group,
                           void* stream) {
  return add("ncclAllGather", group, {kind::all_gather, 0, from, to, count, type, stream});
}

nccl::result ncclAllReduce(const void* from, void* to, std::size_t count, nccl::data_type type, nccl::operation how,
                           nccl::comm group, void* stream) {
  demand(how == nccl::sum, "ncclAllReduce", "only sums are supported");
  return add("ncclAllReduce", group, {kind::all_reduce, 0, from, to, count, type, stream});
}

nccl::result ncclMemAlloc(void** data, std::size_t size_bytes) {
  if (const auto code = cudaMalloc(data, size_bytes); code != cudaSuccess)
    return report(cuda_failure(code));
  auto& known = everything();
  const std::lock_guard lock{known.mutex};
  known.memory[*data] = size_bytes;
  return nccl::success;
}

nccl::result ncclMemFree(void* data) {
  if (data != nullptr) {
    auto& known = everything();
    const std::lock_guard lock{known.mutex};
    demand(known.memory.erase(data) == 1, "ncclMemFree", "the memory is freed, or not from ncclMemAlloc");
  }
  const auto code = cudaFree(data);
  return code == cudaSuccess ? nccl::success : report(cuda_failure(code));
}

/// Stricter than NCCL: accepts only whole blocks from ncclMemAlloc. Memory from cudaMalloc cannot be checked.
nccl::result ncclCommRegister(nccl::comm group, void* data, std::size_t size_bytes, void** handle) {
  {
    auto& known = everything();
    const std::lock_guard lock{known.mutex};
    const auto found = known.memory.find(data);
    demand(found != known.memory.end() && size_bytes <= found->second, "ncclCommRegister",
           "the memory does not start a block of ncclMemAlloc, or is larger");
  }
  *handle = call(group, "ncclCommRegister")->add_registration(data);
  return nccl::success;
}

nccl::result ncclCommDeregister(nccl::comm group, void* handle) {
  call(group, "ncclCommDeregister")->remove_registration(handle);
  return nccl::success;
}

nccl::result ncclCommShrink(nccl::comm group, int* excluded, int count, nccl::comm* made, nccl::config* how,
                            int flags) {
  constexpr const auto* name = "ncclCommShrink";
  if (library_version() < first_that_shrinks)
    return report({nccl::invalid_usage, "ncclCommShrink: not supported by this version"});
  demand(excluded != nullptr && count > 0 && made != nullptr, name, "no rank is excluded, or there is no communicator");
  demand(flags == 0, name, "flags are not supported");
  if (how != nullptr)
    demand_config(name, how);
  const std::set<int> lost(excluded, excluded + count);
  demand(lost.size() == static_cast<std::size_t>(count), name, "a rank is excluded twice");
  *made = nullptr;
  return call(group, name)->shrink(lost, made);
}

nccl::result ncclCommRevoke(nccl::comm group, int flags) {
  if (library_version() < first_that_revokes)
    return report({nccl::invalid_usage, "ncclCommRevoke: not supported by this version"});
  demand(flags == 0, "ncclCommRevoke", "flags must be 0");
  return call(group, "ncclCommRevoke")->revoke();
}

} // extern "C"
// NOLINTEND(readability-identifier-naming)
