#pragma once

#include "worker/group/group_membership.hpp"
#include "worker/life/activity.hpp"
#include "worker/life/command_inbox.hpp"
#include "worker/life/driver_client.hpp"
#include "worker/life/metrics_pusher.hpp"
#include "worker/state/checkpointer.hpp"
#include "worker/step/evaluator.hpp"
#include "worker/step/step_barrier.hpp"
#include "worker/step/step_bucket.hpp"

#include <troupe/messages/begin.hpp>
#include <troupe/messages/commands.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/train_context.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

class step_driver;

/// Runs the user's body with the step of its kind.
using step_body = std::function<void(step_driver&)>;

/// One worker's training, from `begin_training` to the end of the training function: what stands behind a
/// `train_context`. It puts the parts of a worker together, each of which owns one concern:
///
///   group_membership  the protocol, the group, joining, leaving (its `worker_group`, `state_stager`, `state_catch_up`)
///   checkpointer      this worker's share of the checkpoints
///   step_barrier      what the ranks agree on at the end of a step
///   evaluator         evaluations that are split over the workers
///   step_loop         one loop of steps, its boundaries, and how a joiner gets there
///   step_driver       the steps of that loop, over a host or device `gradient_exchange`, with a `redundant_checker`
///
/// Used by the training thread, but for `command`, `abort`, `describe` and `beat`, which come from any thread.
class train_context::impl {
 public:
  /// `driver` outlives this object.
  impl(begin_training begin, runtime::driver_client& driver, runtime::device_factories factories = {});

  /// Runs the training function. Returns what the driver is told.
  [[nodiscard]] worker_finished run(const std::function<void(train_context&)>& function);

  // -- from any thread

  void command(const control_command& message);
  void abort(const abort_training& message) { members_.abort(message); }
  /// What this worker does and which ranks it waits for, for people.
  [[nodiscard]] std::string describe();
  /// Rank, last committed step and run, in few letters: "r1 s120 digits".
  [[nodiscard]] std::string title();
  /// Passes the title to what `on_title` has set: with each heartbeat and each step.
  void show_title() {
    title_.show([this] { return title(); });
  }
  /// Before training begins.
  void on_title(std::function<void(const std::string&)> show) { title_.set(std::move(show)); }
  /// Fills in generation, step and activity of the training thread.
  void beat(worker_beat& into) noexcept { members_.beat(into); }
  [[nodiscard]] bool stop_requested() const noexcept { return stop_requested_; }
  [[nodiscard]] bool group_is_lost() { return members_.locked()->abort_reason().has_value(); }

  // -- for train_context

  void for_each_step(runtime::loop_plan plan, const step_body& body);
  [[nodiscard]] std::vector<double> evaluate(std::uint64_t samples, std::size_t number_of_sums,
                                             const runtime::evaluator::evaluation& function);
  /// A report of a custom loop.
  void report(metric_map values, save_checkpoint checkpoint);
  /// A collective operation of a custom loop. Throws what it returns.
  template <class Call>
  void call_group(Call call) {
    refuse_in_body("a collective of a custom loop (ctx.all_reduce, ctx.barrier and the like)");
    auto scope = in_collective();
    if (auto done = call(members_.communicator()); !done)
      lose_custom_group(std::move(done.error()));
  }

  [[nodiscard]] const group_place& place() const noexcept { return protocol().place(); }
  [[nodiscard]] const begin_training& begin() const noexcept { return given_.begin; }
  [[nodiscard]] const run_settings& settings() const noexcept { return given_.begin.settings; }
  [[nodiscard]] const nlohmann::json& config() const noexcept { return given_.config; }
  [[nodiscard]] const nlohmann::json& options() const noexcept { return given_.options; }
  [[nodiscard]] const std::filesystem::path& run_directory() const noexcept { return given_.run_directory; }
  [[nodiscard]] tracked_state& state() noexcept { return state_; }
  [[nodiscard]] step_id restored_step() const noexcept { return restored_step_; }
  /// What the gradient consists of, and what the frameworks' arithmetic depends on: for messages.
  void name_gradient(std::vector<gradient_tensor> tensors) { names_.gradient = std::move(tensors); }
  [[nodiscard]] const std::vector<gradient_tensor>& gradient_tensors() const noexcept { return names_.gradient; }
  void name_frameworks(std::string text) { names_.frameworks = std::move(text); }
  [[nodiscard]] const std::string& frameworks() const noexcept { return names_.frameworks; }
  /// The training function does something, in code of its own.
  void heartbeat() noexcept;
  void touch() noexcept { activity_.touch(); }

  // -- for step_loop and step_driver

  [[nodiscard]] runtime::group_membership& members() noexcept { return members_; }
  [[nodiscard]] runtime::checkpointer& checkpoints() noexcept { return checkpoints_; }
  [[nodiscard]] runtime::command_inbox& commands() noexcept { return commands_; }
  [[nodiscard]] runtime::driver_client& client() noexcept { return driver_; }
  [[nodiscard]] const actors::worker_protocol& protocol() const noexcept { return members_.protocol(); }
  [[nodiscard]] bool has_state() { return members_.locked()->has_state(); }
  [[nodiscard]] runtime::worker_group& group() noexcept { return members_.group(); }
  [[nodiscard]] runtime::state_stager& stager() noexcept { return members_.stager(); }
  [[nodiscard]] runtime::quiescence_gate::scope quiet() { return members_.quiet(); }
  [[nodiscard]] runtime::activity::scope in_collective() { return {activity_, activity_kind::collective}; }
  /// The body of this step begins; nothing: it is over.
  void set_body(std::optional<step_id> step) noexcept { body_of_ = step; }
  [[nodiscard]] bool begin_step(step_id step) { return members_.locked()->begin_step(step); }
  void commit(step_id step) { barrier_.commit(step); }
  /// The body of this step has returned.
  void note_applied(step_id step);
  /// Takes the checkpoint of this boundary, or waits for others. `on_loss` gets the errors of the group.
  void save_at_boundary(step_id step, const actors::consider_checkpoint& what,
                        const std::function<void(error)>& on_loss) {
    checkpoints_.at_boundary(
        step, what, [this] { return place(); }, on_loss);
  }
  void regroup(error reason) { members_.regroup(std::move(reason)); }
  /// The training function's error, with this worker's rank and step.
  [[nodiscard]] error with_place(error reason) const;
  [[nodiscard]] bool is_loss_of_group(const error& reason) { return members_.is_loss_of_group(reason); }
  [[nodiscard]] bool may_form_again(const error& reason) { return members_.may_form_again(reason); }
  void report_step(step_id step, metric_map values);
  void record(ledger_row row) { pusher_.record(std::move(row)); }
  void record(const not_finite_row& row) { pusher_.record(row); }
  void record(times_row row) { pusher_.record(std::move(row)); }

 private:
  /// How the training function trains.
  enum class loop_kind : std::uint8_t {
    undecided,
    steps,
    /// It has a loop of its own, and reports.
    custom,
    /// The same, and the group of that loop was lost.
    custom_lost,
  };

  /// For messages.
  struct names {
    std::vector<gradient_tensor> gradient;
    std::string frameworks;
  };

  /// What the driver has sent.
  struct given {
    explicit given(begin_training message)
        : begin(std::move(message)),
          config(nlohmann::json::parse(begin.settings.configuration)),
          options(nlohmann::json::parse(begin.settings.options)),
          run_directory(begin.settings.directory) {}

    begin_training begin;
    nlohmann::json config;
    nlohmann::json options;
    std::filesystem::path run_directory;
  };

  /// Shows a title, one at a time. From any thread, but for `set`.
  class process_title {
   public:
    void set(std::function<void(const std::string&)> show) { show_ = std::move(show); }
    template <class MakeTitle>
    void show(MakeTitle make) {
      auto lock = std::lock_guard{mutex_};
      if (show_)
        show_(make());
    }

   private:
    std::mutex mutex_;
    std::function<void(const std::string&)> show_;
  };

  /// What became of the last loop.
  struct loop_end {
    /// Identity of the tracked state at its end.
    std::string state_sha256;
    /// It was left because of a stop.
    bool stopped = false;
  };

  void prepare();
  void agree_on(const step_plan& plan);
  void agree_on(run_plan message);
  [[nodiscard]] bool is_custom() const noexcept { return kind_ >= loop_kind::custom; }
  [[noreturn]] void lose_custom_group(error reason);
  /// Throws in the body of a step: workers that join repeat it alone, and sums over ranks depend on their number.
  void refuse_in_body(std::string_view what) const;
  void report_with_checkpoint(step_id step);

  given given_;
  runtime::driver_client& driver_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  tracked_state state_;
  runtime::activity activity_;
  runtime::command_inbox commands_;
  std::atomic<bool> stop_requested_{false};
  runtime::metrics_pusher pusher_;
  runtime::checkpointer checkpoints_;
  runtime::group_membership members_;
  runtime::step_barrier barrier_;
  runtime::evaluator evaluator_;
  step_id restored_step_;
  loop_kind kind_ = loop_kind::undecided;
  std::optional<step_id> body_of_;
  names names_;
  loop_end ended_;
  process_title title_;
};

} // namespace troupe
