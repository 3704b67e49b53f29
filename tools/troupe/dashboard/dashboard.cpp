#include "dashboard/commands.hpp"
#include "dashboard/pictures.hpp"
#include "dashboard/png.hpp"

#include "checkpoint/text.hpp"

#include <troupe/runtime/dashboard.hpp>
#include <troupe/runtime/run_story.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <pthread.h>
#include <sys/ioctl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace troupe::tool {

namespace fs = std::filesystem;

namespace {

int trouble(const char* command, const std::string& text) {
  fmt::print(stderr, "troupe {}: {}\n", command, printable(text));
  return exit_trouble;
}

bool write_whole(const fs::path& path, const std::string& content) {
  auto out = std::ofstream{path, std::ios::binary};
  out << content;
  out.close();
  return out.good();
}

std::size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 40 ? size.ws_col : 100U;
}

expected<runtime::dashboard_options> options_of(const dashboard_arguments& given) {
  runtime::dashboard_options result;
  TROUPE_TRY(result.listen, parse_endpoint(given.listen));
  result.storage = given.storage;
  result.certificate = given.certificate;
  result.key = given.key;
  if (given.token_file.empty())
    return result;
  TROUPE_TRY(result.token, runtime::read_token_file(given.token_file));
  return result;
}

} // namespace

int serve_dashboard(const dashboard_arguments& given) {
  const auto options = options_of(given);
  if (!options)
    return trouble("dashboard", options.error().message);
  // Before there are threads, which inherit it.
  auto signals = sigset_t{};
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGINT);
  ::sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const auto page = runtime::dashboard::open(*options);
  if (!page)
    return trouble("dashboard", page.error().message);
  fmt::print("the dashboard of {} is at {} (Ctrl-C ends it, and no run)\n", given.storage.string(), (*page)->url());
  std::fflush(stdout);
  auto which = 0;
  ::sigwait(&signals, &which);
  return exit_good;
}

int report(const report_arguments& given) {
  const auto run = open_run(given.which);
  if (!run)
    return trouble("report", run.error().message);
  const auto page = runtime::render_report(run->directory(), ask_or_read(*run).status);
  if (given.output == "-") {
    std::fwrite(page.data(), 1, page.size(), stdout);
    return exit_good;
  }
  const auto path = given.output.empty() ? fs::path{run->name() + "-report.html"} : given.output;
  if (!write_whole(path, page))
    return trouble("report", fmt::format("{} cannot be written", path.string()));
  fmt::print("{}\n", path.string());
  return exit_good;
}

int plot(const plot_arguments& given) {
  const auto run = open_run(given.which);
  if (!run)
    return trouble("plot", run.error().message);
  runtime::story_reader reader{run->directory()};
  reader.read();
  auto curves = reader.curves();
  std::erase_if(curves, [](const auto& each) { return each.points.empty(); });
  // The speed is the least of what is asked for.
  std::ranges::rotate(curves, curves.empty() ? curves.begin() : curves.begin() + 1);
  if (!given.metrics.empty()) {
    std::vector<runtime::named_curve> chosen;
    auto known = std::string{};
    for (const auto& each : curves)
      known += (known.empty() ? "" : ", ") + each.name;
    for (const auto& name : given.metrics) {
      const auto found = std::ranges::find(curves, name, &runtime::named_curve::name);
      if (found == curves.end())
        return trouble("plot", fmt::format("the run has no metric '{}', but {}", name, known.empty() ? "none" : known));
      chosen.push_back(*found);
    }
    curves = std::move(chosen);
  }
  const auto events = reader.to_json()["events"];
  if (!given.svg.empty() || !given.png.empty()) {
    const auto picture = to_svg(run->name(), curves, events);
    if (!given.svg.empty() && !write_whole(given.svg, picture))
      return trouble("plot", fmt::format("{} cannot be written", given.svg.string()));
    if (!given.png.empty())
      if (const auto written = write_png(picture, given.png); !written)
        return trouble("plot", written.error().message);
    for (const auto* file : {&given.svg, &given.png})
      if (!file->empty())
        fmt::print("{}\n", file->string());
    return exit_good;
  }
  constexpr std::size_t margin = 14;
  constexpr std::size_t height = 10;
  const auto width = terminal_width() - margin;
  if (curves.empty())
    fmt::print("the run has not reported a metric yet\n");
  for (const auto& each : curves)
    for (const auto& line : draw_curve(each, width, height))
      fmt::print("{}\n", line);
  for (const auto& line : draw_timeline(events, width))
    fmt::print("{}\n", line);
  return exit_good;
}

} // namespace troupe::tool
