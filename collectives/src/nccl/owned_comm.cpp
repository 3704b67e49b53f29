#include "nccl/owned_comm.hpp"

#include "device/abort_escalation.hpp"
#include "device/giving_up.hpp"

#include <utility>

namespace troupe::collectives::nccl {

namespace {

constexpr auto pause_between_looks = std::chrono::microseconds{200};

} // namespace

void abort_idle(std::shared_ptr<const library> api, std::shared_ptr<device> where, comm group,
                std::chrono::milliseconds limit) noexcept {
  struct outcome {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
  };
  auto shared = std::make_shared<outcome>();
  std::thread{[api = std::move(api), where = std::move(where), group, shared] {
    static_cast<void>(where->make_current());
    static_cast<void>(api->comm_abort(group));
    {
      const std::lock_guard lock{shared->mutex};
      shared->is_done = true;
    }
    shared->changed.notify_all();
  }}.detach();
  std::unique_lock lock{shared->mutex};
  shared->changed.wait_for(lock, limit, [&] { return shared->is_done; });
}

owned_comm::owned_comm(std::shared_ptr<const library> api, std::shared_ptr<device> where, hang_policy on_hang,
                       std::string who)
    : api_(api),
      where_(where),
      memory_(nccl_memory::of(std::move(api), std::move(where))),
      on_hang_(std::move(on_hang)),
      who_(std::move(who)) {}

owned_comm::~owned_comm() {
  {
    const std::lock_guard lock{watch_mutex_};
    if (state_ == state::owned)
      state_ = state::ending;
  }
  watch_changed_.notify_all();
  if (watchdog_.joinable())
    watchdog_.join();
  if (auto* left = take())
    abort_idle(api_, where_, left, on_hang_.abort_deadline);
}

void owned_comm::own(comm group) {
  comm_ = group;
  watchdog_ = std::thread{[this] { watch(); }};
}

comm owned_comm::take() noexcept {
  auto* group = release();
  memory_->leave(group, false);
  return group;
}

comm owned_comm::release() noexcept {
  const std::lock_guard lock{comm_mutex_};
  return std::exchange(comm_, nullptr);
}

void owned_comm::leave() noexcept {
  auto* group = release();
  if (group == nullptr)
    return;
  memory_->leave(group, true);
  static_cast<void>(where_->make_current());
  auto code = api_->comm_finalize(group);
  for (const auto ends_at = clock::now() + on_hang_.abort_deadline; code == in_progress && clock::now() < ends_at;) {
    std::this_thread::sleep_for(pause_between_looks);
    if (api_->comm_get_async_error(group, &code) != success)
      code = internal_error;
  }
  if (code == success)
    static_cast<void>(api_->comm_destroy(group));
  else
    abort_idle(api_, where_, group, on_hang_.abort_deadline);
}

void owned_comm::give_up() noexcept {
  {
    const std::lock_guard lock{watch_mutex_};
    if (state_ == state::owned)
      state_ = state::giving_up;
  }
  watch_changed_.notify_all();
}

std::optional<owned_comm::state> owned_comm::wait_until_let_go() noexcept {
  std::unique_lock lock{watch_mutex_};
  if (!watchdog_.joinable())
    return std::nullopt;
  watch_changed_.wait(lock, [this] { return state_ != state::owned && state_ != state::giving_up; });
  return state_;
}

bool owned_comm::is_revoked() noexcept {
  const std::lock_guard lock{watch_mutex_};
  return state_ == state::revoked;
}

void owned_comm::watch() {
  {
    std::unique_lock lock{watch_mutex_};
    watch_changed_.wait(lock, [this] { return state_ != state::owned; });
    if (state_ == state::ending)
      return;
  }
  const auto end = escalate_abort();
  {
    const std::lock_guard lock{watch_mutex_};
    state_ = end;
  }
  watch_changed_.notify_all();
}

/// Whether no call is running on it and none has failed. NCCL up to 2.30.7 frees a running call when it revokes the
/// communicator, and accesses it later. A failed communicator never reports that it is revoked.
bool owned_comm::comes_to_rest(comm group) noexcept {
  static_cast<void>(where_->make_current());
  auto code = in_progress;
  for (const auto ends_at = clock::now() + std::chrono::milliseconds{100};;) {
    if (api_->comm_get_async_error(group, &code) != success)
      return false;
    if (code != in_progress || clock::now() > ends_at)
      return code == success;
    std::this_thread::sleep_for(pause_between_looks);
  }
}

/// Not a std::timed_mutex: GCC 12's ThreadSanitizer does not understand how it is locked.
bool owned_comm::lock_before(clock::time_point ends_at) noexcept {
  while (!comm_mutex_.try_lock()) {
    if (clock::now() > ends_at)
      return false;
    std::this_thread::sleep_for(pause_between_looks);
  }
  return true;
}

owned_comm::state owned_comm::escalate_abort() {
  // A call that hangs keeps the mutex: then only the process can end, not the communicator.
  comm group = nullptr;
  const auto is_reachable = lock_before(clock::now() + on_hang_.abort_deadline);
  if (is_reachable) {
    group = std::exchange(comm_, nullptr);
    comm_mutex_.unlock();
  }
  if (is_reachable && group == nullptr)
    return state::let_go;
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
    calls.revoke = [api = api_, where = where_, group, turns] {
      static_cast<void>(where->make_current());
      auto code = in_progress;
      for (bool has_begun = false; code == in_progress; has_begun = true) {
        if (has_begun)
          std::this_thread::sleep_for(std::chrono::milliseconds{1});
        const std::lock_guard lock{turns->mutex};
        if (turns->is_over)
          return false;
        // Revoke once it is quiet.
        if (!has_begun)
          code = api->comm_revoke(group, 0);
        else if (api->comm_get_async_error(group, &code) != success)
          code = internal_error;
      }
      return code == success;
    };
    calls.abort = [api = api_, where = where_, group, turns] {
      static_cast<void>(where->make_current());
      const std::lock_guard lock{turns->mutex};
      turns->is_over = true;
      return api->comm_abort(group) == success;
    };
  }
  abort_escalation escalation{api_->can_shrink() && is_reachable && comes_to_rest(group), limits_of(on_hang_)};
  switch (escalate(escalation, escalation.begin(clock::now()), on_hang_, who_, calls)) {
  case escalation_end::ends_process:
    return state::process_ends;
  case escalation_end::revoked: {
    const std::lock_guard lock{comm_mutex_};
    comm_ = group;
    return state::revoked;
  }
  case escalation_end::let_go:
    break;
  }
  return state::let_go;
}

} // namespace troupe::collectives::nccl
