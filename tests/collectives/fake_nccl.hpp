#pragma once

#include "fake_device.hpp"
#include "nccl/library.hpp"

#include <troupe/collectives/reduction.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

/// A function table that replaces NCCL, for ranks that are threads and for fake devices: NCCL does not run without
/// GPUs. It drives the group's own code end to end with the guarantees of NCCL's non-blocking communicators: calls
/// return at once, their work is on the stream only when the state is success again, an operation whose peer is gone
/// never ends by itself, and an abort frees the communicator. It says nothing about NCCL itself; tests labelled `gpu`
/// do.
struct ncclComm {
  struct world;

  struct operation {
    enum class kind { send, receive, all_gather, all_reduce };
    kind what;
    int peer;
    const std::byte* from;
    std::byte* to;
    std::size_t count;
    troupe::collectives::nccl::data_type type;
    void* stream;
  };

  std::shared_ptr<world> members;
  /// The handle that callers see.
  troupe::collectives::nccl::comm handle = nullptr;
  /// Calls that have not returned yet.
  std::atomic<int> calls = 0;
  int rank = 0;
  int size = 0;
  std::uint64_t id = 0;

  std::mutex mutex;
  /// The state is in progress until then.
  std::chrono::steady_clock::time_point ready_at;
  std::vector<operation> pending;
  ncclComm** made = nullptr;
  ncclComm* child = nullptr;
  troupe::collectives::nccl::result failure = troupe::collectives::nccl::success;
  std::atomic<bool> is_given_up = false;
  std::set<void*> registered;
};

namespace troupe::collectives::testing {

class fake_nccl {
 public:
  /// While true, calls that revoke or abort do not return.
  static inline std::atomic<bool> hangs = false;
  /// The same for revoking only: the call returns, but the revocation does not end.
  static inline std::atomic<bool> never_revoked = false;
  static inline std::atomic<bool> shrink_fails = false;
  /// The results of the next id, of forming the next communicators, and of all-reduce.
  static inline std::atomic<nccl::result> all_reduce_result = nccl::success;
  static inline std::atomic<nccl::result> id_result = nccl::success;
  static inline std::atomic<nccl::result> forming_result = nccl::success;
  static inline std::atomic<int> living = 0;
  static inline std::atomic<int> shrunk = 0;
  static inline std::atomic<int> formed = 0;
  static inline std::atomic<int> registrations = 0;
  static inline std::atomic<int> finalized = 0;
  /// Calls that real NCCL forbids, for example on a communicator that is freed, or freed before the call returns.
  static inline std::atomic<int> violations = 0;

  static std::shared_ptr<const nccl::library> table(int version = 22809) {
    auto x = std::make_shared<nccl::library>();
    x->version = version;
    x->get_unique_id = [](nccl::unique_id* id) {
      if (const auto code = id_result.load(); code != nccl::success)
        return code;
      static std::atomic<std::uint64_t> last = 0;
      const std::uint64_t number = ++last;
      std::memset(id, 0, sizeof(*id));
      std::memcpy(id, &number, sizeof(number));
      return nccl::success;
    };
    x->comm_init_rank_config = [](nccl::comm* made, int size, nccl::unique_id id, int rank, nccl::config* how) {
      if (how->blocking != 0 || how->magic != 0xcafebeef)
        ++violations;
      std::uint64_t number = 0;
      std::memcpy(&number, &id, sizeof(number));
      *made = join({number, 0}, size, rank);
      ++formed;
      return nccl::in_progress;
    };
    x->comm_finalize = [](nccl::comm handle) {
      const call group{handle};
      if (!group)
        return nccl::invalid_argument;
      const std::lock_guard lock{group->mutex};
      group->ready_at = soon();
      ++finalized;
      return nccl::in_progress;
    };
    x->comm_destroy = [](nccl::comm handle) {
      const call group{handle};
      if (!group)
        return nccl::invalid_argument;
      leave(group);
      return nccl::success;
    };
    x->comm_abort = [](nccl::comm handle) {
      const call group{handle};
      if (!group)
        return nccl::invalid_argument;
      wait_while_hanging();
      leave(group);
      return nccl::success;
    };
    x->comm_get_async_error = &get_async_error;
    x->get_error_string = [](nccl::result code) { return code == nccl::remote_error ? "remote error" : "an error"; };
    x->get_last_error = [](nccl::comm) { return ""; };
    x->group_start = [] {
      ++depth();
      return nccl::success;
    };
    x->group_end = [] { return --depth() == 0 ? flush() : nccl::success; };
    using kind = ncclComm::operation::kind;
    x->send = [](const void* data, std::size_t count, nccl::data_type type, int peer, nccl::comm group, void* stream) {
      return add(group, {kind::send, peer, static_cast<const std::byte*>(data), nullptr, count, type, stream});
    };
    x->receive = [](void* data, std::size_t count, nccl::data_type type, int peer, nccl::comm group, void* stream) {
      return add(group, {kind::receive, peer, nullptr, static_cast<std::byte*>(data), count, type, stream});
    };
    x->all_gather = [](const void* from, void* to, std::size_t count, nccl::data_type type, nccl::comm group,
                       void* stream) {
      return add(group, {kind::all_gather, -1, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count,
                         type, stream});
    };
    x->all_reduce = [](const void* from, void* to, std::size_t count, nccl::data_type type, nccl::operation,
                       nccl::comm group, void* stream) {
      if (const auto code = all_reduce_result.load(); code != nccl::success)
        return code;
      return add(group, {kind::all_reduce, -1, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count,
                         type, stream});
    };
    if (version >= 21900) {
      x->mem_alloc = [](void** data, std::size_t size) {
        *data = std::aligned_alloc(256, (size + 255) / 256 * 256);
        return nccl::success;
      };
      x->mem_free = [](void* data) {
        std::free(data);
        return nccl::success;
      };
      x->comm_register = [](nccl::comm handle, void* data, std::size_t, void** registration) {
        const call group{handle};
        if (!group)
          return nccl::invalid_argument;
        const std::lock_guard lock{group->mutex};
        *registration = data;
        violations += group->registered.insert(data).second ? 0 : 1;
        ++registrations;
        return nccl::success;
      };
      x->comm_deregister = [](nccl::comm handle, void* registration) {
        const call group{handle};
        if (!group)
          return nccl::invalid_argument;
        const std::lock_guard lock{group->mutex};
        violations += group->registered.erase(registration) == 1 ? 0 : 1;
        return nccl::success;
      };
    }
    if (version >= 22703)
      x->comm_shrink = [](nccl::comm handle, int* lost, int count, nccl::comm* made, nccl::config*, int) {
        const call parent{handle};
        if (!parent)
          return nccl::invalid_argument;
        if (shrink_fails && parent->rank == 0)
          return nccl::system_error;
        const std::set<int> excluded{lost, lost + count};
        int rank = 0;
        for (int r = 0; r < parent->rank; ++r)
          rank += excluded.contains(r) ? 0 : 1;
        auto* child = join({parent->id, 1}, parent->size - count, rank);
        const std::lock_guard lock{parent->mutex};
        parent->made = made;
        parent->child = child;
        parent->ready_at = soon();
        ++shrunk;
        return nccl::in_progress;
      };
    if (version >= 22807)
      x->comm_revoke = [](nccl::comm handle, int) {
        const call group{handle};
        if (!group)
          return nccl::invalid_argument;
        wait_while_hanging();
        if (never_revoked) {
          const std::lock_guard lock{group->mutex};
          group->ready_at = clock::time_point::max();
          return nccl::in_progress;
        }
        give_up(*group);
        const std::lock_guard lock{group->mutex};
        group->ready_at = soon();
        return nccl::in_progress;
      };
    return x;
  }

 private:
  using clock = std::chrono::steady_clock;
  using operation = ncclComm::operation;

  static clock::time_point soon() { return clock::now() + std::chrono::microseconds{300}; }

  static void wait_while_hanging() {
    while (hangs)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }

  static int& depth() {
    thread_local int x = 0;
    return x;
  }
  static std::set<nccl::comm>& grouped() {
    thread_local std::set<nccl::comm> x;
    return x;
  }

  /// Communicators that are not freed, by handle. A handle is a number that is never reused, so a call on a freed one
  /// is detected even without a sanitizer.
  static std::map<nccl::comm, std::shared_ptr<ncclComm>>& known() {
    static std::map<nccl::comm, std::shared_ptr<ncclComm>> x;
    return x;
  }
  static std::mutex& known_mutex() {
    static std::mutex x;
    return x;
  }

  /// A call on a communicator, until it returns.
  class call {
   public:
    explicit call(nccl::comm handle) {
      const std::lock_guard lock{known_mutex()};
      const auto found = known().find(handle);
      if (found == known().end()) {
        ++violations;
        return;
      }
      group_ = found->second;
      ++group_->calls;
    }
    call(const call&) = delete;
    call& operator=(const call&) = delete;
    ~call() {
      if (group_)
        --group_->calls;
    }
    explicit operator bool() const { return group_ != nullptr; }
    ncclComm* operator->() const { return group_.get(); }
    ncclComm& operator*() const { return *group_; }
    const std::shared_ptr<ncclComm>& get() const { return group_; }

   private:
    std::shared_ptr<ncclComm> group_;
  };

  static nccl::comm join(std::pair<std::uint64_t, int> id, int size, int rank);
  static void leave(const call& group);
  static void give_up(ncclComm& group);
  static nccl::result get_async_error(nccl::comm handle, nccl::result* state);

  static nccl::result add(nccl::comm handle, operation what) {
    const call group{handle};
    if (!group)
      return nccl::invalid_argument;
    {
      const std::lock_guard lock{group->mutex};
      // Another operation while the last one is not on its stream yet.
      if (clock::now() < group->ready_at)
        ++violations;
      group->pending.push_back(what);
    }
    grouped().insert(handle);
    return depth() == 0 ? flush() : nccl::success;
  }

  static nccl::result flush() {
    for (auto* handle : grouped()) {
      const call group{handle};
      if (!group)
        continue;
      const std::lock_guard lock{group->mutex};
      group->ready_at = soon();
    }
    grouped().clear();
    return nccl::in_progress;
  }

  static void run(ncclComm& group, const std::vector<operation>& all);
};

} // namespace troupe::collectives::testing

/// Messages between the ranks of a communicator, by sender and receiver, first in, first out.
struct ncclComm::world {
  struct message {
    const std::byte* data;
    std::size_t size;
    std::shared_ptr<bool> is_taken = std::make_shared<bool>(false);
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<message>> mail;
  int arrived = 0;
};

namespace troupe::collectives::testing {

inline nccl::comm fake_nccl::join(std::pair<std::uint64_t, int> id, int size, int rank) {
  static std::mutex mutex;
  static std::map<std::pair<std::uint64_t, int>, std::shared_ptr<ncclComm::world>> worlds;
  static std::atomic<std::uintptr_t> handles = 0;
  auto made = std::make_shared<ncclComm>();
  {
    const std::lock_guard lock{mutex};
    auto& world = worlds[id];
    if (!world)
      world = std::make_shared<ncclComm::world>();
    made->members = world;
  }
  {
    const std::lock_guard lock{made->members->mutex};
    ++made->members->arrived;
  }
  made->rank = rank;
  made->size = size;
  // Each child of this world gets an id of its own.
  made->id = id.first * 2 + static_cast<std::uint64_t>(id.second) + (id.first < 1'000'000 ? 1'000'000 : 0);
  made->ready_at = soon();
  made->failure = forming_result;
  made->handle = reinterpret_cast<nccl::comm>(16 * ++handles); // NOLINT(performance-no-int-to-ptr)
  ++living;
  const std::lock_guard lock{known_mutex()};
  known()[made->handle] = made;
  return made->handle;
}

/// Frees it for callers; work on streams may still access it.
inline void fake_nccl::leave(const call& group) {
  {
    const std::lock_guard lock{known_mutex()};
    violations += group->calls == 1 ? 0 : 1;
    known().erase(group->handle);
  }
  --living;
  give_up(*group);
}

inline void fake_nccl::give_up(ncclComm& group) {
  const std::lock_guard lock{group.members->mutex};
  group.is_given_up = true;
  group.members->changed.notify_all();
}

inline nccl::result fake_nccl::get_async_error(nccl::comm handle, nccl::result* state) {
  const call group{handle};
  if (!group)
    return nccl::invalid_argument;
  const std::lock_guard lock{group->mutex};
  *state = nccl::success;
  if (group->failure != nccl::success) {
    *state = group->failure;
    return nccl::success;
  }
  {
    const std::lock_guard world_lock{group->members->mutex};
    if (group->members->arrived < group->size)
      *state = nccl::in_progress;
  }
  if (clock::now() < group->ready_at)
    *state = nccl::in_progress;
  if (*state == nccl::in_progress)
    return nccl::success;
  if (group->made != nullptr) {
    *group->made = group->child;
    group->made = nullptr;
  }
  if (!group->pending.empty()) {
    auto* stream = group->pending.front().stream;
    static_cast<void>(fake_device::run_on(
        stream, [group = group.get(), all = std::exchange(group->pending, {})] { run(*group, all); }));
  }
  return nccl::success;
}

/// On a stream: all operations of a group at once, as one kernel.
inline void fake_nccl::run(ncclComm& group, const std::vector<operation>& all) {
  using kind = operation::kind;
  auto& world = *group.members;
  const auto size_of_type = [](nccl::data_type type) -> std::size_t {
    return type == nccl::int8 || type == nccl::uint8         ? 1
           : type == nccl::float16 || type == nccl::bfloat16 ? 2
           : type == nccl::int64 || type == nccl::float64    ? 8
                                                             : 4;
  };
  std::vector<std::shared_ptr<bool>> sent;
  {
    const std::lock_guard lock{world.mutex};
    for (const auto& x : all)
      for (int peer = 0; peer < group.size; ++peer)
        if (peer != group.rank && x.what != kind::receive && (x.peer < 0 || x.peer == peer)) {
          ncclComm::world::message mail{x.from, x.count * size_of_type(x.type)};
          sent.push_back(mail.is_taken);
          world.mail[{group.rank, peer}].push_back(std::move(mail));
        }
    world.changed.notify_all();
  }
  // A rank that gives up frees what it has sent.
  struct withdrawal {
    ncclComm& group;
    const std::vector<std::shared_ptr<bool>>& sent;

    ~withdrawal() {
      const std::lock_guard lock{group.members->mutex};
      for (int peer = 0; peer < group.size; ++peer)
        std::erase_if(group.members->mail[{group.rank, peer}],
                      [&](const auto& x) { return std::ranges::find(sent, x.is_taken) != sent.end(); });
    }
  };
  const withdrawal withdraws{group, sent};
  const auto take = [&](int peer, std::byte* to, std::size_t size) {
    std::unique_lock lock{world.mutex};
    auto& mail = world.mail[{peer, group.rank}];
    world.changed.wait(lock, [&] { return !mail.empty() || group.is_given_up; });
    if (group.is_given_up)
      return false;
    if (mail.front().size != size)
      ++violations;
    std::memcpy(to, mail.front().data, std::min(size, mail.front().size));
    *mail.front().is_taken = true;
    mail.pop_front();
    world.changed.notify_all();
    return true;
  };
  std::vector<std::pair<std::byte*, std::vector<std::byte>>> results;
  for (const auto& x : all) {
    const auto bytes = x.count * size_of_type(x.type);
    if (x.what == kind::receive && !take(x.peer, x.to, bytes))
      return;
    for (int peer = 0; x.what == kind::all_gather && peer < group.size; ++peer) {
      auto* to = x.to + static_cast<std::size_t>(peer) * bytes;
      if (peer != group.rank && !take(peer, to, bytes))
        return;
      if (peer == group.rank && to != x.from)
        std::memcpy(to, x.from, bytes);
    }
    if (x.what == kind::all_reduce) {
      const auto type = x.type == nccl::float32    ? dtype::f32
                        : x.type == nccl::float64  ? dtype::f64
                        : x.type == nccl::float16  ? dtype::f16
                        : x.type == nccl::bfloat16 ? dtype::bf16
                        : x.type == nccl::int64    ? dtype::i64
                        : x.type == nccl::int32    ? dtype::i32
                                                   : dtype::u8;
      const auto wide = sum_type(type);
      std::vector<std::byte> sum(x.count * size_of(wide));
      std::vector<std::byte> other(bytes);
      std::vector<std::byte> other_wide(sum.size());
      widen(type, sum.data(), x.from, x.count);
      for (int peer = 0; peer < group.size; ++peer)
        if (peer != group.rank) {
          if (!take(peer, other.data(), bytes))
            return;
          widen(type, other_wide.data(), other.data(), x.count);
          combine(wide, reduce_op::sum, sum.data(), sum.data(), other_wide.data(), x.count);
        }
      narrow(type, other.data(), sum.data(), x.count);
      results.emplace_back(x.to, std::move(other));
    }
  }
  std::unique_lock lock{world.mutex};
  const auto is_read = [&] { return std::ranges::all_of(sent, [](const auto& x) { return *x; }); };
  world.changed.wait(lock, [&] { return group.is_given_up || is_read(); });
  // In place, so only after every rank has read it.
  if (!group.is_given_up)
    for (const auto& [to, result] : results)
      std::memcpy(to, result.data(), result.size());
}

} // namespace troupe::collectives::testing
