#include "process/own_environment.hpp"

#include <unistd.h>

extern char** environ;

namespace troupe::runtime {

std::vector<std::string> environment_with(const std::map<std::string, std::string>& additions) {
  std::map<std::string, std::string> variables;
  for (auto** entry = environ; *entry != nullptr; ++entry) {
    const auto text = std::string{*entry};
    if (const auto mark = text.find('='); mark != std::string::npos && mark > 0)
      variables[text.substr(0, mark)] = text.substr(mark + 1);
  }
  for (const auto& [name, value] : additions)
    variables[name] = value;
  std::vector<std::string> result;
  for (const auto& [name, value] : variables)
    result.push_back(name + "=" + value);
  return result;
}

} // namespace troupe::runtime
