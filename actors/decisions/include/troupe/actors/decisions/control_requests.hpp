#pragma once

#include <troupe/actors/decisions/run_condition.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/trainer.hpp>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

/// What other processes ask of a run, as lines of JSON: {"request":"pause"}. One line is a request, one its answer:
/// {"answer":"pause","status":{...}} or {"error":{"code":"...","message":"..."}}. Whoever sent "watch" also gets lines
/// with "event". Pure.
namespace troupe::actors {

/// {"request":"status"}
struct status_question {
  bool operator==(const status_question&) const = default;
};

/// {"request":"watch"}: status, and events from now on.
struct watch_request {
  bool operator==(const watch_request&) const = default;
};

/// Besides the two above: {"request":"stop","immediately":true}, "pause", "resume", {"request":"resize","workers":4}
/// and "checkpoint".
using control_request = std::variant<status_question, watch_request, stop_request, pause_request, resume_request,
                                     resize_request, checkpoint_request>;

/// "status", "stop", ...
[[nodiscard]] std::string_view name_of(const control_request& request) noexcept;

/// Fails with `errc::invalid_argument`, saying what is wrong with the line.
[[nodiscard]] expected<control_request> parse_control_request(std::string_view line);

/// The request as a line, without its end.
[[nodiscard]] std::string to_line(const control_request& request);

/// Why a run in this condition cannot do what is asked for; nothing if the trainer may decide.
[[nodiscard]] std::optional<error> refusal_of(const control_request& request, const run_condition& now);

/// The answers' lines, without their ends.
[[nodiscard]] std::string answer_line(const control_request& request, const nlohmann::ordered_json& status);
[[nodiscard]] std::string error_line(const error& reason);

} // namespace troupe::actors
