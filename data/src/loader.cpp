#include <troupe/data/loader.hpp>

#include "prefetch_plan.hpp"

#include <troupe/data_order.hpp>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <fmt/format.h>
#include <list>
#include <mutex>
#include <optional>
#include <pthread.h>
#include <stop_token>
#include <thread>
#include <utility>

namespace troupe::data {

namespace {

/// Added to the seed for the permutations that choose which samples an epoch leaves out or repeats, so that they differ
/// from those that order the epoch.
constexpr std::uint64_t choice_seed = 0x9d1f3c5b7a2e4861u;

expected<void> fetch_guarded(const data_set& set, std::span<const std::uint64_t> samples, batch& out) {
  try {
    return set.fetch(samples, out);
  } catch (const exception& x) {
    return fail(x.reason());
  } catch (const std::exception& x) {
    return fail(errc::user_error, fmt::format("fetching samples: {}", x.what()));
  }
}

/// Blocks all signals, so that they go to the program's own threads and not to those that this one starts.
class signals_blocked {
 public:
  signals_blocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;
  ~signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

void check(const data_set& set, const loader_options& options) {
  if (options.batch_samples == 0)
    throw exception{errc::invalid_argument, "a batch of 0 samples: set loader_options::batch_samples"};
  if (const auto* how = std::get_if<shuffle::blocks>(&options.order);
      how != nullptr && (how->block_samples == 0 || how->window_blocks == 0))
    throw exception{errc::invalid_argument, "loader_options::order: blocks need at least one sample, and windows one "
                                            "block"};
  if (options.threads == 0)
    throw exception{errc::invalid_argument,
                    "a loader with 0 threads: set loader_options::prefetch_shards to 0 to fetch nothing ahead"};
  if (set.size() == 0)
    throw exception{errc::invalid_argument, "a data set without samples cannot be trained on"};
  if (set.size() < options.batch_samples && options.at_epoch_end != epoch_end::repeat)
    throw exception{errc::invalid_argument,
                    fmt::format("a data set of {} samples is smaller than a batch of {}: use a smaller batch, or "
                                "epoch_end::repeat",
                                set.size(), options.batch_samples)};
}

std::uint64_t epoch_size(std::uint64_t samples, const loader_options& options) {
  auto batch = options.batch_samples;
  switch (options.at_epoch_end) {
  case epoch_end::run_on:
    return samples;
  case epoch_end::drop:
    return samples / batch * batch;
  case epoch_end::repeat:
    return (samples + batch - 1) / batch * batch;
  }
  return samples;
}

} // namespace

class loader::impl {
 public:
  impl(data_set_ptr set, loader_options options, std::uint32_t shards, std::uint64_t seed)
      : set_((check(*set, options), std::move(set))),
        options_(options),
        seed_(seed),
        epoch_samples_(epoch_size(set_->size(), options)),
        order_(epoch_samples_, options.batch_samples, shards, seed, options.order),
        plan_(shards, options.last_step) {
    const signals_blocked guard;
    for (std::size_t i = 0; i < std::min(options_.threads, options_.prefetch_shards); ++i)
      threads_.emplace_back([this](const std::stop_token& stop) { run(stop); });
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() {
    // All at once; their destructors then wait for the shards that are being fetched.
    for (auto& thread : threads_)
      thread.request_stop();
  }

  [[nodiscard]] const data_set& set() const noexcept { return *set_; }
  [[nodiscard]] const loader_options& options() const noexcept { return options_; }
  [[nodiscard]] std::uint64_t epoch_samples() const noexcept { return epoch_samples_; }
  [[nodiscard]] counts fetched() const noexcept { return counts_; }

  expected<const batch*> fetch(shard_of_step which, std::span<const std::uint64_t> samples) {
    auto lock = std::unique_lock{mutex_};
    release(given_);
    auto* found = find(which);
    if (found != nullptr) {
      changed_.wait(lock, [&] { return found->at == phase::ready; });
      found->at = phase::given;
      given_ = found;
    }
    plan_.asked(which);
    if (options_.prefetch_shards > 0)
      look_ahead();
    // A prefetched shard is used only if it holds the requested samples.
    if (found != nullptr && std::ranges::equal(found->samples, samples)) {
      ++counts_.ahead;
      if (!found->result)
        return fail(found->result.error());
      return &found->content;
    }
    ++counts_.late;
    lock.unlock();
    choose(which.step, samples, numbers_);
    TROUPE_TRY(fetch_guarded(*set_, numbers_, late_));
    return &late_;
  }

 private:
  enum class phase : std::uint8_t { filling, ready, given };

  /// A prefetched shard. While it is being filled, fields other than `which` and `at` belong to the thread that fills
  /// it; `mutex_` protects these two.
  struct slot {
    shard_of_step which;
    phase at = phase::filling;
    std::vector<std::uint64_t> samples;
    std::vector<std::uint64_t> numbers;
    batch content;
    expected<void> result;
  };

  [[nodiscard]] slot* find(shard_of_step which) {
    auto found = std::ranges::find_if(slots_, [&](const slot& x) { return x.which == which && x.at != phase::given; });
    return found == slots_.end() ? nullptr : &*found;
  }

  /// Keeps the slot's memory for reuse.
  void release(slot*& which) {
    if (which == nullptr)
      return;
    auto place = std::ranges::find_if(slots_, [&](const slot& x) { return &x == which; });
    free_.splice(free_.end(), slots_, place);
    which = nullptr;
  }

  /// Drops shards that will not be requested, and wakes the threads to fetch those that will.
  void look_ahead() {
    wanted_ = plan_.next(options_.prefetch_shards);
    for (auto i = slots_.begin(); i != slots_.end();) {
      auto place = i++;
      if (place->at == phase::ready && std::ranges::find(wanted_, place->which) == wanted_.end())
        free_.splice(free_.end(), slots_, place);
    }
    changed_.notify_all();
  }

  /// The next wanted shard that is not there yet and that no thread is fetching, unless the limit is reached.
  [[nodiscard]] std::optional<shard_of_step> next_to_fetch() {
    auto held = std::ranges::count_if(slots_, [](const slot& x) { return x.at != phase::given; });
    if (static_cast<std::size_t>(held) >= options_.prefetch_shards)
      return std::nullopt;
    for (const auto& which : wanted_)
      if (find(which) == nullptr)
        return which;
    return std::nullopt;
  }

  /// The body of each thread. What it takes and what it puts back happens under `mutex_`; shards may become ready in
  /// another order than they are asked for.
  void run(const std::stop_token& stop) {
    auto lock = std::unique_lock{mutex_};
    for (;;) {
      auto which = std::optional<shard_of_step>{};
      changed_.wait(lock, stop, [&] { return (which = next_to_fetch()).has_value(); });
      if (stop.stop_requested())
        return;
      if (free_.empty())
        free_.emplace_back();
      slots_.splice(slots_.end(), free_, free_.begin());
      auto& target = slots_.back();
      target.which = *which;
      target.at = phase::filling;
      lock.unlock();
      order_.samples_of(step_id{which->step}, shard_id{which->shard}, target.samples);
      choose(which->step, target.samples, target.numbers);
      target.result = fetch_guarded(*set_, target.numbers, target.content);
      lock.lock();
      target.at = phase::ready;
      changed_.notify_all();
    }
  }

  /// Maps samples of the plan's data order to the data set's samples.
  void choose(std::uint64_t step, std::span<const std::uint64_t> samples, std::vector<std::uint64_t>& out) const {
    out.assign(samples.begin(), samples.end());
    if (options_.at_epoch_end == epoch_end::run_on || epoch_samples_ == set_->size())
      return;
    // With these modes a batch never spans two epochs.
    auto epoch = order_.epoch_of(step_id{step});
    auto permutation = keyed_permutation{set_->size(), seed_ + choice_seed, epoch};
    // The other orders keep neighbours together: what is left out is one stretch, and for `none` always the end.
    const auto is_uniform = std::holds_alternative<shuffle::uniform>(options_.order);
    const auto first = std::holds_alternative<shuffle::none>(options_.order) ? 0 : permutation(0);
    for (auto& sample : out) {
      if (options_.at_epoch_end == epoch_end::drop)
        sample = is_uniform ? permutation(sample) : (sample + first) % set_->size();
      else if (sample >= set_->size())
        sample = permutation((sample - set_->size()) % set_->size());
    }
  }

  data_set_ptr set_;
  loader_options options_;
  std::uint64_t seed_;
  std::uint64_t epoch_samples_;
  data_order order_;
  prefetch_plan plan_;
  counts counts_;
  std::vector<std::uint64_t> numbers_;
  batch late_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<shard_of_step> wanted_;
  std::list<slot> slots_;
  std::list<slot> free_;
  /// The slot whose content the caller is using.
  slot* given_ = nullptr;
  /// Declared last, so that the threads end before the members they use are destroyed.
  std::vector<std::jthread> threads_;
};

loader::loader(const train_context& ctx, data_set_ptr set, loader_options options)
    : loader(
          std::move(set),
          [&] {
            if (options.last_step == 0)
              options.last_step = ctx.steps();
            return options;
          }(),
          ctx.shards(), ctx.seed()) {}

loader::loader(data_set_ptr set, loader_options options, std::uint32_t shards, std::uint64_t seed)
    : impl_(std::make_unique<impl>(std::move(set), options, shards, seed)) {}

loader::loader(loader&&) noexcept = default;
loader& loader::operator=(loader&&) noexcept = default;
loader::~loader() = default;

std::uint64_t loader::epoch_samples() const noexcept {
  return impl_->epoch_samples();
}

step_plan loader::plan(std::uint64_t gradient_elements) const {
  step_plan result;
  result.data = impl_->set();
  result.data.samples = epoch_samples();
  if (impl_->options().at_epoch_end != epoch_end::run_on)
    result.data.fingerprint += impl_->options().at_epoch_end == epoch_end::drop ? " drop" : " repeat";
  result.order = impl_->options().order;
  result.batch_samples = impl_->options().batch_samples;
  result.gradient_elements = gradient_elements;
  return result;
}

const batch& loader::operator()(const basic_step& step, const basic_shard& shard) {
  return *value_or_throw(fetch(step.id(), shard.id(), shard.samples()));
}

expected<const batch*> loader::fetch(step_id step, shard_id shard, std::span<const std::uint64_t> samples) {
  return impl_->fetch({step.value, shard.value}, samples);
}

loader::counts loader::fetched() const noexcept {
  return impl_->fetched();
}

} // namespace troupe::data
