#include "programs/program_service.hpp"

#include "net/members/member_messages.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace troupe::runtime {

namespace {

using json = nlohmann::json;

constexpr std::size_t threads = 2;

} // namespace

program_service::program_service(std::shared_ptr<const program_finder> programs)
    : programs_(std::move(programs)),
      desk_(threads, "a program", [this](const json& question) { return carry_out(question); }) {}

expected<json> program_service::carry_out(const json& question) const {
  const auto what = text_in(question, "do");
  const auto cache = programs_->cache();
  if (what == "has")
    return json{{"has", programs_->find(text_in(question, "path"), text_in(question, "build_id")).has_value()},
                {"accepts", cache != nullptr}};
  if (!cache)
    return fail(errc::invalid_argument, "this node takes no programs: start it with caf-node --accept-programs");
  if (what == "begin") {
    TROUPE_TRY(const auto id,
               cache->begin(text_in(question, "build_id"), text_in(question, "name"), number_in(question, "size")));
    return json{{"upload", id}};
  }
  if (what == "write") {
    const auto bytes = data_of(question);
    if (bytes.size() > program_piece_bytes)
      return fail(errc::invalid_argument,
                  fmt::format("a piece of {} bytes: at most {} are taken at once", bytes.size(), program_piece_bytes));
    TROUPE_TRY(cache->write(text_in(question, "upload"), number_in(question, "offset"), bytes));
    return json::object();
  }
  if (what == "finish") {
    TROUPE_TRY(cache->finish(text_in(question, "upload"), text_in(question, "sha256")));
    return json::object();
  }
  return fail(errc::unsupported_version, fmt::format("this node cannot '{}' a program", what));
}

} // namespace troupe::runtime
