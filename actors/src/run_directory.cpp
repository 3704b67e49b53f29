#include <troupe/actors/run_directory.hpp>

#include <troupe/actors/decisions/plan_comparison.hpp>
#include <troupe/actors/decisions/run_status_model.hpp>
#include <troupe/actors/run_lock.hpp>
#include <troupe/actors/run_name.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <sys/file.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::actors {

namespace fs = std::filesystem;

namespace {

std::string holder_of(const fs::path& root) {
  const auto holder = read_lock_holder(root);
  if (!holder)
    return "another driver";
  const auto is_elsewhere = !holder->host.empty() && holder->host != lock_host();
  return fmt::format("the driver with process id {}{}", holder->pid, is_elsewhere ? " on " + holder->host : "");
}

/// Whether flock has failed because the file system has no locks, such as NFS without its lock daemon. There the later
/// driver has the run, unless the earlier one is seen to live.
bool has_no_locks(int code) {
  return code == ENOLCK || code == EOPNOTSUPP || code == ENOSYS;
}

/// Whether the driver that holds a directory without locks lives on this machine.
bool is_held_here(const fs::path& root) {
  const auto holder = read_lock_holder(root);
  if (!holder || life_of(*holder, root) != holder_life::lives)
    return false;
  // This process has just opened the file itself.
  const auto is_own = holder->pid == static_cast<std::uint32_t>(::getpid());
  return !is_own || times_open(holder->pid, root).value_or(0) > 1;
}

/// A directory is let go by a driver that ends, a node that has noticed its death, or a server whose lease is over.
constexpr auto lock_look_interval = std::chrono::milliseconds{200};

/// Tries until the directory is free, somebody is in a hurry, or the time is over. Returns 0, or why flock failed.
int lock_in_time(int fd, const fs::path& root, std::chrono::milliseconds longest, const lock_watch& watch) {
  const auto deadline = std::chrono::steady_clock::now() + longest;
  for (auto has_told = false;;) {
    const auto why = ::flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    const auto is_held = why == EWOULDBLOCK || (has_no_locks(why) && is_held_here(root));
    if (!is_held)
      return has_no_locks(why) ? 0 : why;
    if (std::chrono::steady_clock::now() >= deadline || watch.hurry.stop_requested())
      return EWOULDBLOCK;
    if (!std::exchange(has_told, true) && watch.tell)
      watch.tell(fmt::format("waits up to {} s for the run directory {}, which is in use by {}",
                             std::chrono::ceil<std::chrono::seconds>(longest).count(), root.string(), holder_of(root)));
    std::this_thread::sleep_for(lock_look_interval);
  }
}

expected<int> lock_directory(const fs::path& root, const run_config& config, const lock_watch& watch) {
  auto path = root / ".lock";
  auto fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    auto reason = system_error("cannot write to the run's directory " + root.string());
    reason.code = errc::io_error;
    reason.message +=
        "; choose another storage path (run.storage_path, --storage), or free space there and make it writable";
    return fail(std::move(reason));
  }
  if (const auto why = lock_in_time(fd, root, config.lock_wait, watch); why != 0) {
    ::close(fd);
    if (why == EWOULDBLOCK)
      return fail(errc::already_exists, "run directory " + root.string() + " is in use by " + holder_of(root) +
                                            ": stop that one first, or choose another name (run.name, --name)");
    return fail(errc::io_error, fmt::format("run directory {} cannot be locked ({}): choose another storage path "
                                            "(run.storage_path, --storage)",
                                            root.string(), std::strerror(why)));
  }
  const auto content = lock_content();
  if (::ftruncate(fd, 0) != 0 || ::write(fd, content.data(), content.size()) != static_cast<ssize_t>(content.size())) {
    auto reason = system_error("cannot write to " + path.string());
    ::close(fd);
    reason.message += "; free space there, or choose another storage path (run.storage_path, --storage)";
    return fail(std::move(reason));
  }
  return fd;
}

void unlock(int lock) {
  // The file stays: removing it would let two drivers lock two files of one name. Where there are no locks, another
  // driver may have the directory by now.
  auto content = std::string(256, '\0');
  const auto size = ::pread(lock, content.data(), content.size(), 0);
  content.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  if (content == lock_content())
    std::ignore = ::ftruncate(lock, 0);
  ::close(lock);
}

/// Makes room for `more` bytes, unless the log is empty. A failure shows in the next write.
void rotate_log(const fs::path& path, std::size_t more, std::uint64_t limit) {
  auto code = std::error_code{};
  const auto size = fs::file_size(path, code);
  if (!code && limit > 0 && size > 0 && size + more > limit)
    fs::rename(path, path.string() + ".1", code);
}

/// Workers send nothing twice that is further back in a file.
constexpr std::size_t most_repeated_bytes = std::size_t{4} << 20;

/// The last bytes of a file, or all of it; empty if there is none.
std::string tail_of(const fs::path& path, std::size_t most) {
  auto in = std::ifstream{path, std::ios::binary | std::ios::ate};
  if (!in)
    return {};
  const auto size = static_cast<std::size_t>(in.tellg());
  auto result = std::string(std::min(size, most), '\0');
  in.seekg(static_cast<std::streamoff>(size - result.size()));
  in.read(result.data(), static_cast<std::streamsize>(result.size()));
  return result;
}

/// The end of a driver may have torn the last line that it wrote.
void drop_torn_line(const fs::path& path) {
  const auto tail = tail_of(path, most_repeated_bytes);
  if (const auto torn = tail.size() - (tail.rfind('\n') + 1); torn > 0) {
    auto ignored = std::error_code{};
    fs::resize_file(path, fs::file_size(path, ignored) - torn, ignored);
  }
}

/// A line for each difference; empty if there is none.
std::string describe_differences(const run_identity& now, const run_identity& then, std::string_view when) {
  auto result = std::string{};
  auto compare = [&](std::string_view what, const auto& here, const auto& there) {
    if (here != there)
      result += fmt::format("\n  {}: {} now, {} {}", what, here, there, when);
  };
  compare("program build", now.build_id, then.build_id);
  compare("seed", now.seed, then.seed);
  compare("shards (V)", now.shards, then.shards);
  compare("summation tree", now.tree_version, then.tree_version);
  compare("configuration", now.configuration, then.configuration);
  return result;
}

/// How to go on with what has changed, if that may change.
std::string way_on_with_changes(const run_identity& now, const run_identity& then) {
  auto like_now = then;
  like_now.build_id = now.build_id;
  like_now.configuration = now.configuration;
  if (like_now != now)
    return {};
  std::vector<std::string_view> changed;
  if (now.build_id != then.build_id)
    changed.emplace_back("program");
  if (now.configuration != then.configuration)
    changed.emplace_back("configuration");
  return fmt::format("; or go on from the checkpoint with what has changed, which the result names "
                     "(run.allow_changed): --allow-changed {}",
                     fmt::join(changed, ","));
}

/// The row of a line, if its "step" is at most `step`. A torn line has none.
std::optional<nlohmann::json> row_until(const std::string& line, step_id step) {
  auto row = nlohmann::json::parse(line, nullptr, false);
  if (!row.is_object() || !row.contains("step") || !row["step"].is_number_unsigned() ||
      row["step"].get<std::uint64_t>() > step.value)
    return std::nullopt;
  return row;
}

/// What a line of metrics has besides the user's. A metric of such a name has "metric." in front.
bool is_own_name(std::string_view name) {
  return name == "step" || name == "rank" || name == "seconds" || name == "time";
}

void add_row(metrics_history& to, const nlohmann::json& row) {
  constexpr std::string_view prefix = "metric.";
  if (const auto seconds = row.find("seconds"); seconds != row.end() && seconds->is_number())
    to.seconds = std::max(to.seconds, seconds->get<double>());
  if (const auto rank = row.find("rank"); rank == row.end() || *rank != 0)
    return;
  for (const auto& [key, value] : row.items()) {
    if (is_own_name(key) || !value.is_number())
      continue;
    const auto is_prefixed = key.starts_with(prefix) && is_own_name(std::string_view{key}.substr(prefix.size()));
    const auto name = is_prefixed ? key.substr(prefix.size()) : key;
    to.metrics[name] = value.get<double>();
    to.metrics_from[name] = row["step"].get<std::uint64_t>();
  }
}

/// Leaves the lines whose "step" is at most `step`, of the file and of those that are to be appended to it; a torn last
/// line goes, too. `on_row` sees the rows that are left.
expected<void> keep_lines_until(const fs::path& path, const std::string& more, step_id step,
                                const std::function<void(const nlohmann::json&)>& on_row) {
  if (!fs::exists(path) && more.empty())
    return {};
  // A long run's ledger may be larger than memory.
  constexpr std::size_t piece_bytes = 1 << 20;
  return serialization::write_file_durably(path, [&](const serialization::text_sink& sink) -> expected<void> {
    if (step.value == 0)
      return sink({});
    std::string piece;
    const auto keep_from = [&](std::istream& in) -> expected<void> {
      for (std::string line; std::getline(in, line);) {
        const auto row = row_until(line, step);
        if (!row)
          continue;
        on_row(*row);
        piece += line + '\n';
        if (piece.size() < piece_bytes)
          continue;
        TROUPE_TRY(sink(piece));
        piece.clear();
      }
      return {};
    };
    auto in = std::ifstream{path};
    TROUPE_TRY(keep_from(in));
    auto waiting = std::istringstream{more};
    TROUPE_TRY(keep_from(waiting));
    return sink(piece);
  });
}

/// As JSON. Without a library for it: each rank has a row in each step.
std::string line_of(const ledger_row& row, rank_id rank, std::uint32_t pid) {
  auto result = fmt::format(
      R"({{"step":{},"generation":{},"rank":{},"pid":{},"first_shard":{},"last_shard":{},"samples_digest":{})",
      row.step.value, row.generation.value, rank.value, pid, row.shards.first, row.shards.last, row.samples_digest);
  const auto& digest = row.digest;
  if (digest.pieces > 0)
    fmt::format_to(std::back_inserter(result),
                   R"(,"digest":{{"pieces":{},"first_piece":{},"gradient":[{}],"state":{}}})", digest.pieces,
                   digest.first, fmt::join(digest.digests, ","), digest.state);
  if (!digest.names.empty())
    if (const auto names = nlohmann::ordered_json::parse(digest.names, nullptr, false); names.is_object())
      result += R"(,"names":)" + names.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return result + '}';
}

} // namespace

fs::path run_directory::path_of(const run_config& config) {
  auto code = std::error_code{};
  return fs::absolute(config.storage_path, code) / config.name;
}

expected<run_directory> run_directory::open(const run_config& config, const lock_watch& watch) {
  run_directory result;
  result.root_ = path_of(config);
  result.log_limit_bytes_ = config.worker_log_bytes;
  auto code = std::error_code{};
  // A directory in which nothing has begun, as a refused attempt leaves it, holds no run.
  if (config.resume == resume_mode::never && fs::exists(result.root_ / "run.json", code))
    return fail(
        errc::already_exists,
        "run directory " + result.root_.string() +
            " exists and run.resume is resume_mode::never: resume the run with resume_mode::automatic (--resume "
            "auto), begin anew beside it with resume_mode::restart (--resume restart), or choose another name "
            "(run.name, --name)");
  if (config.resume == resume_mode::restart && fs::exists(result.root_ / "run.json", code)) {
    // Not from under another driver.
    TROUPE_TRY(auto old, lock_directory(result.root_, config, watch));
    auto moved = move_run_aside(result.root_);
    unlock(old);
    if (!moved)
      return fail(std::move(moved.error()));
    result.moved_aside_ = std::move(*moved);
  }
  if (auto made = serialization::create_directories_durably(result.root_ / "checkpoints"); !made)
    return fail(
        errc::io_error,
        made.error().message +
            "; choose another storage path (run.storage_path, --storage), or free space there and make it writable");
  TROUPE_TRY(serialization::create_directories_durably(result.root_ / "logs"));
  TROUPE_TRY(auto lock, lock_directory(result.root_, config, watch));
  result.lock_ = lock;
  const auto events = result.root_ / "events.jsonl";
  drop_torn_line(events);
  result.events_ = serialization::line_file{events};
  return result;
}

run_directory::run_directory(run_directory&& other) noexcept
    : root_(std::move(other.root_)),
      lock_(std::exchange(other.lock_, -1)),
      metrics_(std::move(other.metrics_)),
      times_(std::move(other.times_)),
      ledger_(std::move(other.ledger_)),
      events_(std::move(other.events_)),
      moved_aside_(std::move(other.moved_aside_)),
      log_limit_bytes_(other.log_limit_bytes_),
      log_ranks_(std::move(other.log_ranks_)),
      earlier_(std::move(other.earlier_)) {}

run_directory& run_directory::operator=(run_directory&& other) noexcept {
  std::swap(root_, other.root_);
  std::swap(lock_, other.lock_);
  std::swap(metrics_, other.metrics_);
  std::swap(times_, other.times_);
  std::swap(ledger_, other.ledger_);
  std::swap(events_, other.events_);
  std::swap(moved_aside_, other.moved_aside_);
  std::swap(log_limit_bytes_, other.log_limit_bytes_);
  std::swap(log_ranks_, other.log_ranks_);
  std::swap(earlier_, other.earlier_);
  return *this;
}

run_directory::~run_directory() {
  if (lock_ >= 0)
    unlock(lock_);
}

expected<metrics_history> run_directory::rewind(step_id step) {
  metrics_history result;
  for (const auto& [file, path] : step_files()) {
    auto waiting = file->take_waiting();
    const auto on_row = [&result, is_metrics = path.filename() == "metrics.jsonl"](const nlohmann::json& row) {
      if (is_metrics)
        add_row(result, row);
    };
    if (auto done = keep_lines_until(path, waiting, step, on_row); !done) {
      // Another attempt finds them.
      std::ignore = file->append(waiting);
      return fail(std::move(done.error()));
    }
    *file = serialization::line_file{path};
  }
  // For those who look before the first report.
  [[maybe_unused]] const auto metrics = std::ofstream{root_ / "metrics.jsonl", std::ios::app};
  return result;
}

metrics_history run_directory::history_until(step_id step) const {
  metrics_history result;
  auto in = std::ifstream{root_ / "metrics.jsonl"};
  for (std::string line; std::getline(in, line);)
    if (const auto row = row_until(line, step))
      add_row(result, *row);
  return result;
}

step_id run_directory::last_reported() const {
  auto lines = std::istringstream{tail_of(root_ / "metrics.jsonl", most_repeated_bytes)};
  step_id result;
  for (std::string line; std::getline(lines, line);)
    if (const auto row = row_until(line, step_id{~std::uint64_t{0}}); row && row->value("rank", 1u) == 0)
      result = std::max(result, step_id{(*row)["step"].get<std::uint64_t>()});
  return result;
}

expected<void> run_directory::write_run(const nlohmann::json& description) const {
  return serialization::write_file_durably(root_ / "run.json", description.dump(2) + "\n");
}

expected<void> run_directory::write_result(const run_result& result) const {
  return serialization::write_file_durably(root_ / "result.json", to_json(result));
}

void run_directory::continue_files() {
  earlier_.emplace();
  for (const auto& [file, path] : step_files()) {
    drop_torn_line(path);
    auto lines = std::istringstream{tail_of(path, most_repeated_bytes)};
    for (std::string line; std::getline(lines, line);)
      earlier_->digests.insert(serialization::xxh3(serialization::bytes_of(line)));
    *file = serialization::line_file{path};
  }
}

expected<void> run_directory::append(const metrics_batch& batch, std::uint32_t pid) {
  const auto may_repeat = earlier_ && earlier_->compared.insert(batch.worker).second;
  const auto add = [&](std::string& to, const std::string& line) {
    if (!may_repeat || !earlier_->digests.contains(serialization::xxh3(serialization::bytes_of(line))))
      to += line + '\n';
  };
  std::string metrics;
  for (const auto& row : batch.rows) {
    nlohmann::ordered_json line{
        {"step", row.step.value},
        {"rank", batch.rank.value},
        {"seconds", static_cast<double>(row.time_us) / 1e6},
        {"time", utc_text(std::chrono::system_clock::time_point{std::chrono::microseconds{row.wall_us}})}};
    // A user's metric may have the name of one of ours.
    for (const auto& [name, value] : row.values)
      line[is_own_name(name) ? "metric." + name : name] = value;
    add(metrics, line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  std::string ledger;
  for (const auto& row : batch.ledger)
    add(ledger, line_of(row, batch.rank, pid));
  std::string times;
  for (const auto& row : batch.times) {
    const auto seconds = [](std::uint64_t microseconds) { return static_cast<double>(microseconds) / 1e6; };
    const nlohmann::ordered_json line{{"step", row.last.value},
                                      {"first_step", row.first.value},
                                      {"rank", row.rank.value},
                                      {"generation", row.generation.value},
                                      {"steps", row.steps},
                                      {"compute", seconds(row.compute_us)},
                                      {"wait", seconds(row.wait_us)},
                                      {"barrier", seconds(row.barrier_us)},
                                      {"checkpoint", seconds(row.checkpoint_us)},
                                      {"sent_bytes", row.sent_bytes}};
    add(times, line.dump());
  }
  auto result = metrics_.append(metrics);
  for (auto& written : {times_.append(times), ledger_.append(ledger)})
    if (result)
      result = written;
  return result;
}

expected<void> run_directory::append_event(std::chrono::system_clock::time_point when,
                                           const nlohmann::ordered_json& what) {
  nlohmann::ordered_json line{{"time", utc_text(when)}};
  line.update(what);
  return events_.append(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n');
}

expected<void> run_directory::append_output(const worker_output& output, rank_id rank) {
  std::string text;
  for (const auto& line : output.lines)
    text += line + '\n';
  const auto path = root_ / "logs" / fmt::format("worker-{}.log", output.worker);
  if (earlier_ && earlier_->compared_output.insert(output.worker).second && tail_of(path, text.size()) == text)
    return {};
  // Opened each time: a run of many workers, one after the other, keeps none of their logs open.
  auto log = serialization::line_file{path};
  if (const auto known = log_ranks_.find(output.worker); known == log_ranks_.end() || known->second != rank) {
    auto ranks = serialization::line_file{root_ / "logs" / "ranks.jsonl"};
    if (ranks.append(fmt::format("{{\"worker\":{},\"rank\":{}}}\n", output.worker, rank)))
      log_ranks_[output.worker] = rank;
  }
  rotate_log(path, text.size(), log_limit_bytes_);
  return log.append(text);
}

std::uint64_t run_directory::take_dropped() noexcept {
  return metrics_.take_dropped() + times_.take_dropped() + ledger_.take_dropped() + events_.take_dropped();
}

expected<void> compare_with_journal(const run_identity& now, const run_identity& then) {
  const auto differences = describe_differences(now, then, "before");
  if (differences.empty())
    return {};
  return fail(errc::mismatch, "they are those of another program or configuration:" + differences);
}

expected<void> compare_with_checkpoint(const run_identity& now, const serialization::manifest& then,
                                       const allowed_changes& allowed) {
  auto before = run_identity{then.program_build_id, then.seed, then.shards, then.tree_version, then.configuration_json};
  const auto all = before;
  if (allowed.program)
    before.build_id = now.build_id;
  if (allowed.configuration)
    before.configuration = now.configuration;
  if (describe_differences(now, before, {}).empty())
    return {};
  const auto differences = describe_differences(now, all, "in the checkpoint");
  return fail(errc::mismatch,
              fmt::format("this run cannot go on from its checkpoint at step {}, because its result would be that of "
                          "no single program:{}\n{}",
                          then.step, differences, std::string{ways_on} + way_on_with_changes(now, all)));
}

resumed_plan plan_of(const serialization::manifest& then) {
  std::vector<tensor_spec> tensors;
  for (const auto& each : then.tensors)
    tensors.push_back(each.spec);
  return {then.global_batch, then.data_fingerprint, describe_tensors(tensors), then.numerics_fingerprint_json};
}

std::string describe_tensors(const std::vector<tensor_spec>& tensors) {
  auto result = std::string{};
  for (const auto& each : tensors)
    result += fmt::format("{}{} {} [{}]", result.empty() ? "" : "\n", each.name, to_string(each.type),
                          fmt::join(each.shape, ", "));
  return result;
}

} // namespace troupe::actors
