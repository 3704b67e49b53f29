#include "submit/submission.hpp"

#include <troupe/result.hpp>
#include <troupe/shell_words.hpp>

#include <fmt/format.h>

namespace troupe::tool {

namespace {

/// In double quotes, with the escapes of C and without specifiers.
std::string in_quotes(const std::string& text, bool has_variables) {
  std::string result = "\"";
  for (const auto each : text) {
    const auto byte = static_cast<unsigned char>(each);
    if (each == '"' || each == '\\')
      result += '\\';
    if (each == '%')
      result += '%';
    if (each == '$' && has_variables)
      result += '$';
    if (each == '\n')
      result += "\\n";
    else if (byte < 0x20 || byte == 0x7f)
      result += fmt::format("\\x{:02x}", byte);
    else
      result += each;
  }
  return result + "\"";
}

std::string without_specifiers(std::string path) {
  for (auto at = path.find('%'); at != std::string::npos; at = path.find('%', at + 2))
    path.insert(at, "%");
  return path;
}

/// For a shell, after the driver's end: removes the units of a job that has ended by itself. Whoever stops a unit, or
/// shuts the system down, has a job of systemd's on it, and the run goes on when it is started again.
std::string removal_of(const std::string& job, const systemd_manager& manager, bool has_node) {
  const auto systemctl = std::string{"systemctl "} + (manager.is_user ? "--user " : "");
  const auto path = [&](const std::string& unit) { return shell_quoted(manager.directory + "/" + unit); };
  auto files = path(unit_of(job));
  auto result =
      fmt::format("case $EXIT_STATUS in 0|{}) ;; *) exit 0;; esac; "
                  "case \"$({}show --property=Job --value {})\" in ''|0) ;; *) exit 0;; esac; {}disable --quiet {}",
                  exit_out_of_time, systemctl, unit_of(job), systemctl, unit_of(job));
  if (has_node) {
    files += " " + path(node_unit_of(job));
    result += "; " + systemctl + "stop --no-block " + node_unit_of(job);
  }
  return fmt::format("{}; rm -f {}; {}daemon-reload", result, files, systemctl);
}

std::string driver_unit(const submission& job, const systemd_manager& manager, bool has_node) {
  std::string result = fmt::format("[Unit]\nDescription=Troupe job {0}\n", job.name);
  if (!manager.is_user)
    result += "Wants=network-online.target\nAfter=network-online.target\n";
  if (has_node)
    result += fmt::format("Wants={0}\nAfter={0}\n", node_unit_of(job.name));
  result += "# A program that fails again and again is given up; systemctl start tries it once more.\n"
            "StartLimitIntervalSec=600\nStartLimitBurst=10\n\n[Service]\nType=exec\n";
  if (!manager.is_user)
    result += fmt::format("User={}\n", manager.user);
  result += fmt::format("WorkingDirectory={}\n", without_specifiers(job.directory));
  for (const auto& [name, value] : job.environment)
    result += fmt::format("Environment={}\n", systemd_variable(name, value));
  result += fmt::format("Environment={}\n", systemd_variable(runtime::job_variable, to_text(job.job)));
  // No variables are replaced in the path.
  result += "ExecStart=" + in_quotes(job.program, false);
  for (const auto& each : job.arguments)
    result += " " + systemd_word(each);
  result += fmt::format(
      "\n# The job has ended, or its time is over: it is not for the next boot.\nExecStopPost=-/bin/sh -c {}\n",
      systemd_word(removal_of(job.name, manager, has_node)));
  return result + fmt::format("Restart=on-failure\nRestartSec=2\n"
                              "# Wrong usage does not mend itself; the others have been stopped by somebody.\n"
                              "RestartPreventExitStatus=2 {} 130 143\nSuccessExitStatus={} 130 143\n"
                              "# SIGTERM has the run take a checkpoint.\nKillMode=mixed\nTimeoutStopSec=120\n"
                              "OOMPolicy=continue\nTasksMax=infinity\nLimitMEMLOCK=infinity\n\n"
                              "[Install]\nWantedBy={}\n",
                              exit_out_of_time, exit_out_of_time,
                              manager.is_user ? "default.target" : "multi-user.target");
}

std::string node_unit(const submission& job, const systemd_manager& manager, const companion_node& node) {
  std::string result = fmt::format("[Unit]\nDescription=Troupe node of job {}\n"
                                   "# Its workers wait here for a driver that is started again.\n"
                                   "StopWhenUnneeded=yes\n\n[Service]\nType=notify\n",
                                   job.name);
  if (!manager.is_user)
    result += fmt::format("User={}\n", manager.user);
  result += fmt::format("WorkingDirectory={}\n", without_specifiers(job.directory));
  for (const auto& [name, value] : job.environment)
    result += fmt::format("Environment={}\n", systemd_variable(name, value));
  const auto keys = job.job.keys.empty() ? std::string{} : " --keys " + systemd_word(job.job.keys.string());
  return result + fmt::format("ExecStart={} --listen 127.0.0.1:{} --config /dev/null{}\n"
                              "Restart=on-failure\nRestartSec=2\nRestartPreventExitStatus=2\n"
                              "KillMode=mixed\nTimeoutStopSec=40\n"
                              "OOMPolicy=continue\nTasksMax=infinity\nLimitMEMLOCK=infinity\n",
                              in_quotes(node.program, false), node.port, keys);
}

} // namespace

std::string systemd_word(const std::string& text) {
  return in_quotes(text, true);
}

std::string systemd_variable(const std::string& name, const std::string& value) {
  return in_quotes(name + "=" + value, false);
}

std::string unit_of(const std::string& job) {
  return fmt::format("troupe-{}.service", job);
}

std::string node_unit_of(const std::string& job) {
  return fmt::format("caf-node-{}.service", job);
}

std::vector<unit_file> systemd_units(const submission& job, const systemd_manager& manager,
                                     const std::optional<companion_node>& node) {
  auto result = std::vector<unit_file>{{unit_of(job.name), driver_unit(job, manager, node.has_value())}};
  if (node)
    result.push_back({node_unit_of(job.name), node_unit(job, manager, *node)});
  return result;
}

} // namespace troupe::tool
