#include "net/parts/part_messages.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace troupe::runtime {

using nlohmann::json;

json describe(const error& reason) {
  return {{"code", static_cast<int>(reason.code)}, {"message", reason.message}};
}

namespace {

std::optional<error> error_in(const json& text) {
  if (!text.contains("code"))
    return std::nullopt;
  return error{static_cast<errc>(text.value("code", static_cast<int>(errc::internal))), text.value("message", "")};
}

} // namespace

expected<json> read_answer(secure_stream& stream) {
  auto text = stream.read_text(text_limit_bytes);
  if (!text)
    return text;
  if (auto reason = error_in(*text))
    return fail(std::move(*reason));
  return text;
}

json describe(const serialization::part_report& report) {
  auto chunks = json::array();
  for (const auto& each : report.chunks)
    chunks.push_back({each.tensor, each.chunk, each.xxh3});
  return {{"part", report.part}, {"file", report.file}, {"size", report.size_bytes}, {"chunks", std::move(chunks)}};
}

serialization::part_report parse_report(const json& text) {
  serialization::part_report result{text.at("part"), text.at("file"), text.at("size"), {}};
  for (const auto& each : text.at("chunks"))
    result.chunks.push_back({each.at(0), each.at(1), each.at(2)});
  return result;
}

json describe(const std::vector<tensor_spec>& tensors) {
  auto result = json::array();
  for (const auto& each : tensors)
    result.push_back({each.name, to_string(each.type), each.shape});
  return result;
}

std::vector<tensor_spec> parse_tensors(const json& text) {
  std::vector<tensor_spec> result;
  for (const auto& each : text) {
    auto type = parse_dtype(each.at(1).get<std::string>());
    if (!type)
      throw exception{errc::invalid_argument, fmt::format("no such dtype: {}", each.at(1).get<std::string>())};
    result.push_back({each.at(0), *type, each.at(2)});
  }
  return result;
}

} // namespace troupe::runtime
