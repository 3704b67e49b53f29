#include "description.hpp"

#include <troupe/serialization/files/file_digest.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

namespace troupe::tensorflow {

namespace fs = std::filesystem;

namespace {

constexpr int known_format = 1;

/// Of NumPy's name.
dtype type_of(const std::string& name) {
  static const std::map<std::string, dtype, std::less<>> names{
      {"float32", dtype::f32}, {"float64", dtype::f64}, {"int8", dtype::i8},     {"int16", dtype::i16},
      {"int32", dtype::i32},   {"int64", dtype::i64},   {"uint8", dtype::u8},    {"uint16", dtype::u16},
      {"uint32", dtype::u32},  {"uint64", dtype::u64},  {"bool", dtype::boolean}};
  const auto found = names.find(name);
  if (found == names.end())
    throw exception{errc::damaged, fmt::format("type '{}' is not supported", name)};
  return found->second;
}

variable_role role_of(const std::string& name) {
  if (name == "trainable")
    return variable_role::trainable;
  if (name == "state")
    return variable_role::state;
  if (name == "seed")
    return variable_role::seed;
  if (name == "optimizer")
    return variable_role::optimizer;
  throw exception{errc::damaged, fmt::format("a variable's role is '{}'", name)};
}

tensor_spec spec_of(const nlohmann::json& json) {
  tensor_spec result{json.at("name").get<std::string>(), type_of(json.at("dtype").get<std::string>()), {}};
  for (const auto& each : json.at("shape")) {
    const auto size = each.get<std::int64_t>();
    if (size < 0)
      throw exception{errc::damaged, fmt::format("'{}' has a dimension of {}", result.name, size)};
    result.shape.push_back(static_cast<std::uint64_t>(size));
  }
  return result;
}

graph_function function_of(const nlohmann::json& json) {
  return {json.at("inputs").get<std::vector<std::string>>(), json.at("outputs").get<std::vector<std::string>>()};
}

/// Throws `exception` unless the functions take and give what the variables say.
void check(const model_description& model) {
  const auto count = [&](variable_role role) {
    return static_cast<std::size_t>(std::ranges::count(model.variables, role, &variable::role));
  };
  const auto trainable = count(variable_role::trainable);
  const auto state = count(variable_role::state) + count(variable_role::seed);
  const auto optimizer = count(variable_role::optimizer);
  const auto require = [&](const char* name, std::size_t inputs, std::size_t outputs) {
    const auto found = model.functions.find(name);
    if (found == model.functions.end() || found->second.inputs.size() != inputs ||
        found->second.outputs.size() != outputs)
      throw exception{errc::damaged,
                      fmt::format("its function '{}' should take {} tensors and give {}", name, inputs, outputs)};
  };
  const auto inputs = model.inputs.size();
  require("gradients", trainable + state + inputs + 1, 1 + trainable + state);
  require("apply", 2 * trainable + optimizer, trainable + optimizer);
  require("evaluate", trainable + state + inputs + 1, 2);
  require("predict", trainable + state + inputs, 1);
  require("initialise", 0, trainable + state + optimizer);
  if (trainable == 0)
    throw exception{errc::damaged, "it has nothing to train"};
  for (const auto& each : model.variables)
    if (each.role <= variable_role::state && each.spec.type != dtype::f32)
      throw exception{errc::damaged, fmt::format("variable '{}' is not float32", each.spec.name)};
}

} // namespace

expected<model_description> read_description(const fs::path& model) {
  const auto path = model / "assets.extra" / "troupe.json";
  std::error_code why;
  if (!fs::is_regular_file(path, why))
    return fail(errc::not_found, fmt::format("{} is no model for Troupe: it has no assets.extra/troupe.json; export it "
                                             "with troupe_export.py",
                                             model.string()));
  model_description result;
  try {
    auto in = std::ifstream{path};
    const auto json = nlohmann::json::parse(in);
    if (const auto format = json.at("format").get<int>(); format != known_format)
      return fail(errc::unsupported_version, fmt::format("{} has format {}, and this version of Troupe reads {}",
                                                         path.string(), format, known_format));
    for (const auto& each : json.at("variables"))
      result.variables.push_back({spec_of(each), role_of(each.at("role").get<std::string>())});
    std::ranges::stable_sort(result.variables, {}, [](const variable& x) {
      return x.role == variable_role::seed ? variable_role::state : x.role;
    });
    for (const auto& each : json.at("inputs"))
      result.inputs.push_back(spec_of(each));
    if (result.inputs.empty())
      throw exception{errc::damaged, "it has no inputs"};
    result.target = spec_of(json.at("target"));
    result.outputs = 1;
    for (const auto& each : json.at("output")) {
      if (each.get<std::int64_t>() < 0)
        throw exception{errc::damaged, "the size of its output is not fixed"};
      result.outputs *= each.get<std::uint64_t>();
    }
    for (const auto& [name, each] : json.at("functions").items())
      result.functions.emplace(name, function_of(each));
    check(result);
  } catch (const nlohmann::json::exception& x) {
    return fail(errc::damaged, fmt::format("{} cannot be read: {}", path.string(), x.what()));
  } catch (const exception& x) {
    return fail(errc::damaged, fmt::format("{} is damaged: {}", path.string(), x.reason().message));
  }
  for (const auto* each : {"saved_model.pb", "assets.extra/troupe.json", "variables/variables.data-00000-of-00001"}) {
    TROUPE_TRY(auto digest, serialization::describe_file(model / each));
    result.digest += fmt::format("{}: {}\n", each, digest);
  }
  return result;
}

} // namespace troupe::tensorflow
