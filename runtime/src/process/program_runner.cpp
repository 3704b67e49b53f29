#include "process/program_runner.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

namespace troupe::runtime {

namespace {

constexpr std::size_t most_lines = 1'000'000;
constexpr std::size_t most_error_lines = 100;

/// How long it may take to end when it is asked to.
constexpr auto end_after = std::chrono::seconds{2};

} // namespace

/// What the supervisor's thread fills.
class program_runner::impl {
 public:
  static expected<std::unique_ptr<impl>> make() {
    auto result = std::make_unique<impl>();
    auto* self = result.get();
    auto supervisor = process_supervisor::make(
        {[self](pid_t, output_stream stream, std::string_view line) { self->on_line(stream, line); },
         [self](const exit_report& report) { self->on_exit(report); }});
    if (!supervisor)
      return fail(std::move(supervisor.error()));
    result->supervisor_.emplace(std::move(*supervisor));
    return result;
  }

  expected<program_outcome> run(const process_spec& spec, const std::stop_token& stop,
                                std::chrono::milliseconds limit) {
    {
      auto lock = std::lock_guard{mutex_};
      outcome_ = {};
      has_ended_ = false;
    }
    TROUPE_TRY(const auto pid, supervisor_->start(spec));
    auto lock = std::unique_lock{mutex_};
    if (changed_.wait_for(lock, stop, limit, [this] { return has_ended_; }))
      return std::move(outcome_);
    end(pid, lock);
    if (stop.stop_requested())
      return fail(errc::aborted, spec.program + " was ended");
    return fail(errc::timed_out, fmt::format("{} has not ended within {:.0f} s", spec.program,
                                             std::chrono::duration<double>{limit}.count()));
  }

 private:
  void end(pid_t pid, std::unique_lock<std::mutex>& lock) {
    const auto send = [&](int signal) {
      lock.unlock();
      supervisor_->kill(pid, signal);
      lock.lock();
    };
    send(SIGTERM);
    if (changed_.wait_for(lock, end_after, [this] { return has_ended_; }))
      return;
    send(SIGKILL);
    changed_.wait(lock, [this] { return has_ended_; });
  }

  void on_line(output_stream stream, std::string_view line) {
    auto lock = std::lock_guard{mutex_};
    auto& lines = stream == output_stream::out ? outcome_.out : outcome_.err;
    if (stream == output_stream::err && lines.size() == most_error_lines)
      lines.erase(lines.begin());
    if (lines.size() < most_lines)
      lines.emplace_back(line);
  }

  void on_exit(const exit_report& report) {
    {
      auto lock = std::lock_guard{mutex_};
      outcome_.how = report;
      has_ended_ = true;
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  program_outcome outcome_;
  bool has_ended_ = false;
  /// Last, so that its thread ends before the rest.
  std::optional<process_supervisor> supervisor_;
};

program_runner::program_runner(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
program_runner::program_runner(program_runner&&) noexcept = default;
program_runner& program_runner::operator=(program_runner&&) noexcept = default;
program_runner::~program_runner() = default;

expected<program_runner> program_runner::make() {
  TROUPE_TRY(auto state, impl::make());
  return program_runner{std::move(state)};
}

expected<program_outcome> program_runner::run(const process_spec& spec, const std::stop_token& stop,
                                              std::chrono::milliseconds limit) {
  return impl_->run(spec, stop, limit);
}

} // namespace troupe::runtime
