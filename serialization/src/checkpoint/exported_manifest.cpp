#include "checkpoint/exported_manifest.hpp"

#include "vocabulary/quote_for_log.hpp"

#include <charconv>
#include <cmath>
#include <concepts>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::serialization {

namespace {

using texts = std::map<std::string, std::string>;

constexpr auto format_key = "troupe.format";
constexpr auto format = "1";
constexpr auto order_key = "troupe.tensor_order";

/// Non-finite values become strings, since JSON cannot represent them as numbers.
nlohmann::json to_json(double value) {
  if (std::isfinite(value))
    return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

bool from_json(const nlohmann::json& text, double& value) {
  if (text.is_number()) {
    value = text.get<double>();
    return true;
  }
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  if (text == "nan")
    value = std::numeric_limits<double>::quiet_NaN();
  else if (text == "inf" || text == "-inf")
    value = text == "inf" ? infinity : -infinity;
  else
    return false;
  return true;
}

/// Reads fields from texts, and remembers the first invalid one.
class field_reader {
 public:
  explicit field_reader(const texts& from) : from_(from) {}

  void read(const char* key, std::string& target) {
    if (const auto* text = find(key))
      target = *text;
  }

  template <std::integral T>
  void read(const char* key, T& target) {
    const auto* text = find(key);
    if (!text)
      return;
    auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), target);
    if (code != std::errc{} || end != text->data() + text->size())
      refuse(key, *text);
  }

  /// Checks that the text is a JSON object, and keeps it verbatim.
  void read_object(const char* key, std::string& target) {
    const auto* text = find(key);
    if (!text || text->empty())
      return;
    if (nlohmann::json::parse(*text, nullptr, false).is_object())
      target = *text;
    else
      refuse(key, *text);
  }

  void read(const char* key, std::map<std::string, double>& target) {
    for_each_item(key,
                  [&](const std::string& name, const nlohmann::json& value) { return from_json(value, target[name]); });
  }

  void read(const char* key, std::map<std::string, std::string>& target) {
    for_each_item(key, [&](const std::string& name, const nlohmann::json& value) {
      if (value.is_string())
        target[name] = value.get<std::string>();
      return value.is_string();
    });
  }

  [[nodiscard]] error& flaw() { return flaw_; }

 private:
  [[nodiscard]] const std::string* find(const char* key) const {
    auto found = from_.find(key);
    return found == from_.end() ? nullptr : &found->second;
  }

  template <class Take>
  void for_each_item(const char* key, Take take) {
    const auto* text = find(key);
    if (!text)
      return;
    auto object = nlohmann::json::parse(*text, nullptr, false);
    if (!object.is_object())
      return refuse(key, *text);
    for (const auto& [name, value] : object.items())
      if (!take(name, value))
        return refuse(key, *text);
  }

  void refuse(const char* key, const std::string& text) {
    if (flaw_.code == errc::none)
      flaw_ = {errc::damaged,
               fmt::format("its __metadata__ has an invalid value under {}: {}", key, quote_for_log(text))};
  }

  const texts& from_;
  error flaw_;
};

} // namespace

texts to_metadata(const manifest& content) {
  auto metrics = nlohmann::json::object();
  for (const auto& [name, value] : content.metrics)
    metrics[name] = to_json(value);
  auto order = nlohmann::json::array();
  for (const auto& tensor : content.tensors)
    order.push_back(tensor.spec.name);
  // Names that are not UTF-8 are rejected later, where they are used as tensors' names.
  auto text_of = [](const nlohmann::json& value) {
    return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  return {
      {format_key, format},
      {"troupe.run", content.run.value},
      {"troupe.step", fmt::to_string(content.step)},
      {"troupe.generation", fmt::to_string(content.generation)},
      {"troupe.seed", fmt::to_string(content.seed)},
      {"troupe.shards", fmt::to_string(content.shards)},
      {"troupe.global_batch", fmt::to_string(content.global_batch)},
      {"troupe.tree_version", fmt::to_string(content.tree_version)},
      {"troupe.program_build_id", content.program_build_id},
      {"troupe.configuration", content.configuration_json},
      {"troupe.configuration_digest", content.configuration_digest},
      {"troupe.earlier_programs", content.earlier_programs_json},
      {"troupe.data_fingerprint", content.data_fingerprint},
      {"troupe.numerics_fingerprint", content.numerics_fingerprint_json},
      {"troupe.metrics", text_of(metrics)},
      {"troupe.values", content.values_json},
      {"troupe.world_size", fmt::to_string(content.world_size)},
      {"troupe.finishes_run", content.finishes_run ? "1" : "0"},
      {"troupe.created_unix_ms", fmt::to_string(content.created.time_since_epoch().count())},
      {"troupe.attachments", text_of(content.attachments)},
      {order_key, text_of(order)},
  };
}

bool is_exported(const texts& metadata) {
  return metadata.contains(format_key);
}

expected<manifest> from_metadata(const texts& metadata) {
  if (auto found = metadata.find(format_key); found == metadata.end() || found->second != format)
    return fail(errc::unsupported_version,
                fmt::format("its __metadata__ has version {} under {}, and this build reads {}: use the build that "
                            "wrote it",
                            quote_for_log(found == metadata.end() ? "" : found->second), format_key, format));
  auto result = manifest{};
  auto from = field_reader{metadata};
  from.read("troupe.run", result.run.value);
  from.read("troupe.step", result.step.value);
  from.read("troupe.generation", result.generation.value);
  from.read("troupe.seed", result.seed);
  from.read("troupe.shards", result.shards);
  from.read("troupe.global_batch", result.global_batch);
  from.read("troupe.tree_version", result.tree_version);
  from.read("troupe.program_build_id", result.program_build_id);
  from.read_object("troupe.configuration", result.configuration_json);
  from.read("troupe.configuration_digest", result.configuration_digest);
  from.read("troupe.earlier_programs", result.earlier_programs_json);
  from.read("troupe.data_fingerprint", result.data_fingerprint);
  from.read_object("troupe.numerics_fingerprint", result.numerics_fingerprint_json);
  from.read("troupe.metrics", result.metrics);
  from.read_object("troupe.values", result.values_json);
  from.read("troupe.world_size", result.world_size);
  auto finishes_run = std::uint32_t{0};
  from.read("troupe.finishes_run", finishes_run);
  result.finishes_run = finishes_run != 0;
  auto created = std::int64_t{0};
  from.read("troupe.created_unix_ms", created);
  result.created = std::chrono::sys_time<std::chrono::milliseconds>{std::chrono::milliseconds{created}};
  from.read("troupe.attachments", result.attachments);
  if (from.flaw().code != errc::none)
    return fail(std::move(from.flaw()));
  return result;
}

expected<std::vector<std::string>> tracked_order(const texts& metadata) {
  auto result = std::vector<std::string>{};
  auto found = metadata.find(order_key);
  if (found == metadata.end())
    return result;
  auto names = nlohmann::json::parse(found->second, nullptr, false);
  auto refuse = [] {
    return fail(errc::damaged, fmt::format("its __metadata__ has no list of its tensors under {}", order_key));
  };
  if (!names.is_array())
    return refuse();
  for (const auto& name : names) {
    if (!name.is_string())
      return refuse();
    result.push_back(name.get<std::string>());
  }
  return result;
}

} // namespace troupe::serialization
