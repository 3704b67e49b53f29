#include <troupe/actors/checkpoint_store.hpp>

#include "orderly_end.hpp"

#include <troupe/actors/decisions/checkpoint_attempts.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::actors {

namespace {

/// Workers read this file to learn whether they share the directory.
constexpr auto nonce_file = ".probe-store";

/// The first line of a file; nothing if it cannot be read.
std::optional<std::string> read_line(const std::filesystem::path& path) {
  auto in = std::ifstream{path};
  auto result = std::string{};
  if (!in || !std::getline(in, result))
    return std::nullopt;
  return result;
}

/// Removes probe files of workers that were killed.
void remove_probes(const std::filesystem::path& directory) {
  auto code = std::error_code{};
  std::vector<std::filesystem::path> found;
  for (auto entries = std::filesystem::directory_iterator{directory, code};
       !code && entries != std::filesystem::directory_iterator{}; entries.increment(code))
    if (entries->path().filename().string().starts_with(".probe-"))
      found.push_back(entries->path());
  for (const auto& each : found)
    std::filesystem::remove(each, code);
}

class checkpoint_store_state : public orderly_end<checkpoint_store::base> {
 public:
  checkpoint_store_state(caf::actor_config& cfg, checkpoint_store_config config)
      : orderly_end(cfg), config_(std::move(config)) {
    remove_probes(config_.directory);
  }

  behavior_type make_behavior() override {
    return {
        [this](const checkpoint_metadata& metadata) { attempts_.set_metadata(metadata); },
        [this](const generation_started& message) { begin(message); },
        [this](const checkpoint_part& part) { return add(part); },
        [this](const storage_probe& probe) { return look(probe); },
    };
  }

  const char* name() const override { return "troupe.checkpoint_store"; }

 private:
  void let_go() override {
    // Handles keep this object and its promises alive, so fail the promises explicitly.
    for (auto& [key, waiting] : std::exchange(waiting_, {}))
      for (auto& each : waiting)
        each.deliver(to_caf({errc::aborted, "the run is ending"}));
    std::ignore = serialization::remove_abandoned(config_.directory);
    remove_probes(config_.directory);
  }

  using promise = caf::typed_response_promise<checkpoint_outcome>;

  /// Drops the parts of older generations, whose checkpoints will stay incomplete.
  void begin(const generation_started& message) {
    if (message.run != config_.run || message.generation <= generation_)
      return;
    generation_ = message.generation;
    last_complete_step_ = {};
    attempts_.forget_before(generation_);
    auto first_that_stays = waiting_.lower_bound({generation_, step_id{}, 0});
    for (auto i = waiting_.begin(); i != first_that_stays; i = waiting_.erase(i))
      for (auto& each : i->second)
        each.deliver(stale());
    remove_finished_attempts();
  }

  /// Removes directories of attempts that no worker writes to any more, to free space.
  void remove_finished_attempts() {
    std::vector<std::filesystem::path> in_use;
    auto code = std::error_code{};
    for (auto entries = std::filesystem::directory_iterator{config_.directory, code};
         !code && entries != std::filesystem::directory_iterator{}; entries.increment(code))
      if (may_be_in_use(entries->path().filename().string(), config_.run, generation_, last_complete_step_))
        in_use.push_back(entries->path());
    if (!code)
      std::ignore = serialization::remove_abandoned(config_.directory, in_use);
  }

  /// Worker and store share the directory if each can read the other's nonce; an equal path proves nothing.
  storage_view look(const storage_probe& probe) {
    storage_view result;
    auto is_name = probe.file.find('/') == std::string::npos;
    auto seen = is_name ? read_line(config_.directory / probe.file) : std::nullopt;
    result.seen = probe.run == config_.run && seen == probe.nonce;
    if (nonce_.empty()) {
      auto nonce = serialization::random_hex(16);
      if (serialization::write_file_durably(config_.directory / nonce_file, nonce))
        nonce_ = nonce;
    }
    result.file = nonce_file;
    result.nonce = nonce_;
    return result;
  }

  caf::error stale() const {
    return to_caf(
        {errc::stale_generation, fmt::format("generation {} has begun: the checkpoint is taken again", generation_)});
  }

  caf::result<checkpoint_outcome> add(const checkpoint_part& part) {
    if (part.run != config_.run)
      return to_caf({errc::stale_generation,
                     "a part of a checkpoint of run " + part.run.value + " came to run " + config_.run.value});
    const auto key = attempt_key{part.generation, part.step, part.attempt};
    // Even for an older generation: other ranks may already have the outcome.
    if (auto known = std::ranges::find(outcomes_, key, &known_outcome::key); known != outcomes_.end())
      return known->outcome;
    const auto is_last_copy = part.attempt >= serialization::first_last_copy;
    if (part.generation < generation_ && !is_last_copy) {
      // The previous driver may have written it and answered some ranks.
      auto ignored = std::error_code{};
      const auto path = config_.directory / serialization::checkpoint_name(part.step);
      if (std::filesystem::exists(path, ignored))
        return checkpoint_outcome{part.step, path.string(), {}, 0, 0};
      return stale();
    }
    waiting_[key].push_back(make_response_promise<checkpoint_outcome>());
    auto answer = waiting_[key].back();
    auto now = std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
    auto whole = attempts_.add(part, now);
    if (!whole)
      return answer;
    auto outcome = commit(part.step, std::move(*whole));
    // A valid checkpoint of this step replaces the copy.
    if (is_last_copy && outcome.reason.code == errc::already_exists)
      outcome = {part.step, (config_.directory / serialization::checkpoint_name(part.step)).string(), {}};
    // Each rank writes its parts in order, so none of them is behind this step.
    if (!is_last_copy) {
      generation_ = std::max(generation_, part.generation);
      last_complete_step_ = std::max(last_complete_step_, part.step);
    }
    if (outcome.reason.code != errc::none)
      remove_finished_attempts();
    if (config_.on_outcome)
      config_.on_outcome(outcome);
    auto waiting = waiting_.extract(key);
    for (auto& each : waiting.mapped())
      each.deliver(outcome);
    outcomes_.push_back({key, std::move(outcome)});
    if (outcomes_.size() > most_outcomes)
      outcomes_.pop_front();
    return answer;
  }

  checkpoint_outcome commit(step_id step, expected<complete_checkpoint> whole) {
    auto give_up = [&](error reason) {
      checkpoint_outcome outcome;
      outcome.step = step;
      outcome.reason = std::move(reason);
      return outcome;
    };
    if (!whole)
      return give_up(std::move(whole.error()));
    auto path = serialization::commit_checkpoint(config_.directory, config_.directory / whole->temporary_directory,
                                                 whole->content);
    if (!path)
      return give_up(std::move(path.error()));
    // A failed removal costs only space, and is repeated after the next checkpoint.
    const auto held = config_.holds ? config_.holds->held() : std::vector<step_id>{};
    std::ignore = serialization::apply_retention(config_.directory, config_.keep, held);
    const auto took = std::chrono::system_clock::now() - whole->began;
    std::uint64_t size_bytes = 0;
    for (const auto& tensor : whole->content.tensors)
      size_bytes += tensor.spec.size_bytes();
    return {step, path->string(), {}, size_bytes, std::max(0.0, std::chrono::duration<double>(took).count())};
  }

  using attempt_key = std::tuple<generation_id, step_id, std::uint32_t>;

  struct known_outcome {
    attempt_key key;
    checkpoint_outcome outcome;
  };

  /// More than a run has in flight.
  static constexpr std::size_t most_outcomes = 256;

  checkpoint_store_config config_;
  checkpoint_attempts attempts_;
  /// The latest generation known from messages or parts.
  generation_id generation_;
  /// The content of `nonce_file`; empty while there is none.
  std::string nonce_;
  /// The last step of that generation whose parts have all arrived.
  step_id last_complete_step_;
  std::map<attempt_key, std::vector<promise>> waiting_;
  /// The latest outcomes: a part that is repeated over another connection gets the same answer.
  std::deque<known_outcome> outcomes_;
};

} // namespace

checkpoint_store spawn_checkpoint_store(caf::actor_system& system, checkpoint_store_config config) {
  return system.spawn<checkpoint_store_state, caf::detached>(std::move(config));
}

} // namespace troupe::actors
