#include "command.hpp"
#include "submit/systemd.hpp"

#include <troupe/serialization/files/durable_file.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>
#include <troupe/shell_words.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <sys/file.h>
#include <unistd.h>

namespace troupe::tool {

namespace {

std::string first_word(const std::string& text) {
  return text.substr(0, text.find_first_of(" \n;"));
}

/// A command of an engine, which must be installed.
expected<finished_command> ask_engine(const char* engine, const std::vector<std::string>& words) {
  auto done = run_command(words, {.captures = true});
  if (!done)
    return fail(errc::not_found, fmt::format("{} (is this a host of {}?)", done.error().message, engine));
  return done;
}

expected<std::optional<std::string>> cancel_slurm_job(const std::string& number) {
  if (number.empty() || !std::ranges::all_of(number, [](unsigned char each) { return std::isdigit(each) != 0; }))
    return fail(errc::invalid_argument, fmt::format("'{}' is no number of a job of Slurm", number));
  TROUPE_TRY(const auto queued, ask_engine("Slurm", {"squeue", "--noheader", "--jobs", number, "--format=%T"}));
  if (queued.code != 0 || queued.out.empty())
    return std::nullopt;
  TROUPE_TRY(const auto done, ask_engine("Slurm", {"scancel", number}));
  if (done.code != 0)
    return fail(errc::io_error, fmt::format("scancel {} failed, as above", number));
  return fmt::format("Slurm has cancelled job {} ({})", number, first_word(queued.out));
}

expected<std::optional<std::string>> delete_kubernetes_job(const std::string& id) {
  const auto slash = id.find('/');
  const auto words = slash == std::string::npos
                         ? std::vector<std::string>{"kubectl", "delete", "job", id}
                         : std::vector<std::string>{"kubectl",           "delete", "--namespace",
                                                    id.substr(0, slash), "job",    id.substr(slash + 1)};
  const auto done = run_command(words, {.captures = true});
  if (!done || done->code != 0)
    return fail(errc::unreachable,
                fmt::format("the job is one of Kubernetes, and only who has kubectl there can end it: {}",
                            fmt::join(words, " ")));
  return done->out;
}

} // namespace

expected<void> refuse_queued_job(const std::string& name) {
  TROUPE_TRY(const auto queued, ask_engine("Slurm", {"squeue", "--me", "--noheader", "--name=" + name, "--format=%i"}));
  if (queued.code != 0)
    return fail(errc::unreachable, "Slurm does not say which jobs there are, as above");
  if (queued.out.empty())
    return {};
  return fail(errc::already_exists, fmt::format("the job {} is in Slurm's queue already, as {}: a name belongs to one "
                                                "job. End it (troupe stop, or scancel {}), or choose another name",
                                                name, first_word(queued.out), first_word(queued.out)));
}

expected<submitted> queue_script(const std::string& script) {
  TROUPE_TRY(const auto scratch, serialization::temporary_directory::make("troupe-submit"));
  const auto file = scratch.path() / "script";
  TROUPE_TRY(serialization::write_file_durably(file, script));
  TROUPE_TRY(const auto done, [&]() -> expected<finished_command> {
    auto queued = run_command({"sbatch", "--parsable"}, {.input = file, .captures = true});
    if (!queued)
      return fail(errc::not_found, fmt::format("{} (is this a host of Slurm?)", queued.error().message));
    return queued;
  }());
  if (done.code != 0)
    return fail(errc::invalid_argument, "sbatch does not take it, as above");
  const auto number = first_word(done.out);
  submitted result;
  result.where = fmt::format("Slurm as job {}", number);
  result.commands = {{"squeue --jobs " + number, "whether it waits or runs"},
                     {fmt::format("tail -F slurm-{}.out", number), "what the driver writes"},
                     {"scancel " + number, "end it; it takes a checkpoint"}};
  return result;
}

std::optional<submitted_job> find_job(const std::string& run) {
  const auto is_path = run.find('/') != std::string::npos;
  const auto path = std::filesystem::path{run}.lexically_normal();
  const auto name = (path.has_filename() ? path : path.parent_path()).filename().string();
  if (auto unit = find_systemd_job(name, is_path ? path : std::filesystem::path{}))
    return unit;
  const auto queued = run_command({"/bin/sh", "-c",
                                   "command -v squeue >/dev/null && squeue --me --noheader '--format=%i %Z' --name=" +
                                       shell_quoted(name) + " 2>/dev/null"},
                                  {.captures = true});
  auto lines = std::istringstream{queued && queued->code == 0 ? queued->out : std::string{}};
  for (std::string number, directory; lines >> number && std::getline(lines >> std::ws, directory);)
    if (!is_path || is_above(directory, path))
      return submitted_job{"slurm", number, {}, {}};
  return std::nullopt;
}

job_state state_in_engine(const submitted_job& job) {
  if (job.engine.starts_with("systemd"))
    return state_of_unit(job.id);
  if (job.engine != "slurm")
    return job_state::unknown;
  const auto queued = run_command({"squeue", "--noheader", "--jobs", job.id, "--format=%T"}, {.captures = true});
  const auto state = queued && queued->code == 0 ? first_word(queued->out) : std::string{};
  const auto waits = state == "PENDING" || state.starts_with("REQUEUE") || state == "SPECIAL_EXIT";
  return state.empty() ? job_state::gone : waits ? job_state::waits : job_state::runs;
}

expected<std::optional<std::string>> end_job(const submitted_job& job) {
  TROUPE_TRY(const auto lock, submission_lock::take());
  if (job.engine.starts_with("systemd"))
    return end_systemd_job(job);
  if (job.engine == "slurm")
    return cancel_slurm_job(job.id);
  if (job.engine == "kubernetes")
    return delete_kubernetes_job(job.id);
  return std::nullopt;
}

expected<submission_lock> submission_lock::take() {
  auto ignored = std::error_code{};
  const auto* own = std::getenv("XDG_RUNTIME_DIR");
  const auto directory =
      own != nullptr && *own != '\0' ? std::filesystem::path{own} : std::filesystem::temp_directory_path(ignored);
  const auto path = directory / fmt::format("troupe-submit-{}.lock", ::getuid());
  const auto descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0)
    return fail(system_error("cannot open " + path.string()));
  while (::flock(descriptor, LOCK_EX) != 0)
    if (errno != EINTR) {
      auto reason = system_error("cannot lock " + path.string());
      ::close(descriptor);
      return fail(std::move(reason));
    }
  return submission_lock{descriptor};
}

submission_lock::~submission_lock() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

} // namespace troupe::tool
