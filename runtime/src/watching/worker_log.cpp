#include <troupe/runtime/worker_log.hpp>

#include <troupe/runtime/found_run.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace fs = std::filesystem;
using collectives::unique_fd;

namespace {

constexpr auto older_suffix = ".1";

unique_fd open_file(const fs::path& path) {
  return unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
}

struct file_identity {
  dev_t device = 0;
  ino_t inode = 0;

  bool operator==(const file_identity&) const = default;
};

std::optional<file_identity> identity_of(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? std::optional{file_identity{status.st_dev, status.st_ino}} : std::nullopt;
}

std::optional<file_identity> identity_of(const unique_fd& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 ? std::optional{file_identity{status.st_dev, status.st_ino}} : std::nullopt;
}

/// Where the last `count` lines begin; and how many there are, if they are fewer.
std::pair<off_t, std::uint64_t> begin_of_last(const unique_fd& file, std::uint64_t count) {
  std::array<char, 65536> block;
  auto end = ::lseek(file.get(), 0, SEEK_END);
  auto found = std::uint64_t{0};
  for (auto at = end; at > 0;) {
    const auto size = std::min<off_t>(at, block.size());
    at -= size;
    if (::pread(file.get(), block.data(), static_cast<std::size_t>(size), at) != size)
      break;
    for (auto i = size; i-- > 0;)
      // The end of the last line begins none.
      if (block[static_cast<std::size_t>(i)] == '\n' && at + i + 1 < end && ++found == count)
        return {at + i + 1, count};
  }
  return {0, end > 0 ? found + 1 : 0};
}

std::optional<std::uint32_t> worker_of(const std::string& name) {
  constexpr std::string_view prefix = "worker-";
  constexpr std::string_view suffix = ".log";
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size())
    return std::nullopt;
  const auto* end = name.data() + name.size() - suffix.size();
  std::uint32_t result = 0;
  const auto [stop, code] = std::from_chars(name.data() + prefix.size(), end, result);
  return code == std::errc{} && stop == end ? std::optional{result} : std::nullopt;
}

} // namespace

void worker_log::open_first() {
  if (std::exchange(has_begun_, true))
    return;
  file_ = open_file(path_.string() + older_suffix);
  if (!file_)
    file_ = open_file(path_);
}

void worker_log::skip_to_last(std::uint64_t count) {
  has_begun_ = true;
  file_ = open_file(path_);
  auto found = std::uint64_t{0};
  if (file_ && count > 0) {
    auto begin = off_t{0};
    std::tie(begin, found) = begin_of_last(file_, count);
    ::lseek(file_.get(), begin, SEEK_SET);
  } else if (file_) {
    ::lseek(file_.get(), 0, SEEK_END);
  }
  auto older = found < count ? open_file(path_.string() + older_suffix) : unique_fd{};
  if (!older)
    return;
  ::lseek(older.get(), begin_of_last(older, count - found).first, SEEK_SET);
  file_ = std::move(older);
}

void worker_log::read(const line_sink& sink) {
  open_first();
  drain(sink);
  const auto here = identity_of(file_);
  const auto there = identity_of(path_);
  if (!there || here == there)
    return;
  // A newer one was begun: first the rest of this one, and one that came and went meanwhile.
  drain(sink);
  const auto between = identity_of(fs::path{path_.string() + older_suffix});
  if (file_ && between && between != here) {
    file_ = open_file(path_.string() + older_suffix);
    drain(sink);
  }
  file_ = open_file(path_);
  drain(sink);
}

void worker_log::flush(const line_sink& sink) {
  if (!rest_.empty())
    sink(std::exchange(rest_, {}));
}

void worker_log::drain(const line_sink& sink) {
  std::array<char, 65536> block;
  while (file_) {
    const auto got = ::read(file_.get(), block.data(), block.size());
    if (got <= 0)
      return;
    rest_.append(block.data(), static_cast<std::size_t>(got));
    auto begin = std::size_t{0};
    for (auto end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n', begin)) {
      sink(rest_.substr(begin, end - begin));
      begin = end + 1;
    }
    rest_.erase(0, begin);
  }
}

fs::path log_path(const fs::path& run, std::uint32_t worker) {
  return run / "logs" / fmt::format("worker-{}.log", worker);
}

std::vector<known_log> list_logs(const fs::path& run) {
  constexpr std::size_t all = std::size_t{16} << 20;
  std::map<std::uint32_t, std::uint32_t> ranks;
  for (const auto& row : last_rows(run / "logs" / "ranks.jsonl", all))
    if (row.contains("worker") && row["worker"].is_number_unsigned() && row.contains("rank") &&
        row["rank"].is_number_unsigned())
      ranks[row["worker"]] = row["rank"];
  std::set<std::uint32_t> workers;
  auto code = std::error_code{};
  for (auto entries = fs::directory_iterator{run / "logs", code}; !code && entries != fs::directory_iterator{};
       entries.increment(code))
    if (const auto worker = worker_of(entries->path().filename().string()))
      workers.insert(*worker);
  std::vector<known_log> result;
  for (auto worker : workers) {
    const auto rank = ranks.find(worker);
    result.push_back({worker, rank == ranks.end() ? std::nullopt : std::optional{rank->second}});
  }
  return result;
}

} // namespace troupe::runtime
