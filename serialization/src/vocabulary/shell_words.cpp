#include <troupe/shell_words.hpp>

namespace troupe {

std::string shell_quoted(std::string_view word) {
  if (!word.empty() && word.find_first_of(" \t\r\n'\"\\$`&|;<>()*?[]#~!{}") == std::string_view::npos)
    return std::string{word};
  // A quote cannot stand between quotes.
  std::string result = "'";
  for (const auto each : word)
    result += each == '\'' ? std::string{"'\\''"} : std::string{each};
  return result + "'";
}

} // namespace troupe
