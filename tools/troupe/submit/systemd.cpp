#include "submit/systemd.hpp"
#include "command.hpp"

#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <pwd.h>
#include <sstream>
#include <sys/socket.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::tool {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr std::string_view user_engine = "systemd-user";
constexpr std::string_view system_engine = "systemd";

std::string_view engine_of(const systemd_manager& manager) {
  return manager.is_user ? user_engine : system_engine;
}

std::string user_name() {
  const auto* entry = ::getpwuid(::getuid());
  return entry == nullptr ? std::to_string(::getuid()) : entry->pw_name;
}

std::vector<std::string> words_for(const systemd_manager& manager, std::vector<std::string> more) {
  std::vector<std::string> result{"systemctl"};
  if (manager.is_user)
    result.emplace_back("--user");
  result.insert(result.end(), more.begin(), more.end());
  return result;
}

expected<finished_command> ask_systemd(const systemd_manager& manager, std::vector<std::string> words) {
  return run_command(words_for(manager, std::move(words)), {.captures = true});
}

/// A command that has to succeed; what it says of a failure is on standard error.
expected<void> tell_systemd(const systemd_manager& manager, std::vector<std::string> words) {
  const auto what = words.front();
  TROUPE_TRY(const auto done, ask_systemd(manager, std::move(words)));
  if (done.code == 0)
    return {};
  return fail(errc::io_error, fmt::format("systemctl {} failed, as above", what));
}

/// Sessions over ssh without pam_systemd lack the variable by which systemctl finds the user's manager.
void find_user_manager() {
  const auto directory = fmt::format("/run/user/{}", ::getuid());
  auto ignored = std::error_code{};
  if (std::getenv("XDG_RUNTIME_DIR") == nullptr && fs::is_directory(directory, ignored))
    ::setenv("XDG_RUNTIME_DIR", directory.c_str(), 1);
}

std::string state_of(const std::string& unit, const systemd_manager& manager) {
  const auto answer = ask_systemd(manager, {"is-active", unit});
  return answer ? answer->out : std::string{};
}

std::string text_of(const std::string& unit, const systemd_manager& manager) {
  auto in = std::ifstream{fs::path{manager.directory} / unit};
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// Where the user's manager reads units: its environment may be another than that of a shell.
std::string units_of_user() {
  const auto asked = run_command({"/bin/sh", "-c", "systemctl --user show --property=UnitPath --value 2>/dev/null"},
                                 {.captures = true});
  auto paths = std::istringstream{asked ? asked->out : std::string{}};
  for (std::string each; paths >> each;)
    if (each.ends_with("/systemd/user") && !each.starts_with("/run/"))
      return each;
  const auto* base = std::getenv("XDG_CONFIG_HOME");
  const auto* home = std::getenv("HOME");
  const auto directory =
      base != nullptr && *base != '\0' ? fs::path{base} : fs::path{home == nullptr ? "." : home} / ".config";
  return (directory / "systemd" / "user").string();
}

bool is_live(const std::string& state) {
  return state == "active" || state == "activating" || state == "reloading" || state == "deactivating";
}

void forget_failure(const std::string& unit, const systemd_manager& manager) {
  if (state_of(unit, manager) == "failed")
    std::ignore = ask_systemd(manager, {"reset-failed", unit});
}

/// A user's jobs begin at boot and outlive its sessions if it lingers.
std::optional<std::string> let_linger() {
  const auto user = user_name();
  const auto lingers = run_command({"loginctl", "show-user", user, "--property=Linger", "--value"}, {.captures = true});
  if (lingers && lingers->out == "yes")
    return std::nullopt;
  // Without a password, or not at all.
  const auto enabled = run_command({"loginctl", "--no-ask-password", "enable-linger", user}, {.captures = true});
  if (enabled && enabled->code == 0)
    return std::nullopt;
  return fmt::format("the job ends when {0} logs out, and does not begin again at boot, until an administrator allows "
                     "that: sudo loginctl enable-linger {0}",
                     user);
}

bool is_free(std::uint16_t port) {
  const auto socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0)
    return false;
  auto address = sockaddr_in{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto done = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  ::close(socket);
  return done;
}

expected<void> remove_units(const std::string& name, const systemd_manager& manager) {
  for (const auto& unit : {unit_of(name), node_unit_of(name)}) {
    auto code = std::error_code{};
    fs::remove(fs::path{manager.directory} / unit, code);
    if (code)
      return fail(errc::io_error, fmt::format("cannot remove {}/{}: {}", manager.directory, unit, code.message()));
  }
  return tell_systemd(manager, {"daemon-reload"});
}

} // namespace

systemd_manager own_systemd_manager() {
  if (::geteuid() == 0)
    return {false, "/etc/systemd/system", user_name()};
  find_user_manager();
  return {true, units_of_user(), user_name()};
}

expected<void> refuse_running_unit(const std::string& name, const systemd_manager& manager) {
  const auto answer = ask_systemd(manager, {"show", "--property=Version", "--value"});
  if (!answer || answer->code != 0)
    return fail(errc::unreachable, manager.is_user ? "there is no systemd that manages this user's services here"
                                                   : "this system was not booted with systemd");
  const auto unit = unit_of(name);
  if (const auto text = text_of(unit, manager); !text.empty() && text.find(runtime::job_variable) == std::string::npos)
    return fail(errc::already_exists, fmt::format("{}/{} is no unit of troupe submit: choose another name (--name)",
                                                  manager.directory, unit));
  // One that ends is removed in a moment.
  for (const auto end = std::chrono::steady_clock::now() + 5s;
       state_of(unit, manager) == "deactivating" && std::chrono::steady_clock::now() < end;)
    std::this_thread::sleep_for(100ms);
  if (!is_live(state_of(unit, manager)))
    return {};
  return fail(errc::already_exists,
              fmt::format("the job {} runs already, as {}: a name belongs to one job. End it (troupe stop), or choose "
                          "another name (--name)",
                          name, unit_of(name)));
}

expected<companion_node> make_companion(const std::string& name) {
  auto code = std::error_code{};
  const auto own = fs::read_symlink("/proc/self/exe", code);
  const auto program = own.parent_path() / "caf-node";
  if (code || !fs::exists(program, code))
    return fail(errc::not_found, fmt::format("there is no {}: install caf-node beside troupe", program.string()));
  // Below the ports that the system gives to connections, so that it is free after a reboot as well.
  constexpr std::uint16_t first = 20'000;
  constexpr std::uint16_t number = 10'000;
  const auto begin = std::hash<std::string>{}(user_name() + "/" + name);
  for (std::size_t i = 0; i < number; ++i)
    if (const auto port = static_cast<std::uint16_t>(first + (begin + i) % number); is_free(port))
      return companion_node{program.string(), port};
  return fail(errc::unsatisfiable, "no port from 20000 to 29999 is free on 127.0.0.1");
}

namespace {

/// Until the driver has lived for a moment: who mistypes an option hears of it at once.
expected<void> begin(const std::string& unit, const systemd_manager& manager, const std::string& log) {
  TROUPE_TRY(tell_systemd(manager, {"daemon-reload"}));
  // Of an earlier job of this name that was given up.
  forget_failure(unit, manager);
  TROUPE_TRY(tell_systemd(manager, {"enable", "--quiet", unit}));
  const auto started = tell_systemd(manager, {"start", unit});
  for (const auto end = std::chrono::steady_clock::now() + 2s; started && std::chrono::steady_clock::now() < end;) {
    // It is being started again, or not any more.
    if (const auto state = state_of(unit, manager); state == "failed" || state == "activating")
      break;
    std::this_thread::sleep_for(100ms);
  }
  const auto state = state_of(unit, manager);
  if (started && state != "failed" && state != "activating")
    return {};
  std::ignore = run_command({"/bin/sh", "-c", log + " --no-pager -o cat -n 20 >&2"});
  return fail(errc::invalid_argument,
              fmt::format("the program has failed at once, as above; nothing of {} is left", unit));
}

} // namespace

expected<submitted> start_units(const std::string& name, const std::vector<unit_file>& units,
                                const systemd_manager& manager) {
  const auto unit = unit_of(name);
  const auto log = std::string{manager.is_user ? "journalctl --user -u " : "journalctl -u "} + unit;
  TROUPE_TRY(serialization::create_directories_durably(manager.directory));
  for (const auto& each : units)
    TROUPE_TRY(serialization::write_file_durably(fs::path{manager.directory} / each.name, each.text));
  if (auto begun = begin(unit, manager, log); !begun) {
    std::ignore = ask_systemd(manager, {"disable", "--quiet", "--now", unit});
    std::ignore = ask_systemd(manager, {"--quiet", "stop", node_unit_of(name)});
    std::ignore = remove_units(name, manager);
    forget_failure(unit, manager);
    return fail(std::move(begun.error()));
  }
  submitted result;
  result.where = fmt::format("systemd as {}", unit);
  if (units.size() > 1)
    result.where += fmt::format(", with its workers in {}", units.back().name);
  const auto systemctl = std::string{manager.is_user ? "systemctl --user" : "systemctl"};
  result.commands = {{systemctl + " status " + unit, "what systemd says of it"},
                     {log + " -f", "what the driver writes"}};
  if (manager.is_user)
    if (auto warning = let_linger())
      result.warnings.push_back(std::move(*warning));
  return result;
}

bool is_above(const fs::path& directory, const fs::path& other) {
  auto ignored = std::error_code{};
  const auto low = fs::weakly_canonical(other, ignored);
  const auto high = fs::weakly_canonical(directory, ignored);
  return std::mismatch(high.begin(), high.end(), low.begin(), low.end()).first == high.end();
}

std::optional<submitted_job> find_systemd_job(const std::string& name, const fs::path& above) {
  const auto manager = own_systemd_manager();
  const auto text = text_of(unit_of(name), manager);
  constexpr std::string_view key = "\nWorkingDirectory=";
  const auto at = text.find(key);
  if (text.find(runtime::job_variable) == std::string::npos || at == std::string::npos)
    return std::nullopt;
  const auto begin = at + key.size();
  auto directory = text.substr(begin, text.find('\n', begin) - begin);
  // As the unit's writer has doubled them.
  for (auto sign = directory.find("%%"); sign != std::string::npos; sign = directory.find("%%", sign + 1))
    directory.erase(sign, 1);
  if (!above.empty() && !is_above(directory, above))
    return std::nullopt;
  return submitted_job{std::string{engine_of(manager)}, unit_of(name), {}, {}};
}

job_state state_of_unit(const std::string& unit) {
  const auto state = state_of(unit, own_systemd_manager());
  return state == "activating" ? job_state::waits : is_live(state) ? job_state::runs : job_state::gone;
}

expected<std::optional<std::string>> end_systemd_job(const submitted_job& job) {
  auto manager = own_systemd_manager();
  if (engine_of(manager) != job.engine)
    return fail(errc::invalid_argument,
                fmt::format("the job is {} of another user's systemd: stop it as that user", job.id));
  constexpr std::string_view prefix = "troupe-";
  constexpr std::string_view suffix = ".service";
  const auto is_unit = job.id.starts_with(prefix) && job.id.ends_with(suffix) && job.id.find('/') == std::string::npos;
  // A later job may have the name.
  const auto text = is_unit ? text_of(job.id, manager) : std::string{};
  if (text.empty() || text.find(job.submission) == std::string::npos)
    return std::nullopt;
  const auto name = job.id.substr(prefix.size(), job.id.size() - prefix.size() - suffix.size());
  // It waits until the driver has ended, which takes a checkpoint.
  TROUPE_TRY(tell_systemd(manager, {"disable", "--quiet", "--now", job.id}));
  std::ignore = ask_systemd(manager, {"--quiet", "stop", node_unit_of(name)});
  TROUPE_TRY(remove_units(name, manager));
  forget_failure(job.id, manager);
  return fmt::format("systemd has it no more: {} was stopped and removed", job.id);
}

} // namespace troupe::tool
