#include "run/status_text.hpp"

#include "checkpoint/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

namespace troupe::tool {

namespace {

using ordered = nlohmann::ordered_json;

template <class T>
T value_of(const ordered& from, const char* key, T otherwise) {
  try {
    return from.value(key, otherwise);
  } catch (const ordered::exception&) {
    return otherwise;
  }
}

ordered object_of(const ordered& from, const char* key) {
  const auto found = from.find(key);
  return found != from.end() && found->is_object() ? *found : ordered::object();
}

/// Of what a driver says, in one line.
std::string shown(const std::string& text) {
  return printable(text.substr(0, text.find('\n')));
}

std::string number_or_nothing(const ordered& value) {
  return value.is_number() ? short_number_text(value.get<double>()) : "not finite";
}

std::string first_metric(const ordered& metrics) {
  return metrics.contains("loss") ? "loss" : metrics.empty() ? std::string{} : metrics.begin().key();
}

std::string step_text(const ordered& status) {
  const auto step = value_of(status, "step", std::uint64_t{0});
  const auto steps = value_of(status, "steps", std::uint64_t{0});
  if (steps == 0)
    return fmt::format("step {}", step);
  return fmt::format("step {} of {} ({:.0f} %)", step, steps,
                     std::floor(100 * static_cast<double>(step) / static_cast<double>(steps)));
}

bool is_training(const ordered& status) {
  return value_of(status, "state", std::string{}) == "running";
}

std::string left_text(const ordered& status) {
  const auto left = value_of(status, "seconds_left", 0.0);
  return is_training(status) && left > 0 ? duration_text(left) + " left" : std::string{};
}

std::string speed_text(const ordered& status) {
  const auto speed = value_of(status, "samples_per_second", 0.0);
  const auto batch = value_of(status, "batch_samples", 0.0);
  if (!is_training(status) || speed <= 0)
    return {};
  return batch > 0 ? fmt::format("{} samples/s ({} steps/s)", short_number_text(std::round(speed)),
                                 short_number_text(std::round(10 * speed / batch) / 10))
                   : fmt::format("{} samples/s", short_number_text(std::round(speed)));
}

/// "4: host-a 2, host-b 2", with what is wanted if that is another number.
std::string workers_text(const ordered& status) {
  const auto workers = status.find("workers");
  if (workers == status.end() || !workers->is_array())
    return {};
  std::map<std::string, std::size_t> hosts;
  for (const auto& each : *workers)
    ++hosts[value_of(each, "host", std::string{"?"})];
  auto result = std::to_string(workers->size());
  const auto wanted = object_of(status, "workers_wanted");
  const auto most = value_of(wanted, "max", std::uint64_t{0});
  if (most > workers->size())
    result += fmt::format(" of {}", most);
  auto separator = ": ";
  auto listed = std::size_t{0};
  for (const auto& [host, count] : hosts) {
    if (listed++ == 6)
      return result + fmt::format(" and {} hosts more", hosts.size() - 6);
    result += fmt::format("{}{} {}", std::exchange(separator, ", "), shown(host), count);
  }
  return result;
}

std::size_t characters_in(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string cut(std::string text, std::size_t width) {
  if (characters_in(text) <= width)
    return text;
  auto bytes = std::size_t{0};
  for (std::size_t count = 0; bytes < text.size(); ++bytes)
    if ((text[bytes] & 0xc0) != 0x80 && ++count > width)
      break;
  return text.substr(0, bytes);
}

std::string joined(const std::vector<std::string>& parts) {
  auto result = std::string{};
  for (const auto& each : parts)
    if (!each.empty())
      result += (result.empty() ? "" : ", ") + each;
  return result;
}

} // namespace

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds))
    return "?";
  const auto whole = static_cast<std::uint64_t>(std::max(0.0, std::round(seconds)));
  if (seconds < 9.95)
    return fmt::format("{:.1f} s", std::max(0.0, seconds));
  if (whole < 60)
    return fmt::format("{} s", whole);
  if (whole < 3600)
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  if (whole < 86400)
    return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  return fmt::format("{} d {:02} h", whole / 86400, whole / 3600 % 24);
}

std::string progress_bar(double part, std::size_t width) {
  const auto full = static_cast<std::size_t>(std::clamp(part, 0.0, 1.0) * static_cast<double>(width));
  return fmt::format("[{}{}]", std::string(full, '#'), std::string(width - full, '-'));
}

std::string main_metric(const ordered& status) {
  return first_metric(object_of(status, "metrics"));
}

std::vector<std::string> describe_status(const ordered& status, const status_extras& extras, std::size_t width) {
  std::vector<std::string> result;
  const auto add = [&](std::string_view what, const std::string& text) {
    if (!text.empty())
      result.push_back(cut(fmt::format("  {:<11}{}", what, text), width));
  };
  auto lasts = std::string{};
  if (status.contains("seconds_in_state")) {
    const auto time = duration_text(value_of(status, "seconds_in_state", 0.0));
    lasts = status.contains("exit_code") ? fmt::format(", {} ago", time) : fmt::format(" for {}", time);
  }
  result.push_back(cut(fmt::format("{}: {}{}", shown(value_of(status, "name", std::string{"?"})),
                                   shown(value_of(status, "state", std::string{"?"})), lasts),
                       width));
  add("cause", shown(value_of(status, "cause", std::string{})));
  const auto step = value_of(status, "step", std::uint64_t{0});
  const auto steps = value_of(status, "steps", std::uint64_t{0});
  constexpr std::size_t bar_width = 20;
  const auto bar =
      steps > 0 ? progress_bar(static_cast<double>(step) / static_cast<double>(steps), bar_width) + " " : "";
  add("progress", joined({bar + step_text(status), left_text(status), speed_text(status)}));
  const auto metrics = object_of(status, "metrics");
  const auto drawn = first_metric(metrics);
  if (!drawn.empty())
    add("metrics", fmt::format("{} {}{}", shown(drawn), number_or_nothing(metrics[drawn]),
                               extras.curve.size() > 1 ? "  " + sparkline(extras.curve, 40) : std::string{}));
  auto others = std::size_t{0};
  for (const auto& [name, value] : metrics.items())
    if (name != drawn && ++others <= 8)
      add("", fmt::format("{} {}", shown(name), number_or_nothing(value)));
  add("workers", workers_text(status));
  add("late", shown(extras.late));
  if (const auto count = value_of(status, "failures", std::uint64_t{0}); count > 0)
    add("failures", joined({std::to_string(count), shown(value_of(status, "last_failure", std::string{}))}));
  const auto checkpoint = object_of(status, "checkpoint");
  if (!checkpoint.empty())
    add("checkpoint", fmt::format("step {}, {}", value_of(checkpoint, "step", std::uint64_t{0}),
                                  shown(value_of(checkpoint, "path", std::string{}))));
  if (status.contains("seconds_to_time_limit"))
    add("time limit", duration_text(value_of(status, "seconds_to_time_limit", 0.0)) + " left");
  const auto driver = object_of(status, "driver");
  if (!driver.empty())
    add("driver", fmt::format("process {} on {}", value_of(driver, "pid", std::uint64_t{0}),
                              shown(value_of(driver, "host", std::string{"?"}))));
  add("directory", shown(value_of(status, "path", std::string{})));
  return result;
}

std::string status_line(const ordered& status) {
  const auto metrics = object_of(status, "metrics");
  const auto drawn = first_metric(metrics);
  const auto workers = status.find("workers");
  return joined({shown(value_of(status, "state", std::string{"?"})), step_text(status),
                 drawn.empty() ? std::string{} : fmt::format("{} {}", shown(drawn), number_or_nothing(metrics[drawn])),
                 speed_text(status), left_text(status),
                 workers != status.end() && workers->is_array()
                     ? fmt::format("{} worker{}", workers->size(), workers->size() == 1 ? "" : "s")
                     : std::string{}});
}

std::string event_line(const ordered& event) {
  const auto kind = value_of(event, "event", std::string{});
  const auto step = value_of(event, "step", std::uint64_t{0});
  auto text = std::string{};
  if (kind == "notice")
    text = value_of(event, "text", std::string{});
  else if (kind == "warning")
    text = "warning: " + value_of(event, "text", std::string{});
  else if (kind == "failure" && !value_of(event, "consequence", false))
    text = fmt::format("failure of rank {} in step {}: {}", value_of(event, "rank", std::uint64_t{0}), step,
                       value_of(event, "cause", std::string{}));
  else if (kind == "checkpoint")
    text = fmt::format("checkpoint of step {}: {}", step, value_of(event, "path", std::string{}));
  else if (kind == "request")
    text = "asked to " + value_of(event, "what", std::string{});
  else if (kind == "started")
    text = fmt::format("started with {} workers", event.contains("workers") ? event["workers"].size() : 0);
  if (text.empty())
    return {};
  // "2026-11-24T10:37:12.250Z"
  const auto time = value_of(event, "time", std::string{});
  return fmt::format("{}  {}", shown(time.size() > 19 ? time.substr(11, 8) : time), shown(text));
}

std::string end_text(const ordered& status) {
  const auto state = value_of(status, "state", std::string{"ended"});
  const auto checkpoint = value_of(status, "latest_checkpoint", std::string{});
  const auto cause = value_of(status, "cause", std::string{});
  return fmt::format("{} after step {}{}{}", shown(state), value_of(status, "step", std::uint64_t{0}),
                     cause.empty() ? "" : ": " + shown(cause),
                     checkpoint.empty() ? "; without a checkpoint" : "; its latest checkpoint is " + shown(checkpoint));
}

} // namespace troupe::tool
