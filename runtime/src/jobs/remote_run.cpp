#include <troupe/runtime/run_access.hpp>

#include "net/members/member_messages.hpp"

#include <troupe/actors/run_lock.hpp>
#include <troupe/collectives/unique_fd.hpp>
#include <troupe/runtime/jobs.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <fcntl.h>
#include <map>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using serialization::temporary_directory;
using ordered_json = nlohmann::ordered_json;

class local_run : public run_access {
 public:
  explicit local_run(fs::path directory) : directory_(std::move(directory)) {}

  /// Also of a path that ends in a slash or leads through a link.
  [[nodiscard]] std::string name() const override {
    auto code = std::error_code{};
    const auto whole = fs::weakly_canonical(directory_, code);
    const auto path = code ? directory_ : whole;
    return path.filename().empty() ? path.parent_path().filename().string() : path.filename().string();
  }

  [[nodiscard]] const fs::path& directory() const noexcept override { return directory_; }
  [[nodiscard]] expected<void> refresh() override { return {}; }
  [[nodiscard]] std::variant<control_client, absent_driver> find_driver() override {
    return runtime::find_driver(directory_);
  }
  [[nodiscard]] ordered_json stored_status(absence why) override { return runtime::stored_status(directory_, why); }
  [[nodiscard]] bool has_driver() override {
    const auto holder = actors::read_lock_holder(directory_);
    return holder && actors::life_of(*holder, directory_) != actors::holder_life::is_gone;
  }
  [[nodiscard]] bool is_of_job() const noexcept override { return false; }
  [[nodiscard]] expected<void> end_job(bool /*at_once*/) override {
    return fail(errc::not_found, "the run belongs to no job");
  }

 private:
  fs::path directory_;
};

/// Carries the lines of a driver's protocol between a socket and a session at the driver's node, until either ends.
class relay {
 public:
  relay(job_client node, std::uint64_t session, collectives::unique_fd stream)
      : node_(std::move(node)),
        session_(session),
        stream_(std::move(stream)),
        thread_([this](const std::stop_token& stop) { work(stop); }) {}
  relay(const relay&) = delete;
  relay& operator=(const relay&) = delete;
  ~relay() {
    thread_.request_stop();
    // Wakes it.
    ::shutdown(stream_.get(), SHUT_RDWR);
  }

 private:
  void work(const std::stop_token& stop) {
    while (!stop.stop_requested() && read_lines(is_watched_ ? 0ms : 1'000ms) && answer_lines())
      if (is_watched_ && !pass_events())
        break;
    ::shutdown(stream_.get(), SHUT_RDWR);
  }

  bool read_lines(std::chrono::milliseconds patience) {
    auto waiting = pollfd{stream_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, static_cast<int>(patience.count())) <= 0)
      return true;
    std::array<char, 4096> buffer;
    const auto got = ::recv(stream_.get(), buffer.data(), buffer.size(), 0);
    if (got == 0 || (got < 0 && errno != EINTR))
      return false;
    in_.append(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return true;
  }

  bool answer_lines() {
    for (auto end = in_.find('\n'); end != std::string::npos; end = in_.find('\n')) {
      const auto line = in_.substr(0, end);
      in_.erase(0, end + 1);
      const auto answer = node_.ask("request", {{"session", session_}, {"line", line}});
      if (!answer || !send(answer->value("line", std::string{})))
        return false;
      const auto request = actors::parse_control_request(line);
      is_watched_ = is_watched_ || (request && std::holds_alternative<actors::watch_request>(*request));
    }
    return true;
  }

  bool pass_events() {
    const auto news = node_.ask("events", {{"session", session_}});
    if (!news)
      return false;
    for (const auto& line : news->value("lines", std::vector<std::string>{}))
      if (!send(line))
        return false;
    return !news->value("ended", false);
  }

  bool send(std::string line) {
    line += '\n';
    for (auto rest = std::string_view{line}; !rest.empty();) {
      const auto sent = ::send(stream_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EINTR)
        return false;
      rest.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
    }
    return true;
  }

  job_client node_;
  std::uint64_t session_;
  collectives::unique_fd stream_;
  std::string in_;
  bool is_watched_ = false;
  std::jthread thread_;
};

/// A file of the copy, and the file at the node that it is the beginning of.
struct copied_file {
  std::uint64_t id = 0;
  std::uint64_t size = 0;
};

/// How much is fetched at once, and how much of the end is compared, because a run that goes back rewrites its files.
constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t compared_bytes = 256;

class remote_run : public run_access {
 public:
  remote_run(job_client node, member_access how, std::string run, temporary_directory copy)
      : node_(std::move(node)), how_(std::move(how)), run_(std::move(run)), copy_(std::move(copy)) {}

  [[nodiscard]] bool can_move() const { return runtime::can_move(node_.job().what); }
  [[nodiscard]] std::string name() const override { return run_.empty() ? node_.job().what.name : run_; }
  [[nodiscard]] const fs::path& directory() const noexcept override { return copy_.path(); }

  [[nodiscard]] expected<void> refresh() override {
    auto answer = node_.ask("files", {{"run", run_}});
    if (!answer && follow())
      answer = node_.ask("files", {{"run", run_}});
    if (!answer)
      return fail(answer.error());
    for (const auto& each : answer->value("files", ordered_json::array()))
      TROUPE_TRY(copy(each.value("path", std::string{}),
                      {each.value("id", std::uint64_t{0}), each.value("size", std::uint64_t{0})}));
    return {};
  }

  [[nodiscard]] std::variant<control_client, absent_driver> find_driver() override {
    auto opened = node_.ask("open", {{"run", run_}});
    if (!opened && follow())
      opened = node_.ask("open", {{"run", run_}});
    if (!opened)
      return can_move() ? absent_driver{absence::not_begun,
                                        opened.error().message + "; another node takes the job over if that goes on"}
                        : absent_driver{absence::deaf, opened.error().message};
    if (!opened->contains("session")) {
      status_ = opened->value("status", ordered_json::object());
      return absent_driver{static_cast<absence>(opened->value("absence", 0U)),
                           opened->value("absence_text", std::string{})};
    }
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
      return absent_driver{absence::deaf, system_error("cannot make a socket").message};
    relays_.emplace_back(node_.again(), opened->value("session", std::uint64_t{0}), collectives::unique_fd{ends[0]});
    return control_client{collectives::unique_fd{ends[1]}};
  }

  [[nodiscard]] ordered_json stored_status(absence /*why*/) override { return status_; }

  [[nodiscard]] bool has_driver() override {
    const auto status = node_.ask("status", {{"run", run_}});
    return status && status->value("driver", std::string{"none"}) != "none";
  }

  [[nodiscard]] bool is_of_job() const noexcept override { return true; }

  [[nodiscard]] expected<void> end_job(bool at_once) override {
    auto told = node_.ask("end", {{"at_once", at_once}});
    if (!told && follow())
      told = node_.ask("end", {{"at_once", at_once}});
    if (!told)
      return fail(std::move(told.error()));
    return {};
  }

 private:
  /// Finds the node that the job is on now. False if none of those that keep it tells.
  bool follow() {
    auto found = job_client::find(node_.job().what.keepers, node_.job().what.name, how_);
    if (!found)
      return false;
    node_ = std::move(*found);
    return true;
  }

  expected<void> copy(const std::string& path, const copied_file& there) {
    // The node does not choose where this writes.
    if (fs::path{path}.is_absolute() || path.find("..") != std::string::npos)
      return fail(errc::invalid_argument, fmt::format("the job's node names a file '{}'", path));
    auto& here = files_[path];
    const auto is_same = here.id == there.id && here.size <= there.size;
    if (is_same && here.size == there.size)
      return {};
    const auto file = copy_.path() / path;
    auto code = std::error_code{};
    fs::create_directories(file.parent_path(), code);
    if (!is_same)
      here = {there.id, 0};
    const collectives::unique_fd to{
        ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (here.size == 0 ? O_TRUNC : 0), 0600)};
    if (!to)
      return fail(system_error(file.string()));
    auto from = here.size - std::min(here.size, compared_bytes);
    for (auto overlap = here.size - from; from < there.size;) {
      TROUPE_TRY(const auto answer,
                 node_.ask("read", {{"run", run_}, {"path", path}, {"offset", from}, {"limit", piece_bytes}}));
      const auto bytes = data_of(answer);
      auto before = std::string(overlap, '\0');
      if (::pread(to.get(), before.data(), before.size(), static_cast<off_t>(from)) !=
              static_cast<ssize_t>(before.size()) ||
          bytes.substr(0, overlap) != before) {
        // It was written anew.
        from = 0;
        overlap = 0;
        continue;
      }
      if (bytes.empty())
        break;
      if (::pwrite(to.get(), bytes.data(), bytes.size(), static_cast<off_t>(from)) !=
          static_cast<ssize_t>(bytes.size()))
        return fail(system_error(file.string()));
      from += bytes.size();
      overlap = 0;
    }
    here.size = from;
    std::ignore = ::ftruncate(to.get(), static_cast<off_t>(from));
    return {};
  }

  job_client node_;
  member_access how_;
  std::string run_;
  temporary_directory copy_;
  std::map<std::string, copied_file> files_;
  ordered_json status_ = ordered_json::object();
  std::deque<relay> relays_;
};

} // namespace

std::unique_ptr<run_access> access_run(fs::path directory) {
  return std::make_unique<local_run>(std::move(directory));
}

expected<std::unique_ptr<run_access>> access_job(const std::vector<std::string>& entries, const std::string& name,
                                                 const member_access& how) {
  const auto mark = name.find('/');
  TROUPE_TRY(auto node, job_client::find(entries, name.substr(0, mark), how));
  TROUPE_TRY(auto copy, temporary_directory::make("troupe-run"));
  auto result = std::make_unique<remote_run>(std::move(node), how,
                                             mark == std::string::npos ? "" : name.substr(mark + 1), std::move(copy));
  // One that moves may be between two nodes.
  if (auto refreshed = result->refresh(); !refreshed && !result->can_move())
    return fail(std::move(refreshed.error()));
  return std::unique_ptr<run_access>{std::move(result)};
}

} // namespace troupe::runtime
