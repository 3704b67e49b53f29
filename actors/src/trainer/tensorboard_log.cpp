#include "trainer/tensorboard_log.hpp"

#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace troupe::actors {

namespace {

constexpr std::string_view file_prefix = "events.out.tfevents.";

/// TensorBoard reads files in the order of their names, which contain the second in which they were begun: it is later
/// than those of all files in the directory.
std::int64_t second_of_next_file(const std::filesystem::path& directory, serialization::wall_time now) {
  auto result = std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
  auto code = std::error_code{};
  for (auto i = std::filesystem::directory_iterator{directory, code};
       !code && i != std::filesystem::directory_iterator{}; i.increment(code)) {
    const auto name = i->path().filename().string();
    auto second = std::int64_t{0};
    if (name.starts_with(file_prefix) &&
        std::from_chars(name.data() + file_prefix.size(), name.data() + name.size(), second).ec == std::errc{})
      result = std::max(result, second + 1);
  }
  return result;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

serialization::wall_time time_of(const metric_row& row) {
  return serialization::wall_time{std::chrono::microseconds{row.wall_us}};
}

/// Milliseconds per step.
metric_map describe(const times_row& row) {
  const auto per_step = [&row](std::uint64_t microseconds) {
    return static_cast<double>(microseconds) / 1000 / static_cast<double>(row.steps);
  };
  const auto name = [&row](std::string_view what) { return fmt::format("troupe/{}_ms/rank_{}", what, row.rank); };
  return {{name("compute"), per_step(row.compute_us)},
          {name("wait"), per_step(row.wait_us)},
          {name("barrier"), per_step(row.barrier_us)}};
}

} // namespace

expected<void> tensorboard_log::append(const metrics_batch& batch, serialization::wall_time now) {
  if (batch.rank == rank_id{0})
    for (const auto& row : batch.rows)
      if (row.step >= first_ && !row.values.empty())
        add(serialization::tensorboard_scalars_record(time_of(row), row.step.value, row.values));
  for (const auto& row : batch.times)
    if (row.last >= first_ && row.steps > 0)
      add(serialization::tensorboard_scalars_record(now, row.last.value, describe(row)));
  return write_waiting(now);
}

expected<void> tensorboard_log::append(const run_result& result, serialization::wall_time now) {
  if (result.goodput.steps > 0)
    add(serialization::tensorboard_scalars_record(now, result.steps, {{"troupe/goodput", result.goodput.ratio()}}));
  return write_waiting(now);
}

std::uint64_t tensorboard_log::take_dropped() noexcept {
  return std::exchange(dropped_, 0);
}

void tensorboard_log::add(const std::string& record) {
  if (waiting_.size() + record.size() <= most_waiting_bytes)
    waiting_ += record;
  else
    ++dropped_;
}

expected<void> tensorboard_log::open(serialization::wall_time now) {
  if (auto made = serialization::create_directories_durably(directory_); !made)
    return fail(errc::io_error, std::move(made.error().message));
  path_ = directory_ /
          fmt::format("{}{:010}.{}.{}.0", file_prefix, second_of_next_file(directory_, now), host_name(), ::getpid());
  file_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
  if (!file_)
    return fail(errc::io_error, system_error("cannot write to " + path_.string()).message);
  auto head = serialization::tensorboard_version_record(now);
  if (!std::exchange(has_begun_, true))
    head += serialization::tensorboard_start_record(now, first_.value);
  waiting_.insert(0, head);
  return {};
}

expected<void> tensorboard_log::write_waiting(serialization::wall_time now) {
  if (waiting_.empty())
    return {};
  if (!file_)
    TROUPE_TRY(open(now));
  struct stat before {};
  auto code = ::fstat(file_.get(), &before) == 0 ? 0 : errno;
  for (std::size_t written = 0; written < waiting_.size() && code == 0;) {
    const auto n = ::write(file_.get(), waiting_.data() + written, waiting_.size() - written);
    if (n >= 0)
      written += static_cast<std::size_t>(n);
    else if (errno != EINTR)
      code = errno;
  }
  if (code == 0) {
    waiting_.clear();
    return {};
  }
  // Nobody reads on behind a record that is torn.
  if (::ftruncate(file_.get(), before.st_size) != 0) {
    dropped_ += 1;
    waiting_.clear();
    file_.reset();
  }
  errno = code;
  return fail(errc::io_error, system_error("cannot write to " + path_.string()).message);
}

} // namespace troupe::actors
