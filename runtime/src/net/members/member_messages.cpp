#include "net/members/member_messages.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <stdexcept>
#include <utility>

namespace troupe::runtime {

using nlohmann::json;

namespace {

constexpr auto data_key = "data";

std::string_view word_of(member_phase phase) {
  switch (phase) {
  case member_phase::available:
    return "available";
  case member_phase::drained:
    return "drained";
  case member_phase::leaving:
    return "leaving";
  }
  return "available";
}

member_phase phase_of(std::string_view word) {
  // A later version's word is for a node that is not simply available.
  return word == "available" ? member_phase::available
         : word == "leaving" ? member_phase::leaving
                             : member_phase::drained;
}

/// JSON's conversions let a negative number, or one that is too large, pass as another.
template <class T>
T number_in(const json& text) {
  if (!text.is_number_unsigned() || text.get<std::uint64_t>() > std::numeric_limits<T>::max())
    throw std::out_of_range{"a number that is negative, too large or none"};
  return text.get<T>();
}

json describe(const resources& x) {
  return {{"cpus", x.cpus}, {"gpus", x.gpus}, {"memory_bytes", x.memory_bytes}, {"custom", x.custom}};
}

resources resources_in(const json& text) {
  auto result = resources{number_in<std::uint32_t>(text.at("cpus")), text.at("gpus").get<double>(),
                          number_in<std::uint64_t>(text.value("memory_bytes", json(0U)))};
  const auto custom = text.value("custom", json::object());
  for (const auto& [name, amount] : custom.items())
    result.custom.emplace(name, number_in<std::uint64_t>(amount));
  return result;
}

cluster_member member_in(const json& text) {
  cluster_member result;
  result.address = text.at("address").get<std::string>();
  result.host = text.at("host").get<std::string>();
  result.started = number_in<std::uint64_t>(text.at("started"));
  result.beat = number_in<std::uint64_t>(text.at("beat"));
  result.protocol = number_in<std::uint32_t>(text.at("protocol"));
  result.version = text.at("version").get<std::string>();
  result.pid = number_in<std::uint32_t>(text.value("pid", json(0U)));
  result.offered = resources_in(text.at("offered"));
  result.free = resources_in(text.at("free"));
  result.phase = phase_of(text.at("phase").get<std::string>());
  for (const auto& each : text.value("runs", json::array()))
    result.runs.push_back({each.at("run").get<std::string>(), each.at("name").get<std::string>(),
                           number_in<std::uint32_t>(each.at("workers"))});
  if (const auto expires = text.find("certificate_expires"); expires != text.end() && !expires->is_null())
    result.certificate_expires = expires->get<std::int64_t>();
  const auto labels = text.value("labels", json::object());
  for (const auto& [name, value] : labels.items())
    result.labels.emplace(name, value.get<std::string>());
  return result;
}

json without_data(const json& text) {
  auto result = json::object();
  for (const auto& [key, value] : text.items())
    if (key != data_key)
      result[key] = value;
  return result;
}

/// Calls a function that throws for a text of another form.
template <class Parse>
auto guarded(Parse parse) -> expected<decltype(parse())> {
  try {
    return parse();
  } catch (const std::exception& x) {
    return fail(errc::invalid_argument, fmt::format("not what a node says about members: {}", x.what()));
  }
}

} // namespace

json as_data(std::string_view bytes) {
  return json::binary({bytes.begin(), bytes.end()});
}

std::string_view data_of(const json& text) {
  const auto found = text.find(data_key);
  if (found == text.end() || !found->is_binary())
    return {};
  const auto& bytes = found->get_binary();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string frame(const json& text) {
  const auto found = text.find(data_key);
  const auto has_bytes = found != text.end() && found->is_binary();
  const auto object = (has_bytes ? without_data(text) : text).dump(-1, ' ', true, json::error_handler_t::replace);
  const auto bytes = data_of(text);
  const auto size = object.size() + (has_bytes ? 1 + bytes.size() : 0);
  std::string result;
  result.reserve(member_header_bytes + size);
  for (auto shift = 24; shift >= 0; shift -= 8)
    result += static_cast<char>(size >> shift & 0xff);
  result += object;
  if (has_bytes)
    result.append(1, '\0').append(bytes);
  return result;
}

expected<std::size_t> text_size(std::string_view header) {
  std::size_t result = 0;
  for (const auto each : header.substr(0, member_header_bytes))
    result = result << 8 | static_cast<unsigned char>(each);
  if (result == 0 || result > member_text_bytes)
    return fail(errc::invalid_argument, fmt::format("a text about members of {} bytes", result));
  return result;
}

expected<json> parse_text(std::string_view text) {
  // A zero is in no JSON text.
  const auto end = text.find('\0');
  auto result = json::parse(text.substr(0, end), nullptr, false);
  if (!result.is_object())
    return fail(errc::invalid_argument, "a text about members that is not a JSON object");
  if (end != std::string_view::npos)
    result[data_key] = as_data(text.substr(end + 1));
  return result;
}

json describe(const cluster_member& member) {
  auto runs = json::array();
  for (const auto& each : member.runs)
    runs.push_back({{"run", each.run}, {"name", each.name}, {"workers", each.workers}});
  auto result = json{{"address", member.address},
                     {"host", member.host},
                     {"started", member.started},
                     {"beat", member.beat},
                     {"protocol", member.protocol},
                     {"version", member.version},
                     {"pid", member.pid},
                     {"offered", describe(member.offered)},
                     {"free", describe(member.free)},
                     {"phase", word_of(member.phase)},
                     {"runs", std::move(runs)},
                     {"labels", member.labels}};
  if (member.certificate_expires)
    result["certificate_expires"] = *member.certificate_expires;
  return result;
}

json describe(const listed_member& member) {
  auto result = describe(member.what);
  result["silent"] = member.is_silent;
  result["silent_ms"] = member.silent_for.count();
  return result;
}

expected<cluster_member> parse_member(const json& text) {
  auto result = guarded([&] { return member_in(text); });
  if (result)
    TROUPE_TRY(validate(*result));
  return result;
}

expected<listed_member> parse_listed(const json& text) {
  TROUPE_TRY(auto what, parse_member(text));
  return guarded([&] {
    return listed_member{std::move(what), text.value("silent", false),
                         std::chrono::milliseconds{text.value("silent_ms", std::int64_t{0})}};
  });
}

error error_in(const json& answer) {
  const auto code = answer.find("code");
  if (code == answer.end())
    return {};
  auto result = error{errc::internal, "the node refuses without a reason"};
  if (code->is_number_unsigned() && code->get<std::uint64_t>() <= static_cast<std::uint64_t>(errc::busy) &&
      code->get<std::uint64_t>() > 0)
    result.code = static_cast<errc>(code->get<std::uint8_t>());
  if (const auto text = answer.find("message"); text != answer.end() && text->is_string())
    result.message = text->get<std::string>();
  return result;
}

} // namespace troupe::runtime
