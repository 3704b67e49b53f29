#include "remote/replica_links.hpp"

#include <algorithm>
#include <tuple>

namespace troupe::serving {

std::optional<std::size_t> choose_link(std::span<const link_use> links, const std::string& model, bool takes_any) {
  std::optional<std::size_t> best;
  auto least = std::tuple<std::size_t, std::size_t>{};
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (!links[i].model.empty())
      continue;
    std::size_t of_model = 0;
    std::size_t of_any = 0;
    for (const auto& each : links)
      if (each.replica == links[i].replica) {
        of_model += each.model == model ? 1 : 0;
        of_any += each.model.empty() ? 0 : 1;
      }
    const auto load = std::tuple{of_model, of_any};
    if ((of_model == 0 || takes_any) && (!best || load < least)) {
      best = i;
      least = load;
    }
  }
  return best;
}

void replica_links::add(std::uint32_t replica, runtime::secure_stream stream) {
  {
    const auto lock = std::lock_guard{mutex_};
    if (is_closed_)
      return;
    auto& added = links_.emplace_back(link{{replica, {}}, {}, std::move(stream)});
    added.stream.stop_with(added.stop.get_token());
    has_had_any_ = true;
  }
  changed_.notify_all();
}

expected<replica_links::lease> replica_links::take(const std::string& model) {
  auto lock = std::unique_lock{mutex_};
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    if (is_closed_)
      return fail(errc::stopped, "the replicas' processes are stopped");
    // One whose process has ended does not count as one of the replica's next process.
    std::vector<link*> alive;
    std::vector<link_use> uses;
    for (auto& each : links_)
      if (!each.stop.stop_requested()) {
        alive.push_back(&each);
        uses.push_back(each.use);
      }
    const auto waited = std::chrono::steady_clock::now() - begun;
    const auto takes_any = waited >= patience_;
    if (const auto found = choose_link(uses, model, takes_any)) {
      alive[*found]->use.model = model;
      return lease{shared_from_this(), alive[*found]};
    }
    if (waited >= limit_)
      return fail(errc::unreachable, "no replica's process is connected");
    changed_.wait_until(lock, begun + (takes_any ? limit_ : patience_));
  }
}

void replica_links::drop(std::uint32_t replica) {
  const auto lock = std::lock_guard{mutex_};
  std::erase_if(links_, [&](const link& x) { return x.use.replica == replica && x.use.model.empty(); });
  for (auto& each : links_)
    if (each.use.replica == replica)
      each.stop.request_stop();
}

bool replica_links::await_first(std::chrono::steady_clock::time_point deadline) {
  auto lock = std::unique_lock{mutex_};
  changed_.wait_until(lock, deadline, [this] { return has_had_any_ || is_closed_; });
  return has_had_any_ && !is_closed_;
}

void replica_links::close() {
  {
    const auto lock = std::lock_guard{mutex_};
    is_closed_ = true;
    for (auto& each : links_)
      each.stop.request_stop();
    std::erase_if(links_, [](const link& x) { return x.use.model.empty(); });
  }
  changed_.notify_all();
}

void replica_links::end(link* what) {
  const auto lock = std::lock_guard{mutex_};
  std::erase_if(links_, [&](const link& x) { return &x == what; });
}

} // namespace troupe::serving
