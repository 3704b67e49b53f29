#include <troupe/actors/decisions/control_requests.hpp>

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::actors {

namespace {

using json = nlohmann::json;

/// In the order of `control_request`.
constexpr std::array<std::string_view, 7> names{"status", "watch", "stop", "pause", "resume", "resize", "checkpoint"};
static_assert(names.size() == std::variant_size_v<control_request>);

tl::unexpected<error> wrong(std::string text) {
  return fail(errc::invalid_argument, std::move(text));
}

expected<stop_request> parse_stop(const json& line) {
  const auto immediately = line.find("immediately");
  if (immediately != line.end() && !immediately->is_boolean())
    return wrong("\"immediately\" of a stop is true or false");
  return stop_request{immediately != line.end() && immediately->get<bool>()};
}

expected<resize_request> parse_resize(const json& line) {
  const auto workers = line.find("workers");
  if (workers == line.end() || !workers->is_number_unsigned() ||
      workers->get<std::uint64_t>() > std::numeric_limits<std::uint32_t>::max())
    return wrong("a resize needs a whole number of \"workers\"");
  return resize_request{workers->get<std::uint32_t>()};
}

std::string text_of(const nlohmann::ordered_json& line) {
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

} // namespace

std::string_view name_of(const control_request& request) noexcept {
  return names.at(request.index());
}

expected<control_request> parse_control_request(std::string_view line) {
  const auto parsed = json::parse(line, nullptr, false);
  const auto name = parsed.is_object() ? parsed.find("request") : parsed.end();
  if (name == parsed.end() || !name->is_string())
    return wrong("a request is a line such as {\"request\":\"status\"}");
  const auto word = name->get<std::string>();
  if (word == "status")
    return status_question{};
  if (word == "watch")
    return watch_request{};
  if (word == "pause")
    return pause_request{};
  if (word == "resume")
    return resume_request{};
  if (word == "checkpoint")
    return checkpoint_request{};
  if (word == "stop") {
    TROUPE_TRY(const auto stop, parse_stop(parsed));
    return stop;
  }
  if (word == "resize") {
    TROUPE_TRY(const auto resize, parse_resize(parsed));
    return resize;
  }
  return wrong(fmt::format("there is no request '{}': this driver knows {}", word, fmt::join(names, ", ")));
}

std::string to_line(const control_request& request) {
  auto line = nlohmann::ordered_json{{"request", name_of(request)}};
  if (const auto* stop = std::get_if<stop_request>(&request))
    line["immediately"] = stop->immediately;
  if (const auto* resize = std::get_if<resize_request>(&request))
    line["workers"] = resize->workers;
  return text_of(line);
}

std::optional<error> refusal_of(const control_request& request, const run_condition& now) {
  const auto is_question =
      std::holds_alternative<status_question>(request) || std::holds_alternative<watch_request>(request);
  if (is_question || std::holds_alternative<stop_request>(request))
    return std::nullopt;
  if (now.activity == run_activity::ending || now.activity == run_activity::stopping)
    return error{errc::stopped,
                 fmt::format("the run is {}: it cannot {} any more", to_string(now.activity),
                             std::holds_alternative<checkpoint_request>(request) ? "take a checkpoint but its last"
                                                                                 : name_of(request))};
  if (std::holds_alternative<checkpoint_request>(request) && now.activity == run_activity::starting)
    return error{errc::invalid_argument, "the run has not begun to train: there is nothing to save yet"};
  return std::nullopt;
}

std::string answer_line(const control_request& request, const nlohmann::ordered_json& status) {
  return text_of({{"answer", name_of(request)}, {"status", status}});
}

std::string error_line(const error& reason) {
  return text_of({{"error", {{"code", to_string(reason.code)}, {"message", reason.message}}}});
}

} // namespace troupe::actors
