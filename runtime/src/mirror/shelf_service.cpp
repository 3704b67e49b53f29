#include "mirror/shelf_service.hpp"

#include "net/members/member_messages.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace {

using json = nlohmann::json;

/// A checkpoint that is verified keeps one for long.
constexpr std::size_t threads = 4;

step_id step_in(const json& question) {
  return step_id{number_in(question, "step")};
}

expected<std::string_view> data_in(const json& question) {
  const auto bytes = data_of(question);
  if (bytes.size() > mirror_piece_bytes)
    return fail(errc::invalid_argument,
                fmt::format("a piece of {} bytes: at most {} are taken at once", bytes.size(), mirror_piece_bytes));
  return bytes;
}

json numbers(const std::vector<step_id>& steps) {
  auto result = json::array();
  for (const auto& each : steps)
    result.push_back(each.value);
  return result;
}

} // namespace

shelf_service::shelf_service(std::filesystem::path root)
    : shelf_(std::move(root)),
      desk_(
          threads, "a mirror", [this](const json& question) { return carry_out(question); },
          desk_priority::after_others) {}

expected<json> shelf_service::carry_out(const json& question) const {
  const auto what = text_in(question, "do");
  const auto place = text_in(question, "place");
  auto nothing = json::object();
  if (what == "list") {
    TROUPE_TRY(const auto content, shelf_.list(place));
    return json{{"complete", numbers(content.complete)}, {"incomplete", numbers(content.incomplete)}};
  }
  if (what == "begin") {
    TROUPE_TRY(const auto begun, shelf_.begin(place, step_in(question)));
    return json{{"has_it", begun == mirror_shelf::begun::has_it}};
  }
  if (what == "part") {
    TROUPE_TRY(const auto bytes, data_in(question));
    TROUPE_TRY(
        shelf_.write_part(place, step_in(question), text_in(question, "name"), number_in(question, "offset"), bytes));
    return nothing;
  }
  if (what == "adopt") {
    TROUPE_TRY(shelf_.adopt(place, step_in(question)));
    return nothing;
  }
  if (what == "remove") {
    TROUPE_TRY(shelf_.remove(place, step_in(question)));
    return nothing;
  }
  if (what == "write") {
    TROUPE_TRY(const auto bytes, data_in(question));
    TROUPE_TRY(shelf_.write_file(place, text_in(question, "name"), number_in(question, "offset"), bytes));
    return nothing;
  }
  if (what == "finish") {
    TROUPE_TRY(shelf_.finish_file(place, text_in(question, "name")));
    return nothing;
  }
  if (what == "files") {
    TROUPE_TRY(const auto files, shelf_.files(place, step_in(question)));
    auto result = json{{"files", json::array()}};
    for (const auto& each : files)
      result["files"].push_back({{"name", each.name}, {"size", each.size}});
    return result;
  }
  if (what == "read") {
    TROUPE_TRY(const auto bytes, shelf_.read(place, text_in(question, "name"), number_in(question, "offset"),
                                             number_in(question, "limit")));
    return json{{"data", as_data(bytes)}};
  }
  if (what == "aside") {
    TROUPE_TRY(const auto moved, shelf_.move_aside(place));
    return json{{"place", moved}};
  }
  return fail(errc::unsupported_version, fmt::format("this node cannot '{}' at a mirror", what));
}

json no_shelf::answer(const json& /*question*/) {
  return describe_error(
      {errc::invalid_argument, "this node keeps no mirrors: start it with caf-node --mirror DIRECTORY"});
}

} // namespace troupe::runtime
