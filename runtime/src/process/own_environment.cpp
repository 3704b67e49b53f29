#include "process/own_environment.hpp"

#include <unistd.h>

extern char** environ;

namespace troupe::runtime {

std::map<std::string, std::string> own_environment() {
  std::map<std::string, std::string> variables;
  for (auto** entry = environ; *entry != nullptr; ++entry) {
    const auto text = std::string{*entry};
    if (const auto mark = text.find('='); mark != std::string::npos && mark > 0)
      variables[text.substr(0, mark)] = text.substr(mark + 1);
  }
  return variables;
}

std::vector<std::string> to_texts(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> result;
  for (const auto& [name, value] : variables)
    result.push_back(name + "=" + value);
  return result;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& additions) {
  auto variables = own_environment();
  for (const auto& [name, value] : additions)
    variables[name] = value;
  return to_texts(variables);
}

} // namespace troupe::runtime
