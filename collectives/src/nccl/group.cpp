#include "nccl/group.hpp"

#include "device/basic_group.hpp"
#include "device/schedule.hpp"
#include "nccl/formation.hpp"
#include "nccl/owned_comm.hpp"

#include <fmt/format.h>
#include <utility>
#include <vector>

namespace troupe::collectives {

namespace {

class nccl_device_group final : public basic_device_group {
 public:
  nccl_device_group(std::shared_ptr<const nccl::library> library, std::shared_ptr<device> where,
                    const nccl_options& options)
      : basic_device_group(where, options.rank, options.world_size, options.generation, options.deadline,
                           fmt::format("nccl {}", nccl::version_text(library->version)), options.on_hang),
        library_(library),
        received_(where),
        sums_(where),
        comm_(std::move(library), std::move(where), options.on_hang, named()) {}

  ~nccl_device_group() override {
    stop();
    if (has_failed())
      let_go();
    else if (!is_replaced_)
      comm_.leave();
  }

  expected<void> connect(nccl_options& options, const address_exchange& exchange);

  expected<device_memory> allocate(std::uint64_t size_bytes) override { return comm_.memory().allocate(size_bytes); }
  bool can_be_predecessor() const noexcept override { return true; }

 private:
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
  void use_memory(const std::byte* data);
  expected<void> look_around() override;
  void wake() noexcept override { comm_.give_up(); }
  void let_go() noexcept override;

  const std::shared_ptr<const nccl::library> library_;
  device_scratch received_;
  device_scratch sums_;
  /// The new group has replaced this one. Finalizing it would wait for ranks that are gone.
  bool is_replaced_ = false;
  nccl::owned_comm comm_;
};

expected<void> nccl_device_group::connect(nccl_options& options, const address_exchange& exchange) {
  auto* old = dynamic_cast<nccl_device_group*>(options.predecessor.get());
  if (old != nullptr)
    old->is_replaced_ = true;
  TROUPE_TRY(open());
  TROUPE_TRY(where_->make_current());
  nccl::previous_group previous;
  if (old != nullptr) {
    // Ends its pending work.
    static_cast<void>(old->finish());
    if (old->has_failed())
      old->let_go();
    const auto is_quiet = old->comm_.is_revoked() || !old->has_failed();
    if (library_->can_shrink() && is_quiet && old->library_ == library_)
      previous = {&old->comm_, old->generation_.value, old->rank_.value, old->world_size_};
  }
  TROUPE_TRY(auto made, nccl::form_communicator(library_, where_, previous, options, exchange, named()));
  comm_.own(made);
  return {};
}

template <class F>
expected<void> nccl_device_group::grouped(const std::string& what, clock::time_point ends_at, F calls) {
  TROUPE_TRY(where_->make_current());
  {
    const auto held = comm_.lock();
    if (held.group == nullptr)
      return state();
    if (const auto code = library_->group_start(); code != nccl::success)
      return refused(*library_, "ncclGroupStart", code);
    outcome made;
    calls(held.group, made);
    // Even after a failed call, the group must be closed.
    made.note("ncclGroupEnd", library_->group_end());
    if (made.code != nccl::success)
      return refused(*library_, made.call, made.code);
  }
  // The kernels are on the stream only once this is done, and no other call may be made before.
  return poll(
      [this]() -> expected<bool> {
        const auto held = comm_.lock();
        if (held.group == nullptr)
          return false;
        auto code = nccl::success;
        if (const auto asked = library_->comm_get_async_error(held.group, &code); asked != nccl::success)
          return refused(*library_, "ncclCommGetAsyncError", asked);
        if (code == nccl::in_progress)
          return false;
        if (code != nccl::success)
          return refused(*library_, "NCCL", code);
        return true;
      },
      what, ends_at);
}

/// While it waits: asks whether NCCL has lost a peer.
expected<void> nccl_device_group::look_around() {
  TROUPE_TRY(state());
  const auto held = comm_.lock();
  auto code = nccl::success;
  if (held.group == nullptr || library_->comm_get_async_error(held.group, &code) != nccl::success)
    return {};
  if (code != nccl::success && code != nccl::in_progress)
    return refused(*library_, "NCCL", code);
  return {};
}

void nccl_device_group::use_memory(const std::byte* data) {
  const auto held = comm_.lock();
  // Registration only makes it faster: memory that cannot be registered is used as it is.
  if (held.group != nullptr && library_->can_register())
    static_cast<void>(comm_.memory().use(held.group, data));
}

expected<void> nccl_device_group::reduce_exactly(const reduction& what) {
  const auto range = what.range();
  if (range.size_bytes() == 0)
    return {};
  const auto schedule = plan_device_schedule(*what.leaves.finish, what.layout, range, world_size_, rank_.value);
  TROUPE_TRY(auto room, received_.reserve(schedule.received_bytes));
  for (const auto& operand : what.operands)
    use_memory(operand.data);
  auto* result = what.result->data();
  use_memory(result);
  TROUPE_TRY(what.ready->hold(stream_));
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
                                 made.note("ncclRecv", receive(group, room + x.offset_bytes, x.size_bytes, x.peer));
                             });
        !moved)
      return moved;
    TROUPE_TRY(mark(stream_.handle(), waits_for::peers));
  }
  std::vector<const std::byte*> operands;
  for (const auto& place : schedule.operands)
    operands.push_back(place.is_mine ? what.operands[place.position].data + place.offset_bytes
                                     : room + place.offset_bytes);
  const auto slice = schedule.slices[rank_.value];
  TROUPE_TRY(arithmetic_.reduce(*what.leaves.finish, what.layout, what.divisor, operands, slice, result + slice.first,
                                stream_.handle()));
  if (!schedule.is_spread)
    return expect(stream_.handle(), what, waits_for::own_gpu);
  TROUPE_TRY(mark(stream_.handle(), waits_for::own_gpu));
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
  use_memory(contribution);
  use_memory(result);
  TROUPE_TRY(what.ready->hold(stream_));
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
    TROUPE_TRY(auto sum, sums_.reserve(pieces.offset_in_sums(pieces.size_bytes())));
    TROUPE_TRY(arithmetic_.widen(what.layout, result, range, sum, stream_.handle()));
    TROUPE_TRY(arithmetic_.finish(what.layout, what.divisor, sum, range, result, stream_.handle()));
  }
  return expect(stream_.handle(), what, waits_for::peers);
}

/// Returns once NCCL has released the streams. If it hangs, ends this process.
void nccl_device_group::let_go() noexcept {
  const auto end = comm_.wait_until_let_go();
  if (!end)
    return;
  is_process_ending_ = is_process_ending_ || end == nccl::owned_comm::state::process_ends;
  drain({&stream_});
}

} // namespace

expected<std::unique_ptr<device_group>> make_nccl_group(std::shared_ptr<const nccl::library> library,
                                                        std::shared_ptr<device> where, nccl_options options,
                                                        const address_exchange& exchange) {
  if (options.world_size == 0 || options.rank.value >= options.world_size)
    return fail(errc::invalid_argument, fmt::format("rank {} is not one of {} ranks; name a rank of the group",
                                                    options.rank, options.world_size));
  auto group = std::make_unique<nccl_device_group>(std::move(library), std::move(where), options);
  TROUPE_TRY(group->connect(options, exchange));
  return group;
}

expected<std::unique_ptr<device_group>> make_nccl_group(std::shared_ptr<device> where, nccl_options options,
                                                        const address_exchange& exchange) {
  TROUPE_TRY(auto library, nccl::open_library());
  return make_nccl_group(std::move(library), std::move(where), std::move(options), exchange);
}

} // namespace troupe::collectives
