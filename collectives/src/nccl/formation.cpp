#include "nccl/formation.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fmt/format.h>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::collectives::nccl {

namespace {

using clock = std::chrono::steady_clock;

/// From NCCL 2.30 on, two ranks on one device are allowed, as an experiment.
constexpr int first_with_shared_devices = 23000;

/// The data that the ranks exchange before the group is formed.
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

/// Memory that NCCL uses in the background. Leaked if the call's end is not awaited.
struct request {
  comm made = nullptr;
  nccl::config config;
  std::vector<int> lost = {};
};

/// Keeps it for the life of the process, reachable for leak checkers: NCCL may still write to it.
comm leave_behind(std::unique_ptr<request> asked) {
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::vector<std::unique_ptr<request>>;
  const std::lock_guard lock{mutex};
  return all.emplace_back(std::move(asked))->made;
}

class formation {
 public:
  formation(std::shared_ptr<const library> api, std::shared_ptr<device> where, const nccl_options& options,
            const address_exchange& exchange, const std::string& who)
      : api_(std::move(api)), where_(std::move(where)), options_(options), exchange_(exchange), who_(who) {}

  /// Exchanges the introductions of all ranks, and checks that they form one group, with one device each where NCCL
  /// requires it.
  expected<std::vector<introduction>> introduce(const previous_group& previous) const {
    const introduction mine{options_.generation.value, options_.world_size, where_->info().uuid, api_->version,
                            previous.generation,       previous.rank,       previous.world_size};
    TROUPE_TRY(auto blobs, exchange_(mine.to_text()));
    std::vector<introduction> result(blobs.size());
    for (std::size_t i = 0; i < blobs.size(); ++i)
      if (!introduction::parse(blobs[i], result[i]) || result[i].generation != mine.generation ||
          result[i].world_size != mine.world_size || blobs.size() != mine.world_size)
        return fail(
            errc::mismatch,
            fmt::format("{}: rank {}'s introduction is from another generation or group, or malformed", who_, i));
    for (std::size_t i = 0; i < result.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        if (result[i].device == result[k].device && api_->version < first_with_shared_devices)
          return fail(errc::invalid_argument,
                      fmt::format("{}: ranks {} and {} are on one GPU, which NCCL {} does not support: give each its "
                                  "own GPU, or leave the choice of the transport to Troupe",
                                  who_, k, i, version_text(api_->version)));
    if (options_.cancelled.stop_requested())
      return cancelled();
    return result;
  }

  expected<comm> shrink(owned_comm& previous, std::vector<int> lost) const {
    auto* parent = previous.take();
    if (parent == nullptr)
      return fail(errc::aborted, "the previous group is gone");
    const auto begun_at = clock::now();
    auto asked = std::make_unique<request>();
    asked->lost = std::move(lost);
    auto code = api_->comm_shrink(parent, asked->lost.data(), static_cast<int>(asked->lost.size()), &asked->made,
                                  &asked->config, 0);
    expected<void> done;
    if (code != success && code != in_progress)
      done = refused(*api_, "ncclCommShrink", code);
    // The new communicator is ready when the old one has finished the call.
    if (done)
      done = await(parent, "ncclCommShrink", begun_at, options_.shrink_deadline);
    if (done && asked->made == nullptr)
      done = fail(errc::device_error, "ncclCommShrink: returned no communicator");
    if (done)
      done = await(asked->made, "ncclCommShrink", begun_at, options_.shrink_deadline);
    drop(parent);
    if (done)
      return asked->made;
    if (auto* made = leave_behind(std::move(asked)); made != nullptr)
      drop(made);
    return fail(std::move(done.error()));
  }

  /// All ranks agree on whether the old group was shrunk; `shrunk` is null if not here. Rank 0 also sends an id in case
  /// some failed, or the reason why it has none.
  expected<comm> agree_on(comm shrunk) const {
    std::string word = shrunk != nullptr ? "1" : "0";
    expected<void> has_id;
    if (options_.rank.value == 0) {
      unique_id id{};
      if (const auto code = api_->get_unique_id(&id); code != success) {
        has_id = refused(*api_, "ncclGetUniqueId", code, errc::unreachable);
        word.append("e").append(has_id.error().message);
      } else {
        word.append("i").append(id.internal, sizeof(id.internal));
      }
    }
    auto words = exchange_(std::move(word));
    if (words && std::ranges::all_of(*words, [](const std::string& x) { return x.starts_with('1'); }))
      return shrunk;
    if (shrunk != nullptr)
      drop(shrunk);
    if (!words)
      return fail(std::move(words.error()));
    // This rank has the cause; the driver reports it to the others.
    if (!has_id)
      return fail(std::move(has_id.error()));
    const auto& first = words->front();
    unique_id id{};
    if (first.size() > 1 && first[1] == 'e')
      return fail(errc::aborted, fmt::format("{}: rank 0 got no id from NCCL: {}", who_, first.substr(2)));
    if (first.size() != 2 + sizeof(id.internal) || first[1] != 'i')
      return fail(errc::mismatch, fmt::format("{}: rank 0 sent no NCCL id", who_));
    std::memcpy(id.internal, first.data() + 2, sizeof(id.internal));
    return connect_by(id);
  }

 private:
  expected<comm> connect_by(const unique_id& id) const {
    auto asked = std::make_unique<request>();
    const auto code = api_->comm_init_rank_config(&asked->made, static_cast<int>(options_.world_size), id,
                                                  static_cast<int>(options_.rank.value), &asked->config);
    if (code != success && code != in_progress)
      return refused(*api_, "ncclCommInitRankConfig", code, errc::unreachable);
    if (auto done = await(asked->made, "ncclCommInitRankConfig", clock::now(), options_.connect_deadline); !done) {
      drop(leave_behind(std::move(asked)));
      return fail(std::move(done.error()));
    }
    return asked->made;
  }

  /// Waits until NCCL has finished in the background. An unreachable peer may be lost, or behind a firewall: unlike a
  /// loss, this is not retried for ever.
  expected<void> await(comm group, const char* what, clock::time_point begun_at,
                       std::chrono::milliseconds limit) const {
    for (;;) {
      auto code = success;
      if (const auto asked = api_->comm_get_async_error(group, &code); asked != success)
        return refused(*api_, "ncclCommGetAsyncError", asked, errc::unreachable);
      if (code == success)
        return {};
      if (code != in_progress)
        return refused(*api_, what, code, errc::unreachable);
      if (options_.cancelled.stop_requested())
        return cancelled();
      if (clock::now() > begun_at + limit)
        return fail(errc::timed_out, fmt::format("{}: {} did not end within {} ms: a rank is late or lost, or the "
                                                 "hosts cannot reach each other",
                                                 who_, what, limit.count()));
      std::this_thread::sleep_for(std::chrono::microseconds{200});
    }
  }

  void drop(comm group) const { abort_idle(api_, where_, group, options_.on_hang.abort_deadline); }

  tl::unexpected<error> cancelled() const {
    return fail(errc::aborted, fmt::format("{}: cancelled while the group was being formed", who_));
  }

  const std::shared_ptr<const library> api_;
  const std::shared_ptr<device> where_;
  const nccl_options& options_;
  const address_exchange& exchange_;
  const std::string& who_;
};

} // namespace

expected<comm> form_communicator(std::shared_ptr<const library> api, std::shared_ptr<device> where,
                                 const previous_group& previous, nccl_options& options,
                                 const address_exchange& exchange, const std::string& who) {
  const formation group{std::move(api), std::move(where), options, exchange, who};
  TROUPE_TRY(const auto ranks, group.introduce(previous));
  comm made = nullptr;
  if (const auto lost = plan_shrink(ranks)) {
    const auto shrunk = group.shrink(*previous.communicator, *lost);
    if (!shrunk && options.note)
      options.note(
          fmt::format("{}: the previous group cannot be shrunk ({}); forming a new one", who, shrunk.error().message));
    made = shrunk.value_or(nullptr);
  }
  options.predecessor.reset();
  return group.agree_on(made);
}

} // namespace troupe::collectives::nccl
