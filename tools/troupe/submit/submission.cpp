#include "submit/submission.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace troupe::tool {

namespace {

bool has_control_characters(const std::string& text) {
  return std::ranges::any_of(text, [](unsigned char each) { return each < 0x20 || each == 0x7f; });
}

bool is_utf8(const std::string& text) {
  try {
    std::ignore = nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

bool is_variable_name(const std::string& name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::ranges::all_of(name, [](unsigned char each) { return std::isalnum(each) != 0 || each == '_'; });
}

} // namespace

std::string option_value(const std::vector<std::string>& arguments, const std::string& option) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == option && i + 1 < arguments.size())
      return arguments[i + 1];
    if (arguments[i].starts_with(option + "="))
      return arguments[i].substr(option.size() + 1);
  }
  return {};
}

std::string default_job_name(const std::string& program, const std::vector<std::string>& arguments) {
  auto given = option_value(arguments, "--name");
  return given.empty() ? std::filesystem::path{program}.filename().string() : given;
}

expected<void> validate(const submission& job) {
  auto texts = job.arguments;
  texts.insert(texts.end(), {job.program, job.directory});
  for (const auto& [name, value] : job.environment) {
    if (!is_variable_name(name))
      return fail(errc::invalid_argument, fmt::format("--env {}: that is no name of a variable", name));
    texts.push_back(value);
  }
  for (const auto& each : texts)
    if (!is_utf8(each) || each.find('\0') != std::string::npos)
      return fail(errc::invalid_argument, "engines take arguments, variables and paths in UTF-8 only");
  for (const auto& each : {job.program, job.directory})
    if (has_control_characters(each))
      return fail(errc::invalid_argument,
                  fmt::format("the path {} has a control character, which systemd takes in no path", each));
  return {};
}

} // namespace troupe::tool
