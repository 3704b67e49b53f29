#pragma once

#include "commands.hpp"

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>
#include <troupe/tensor.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

/// Formatting and output of the commands.
namespace troupe::tool {

using json = nlohmann::ordered_json;

/// "3.4 MB"; exact below 1000.
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

/// "2026-11-21 15:33:04" in UTC; "-" for no time.
[[nodiscard]] std::string time_text(std::chrono::sys_time<std::chrono::milliseconds> time);

/// The shortest text that converts back to the same number.
[[nodiscard]] std::string number_text(double value);

/// Six digits, for tables.
[[nodiscard]] std::string short_number_text(double value);

/// "f32 [3, 4]"
[[nodiscard]] std::string spec_text(const tensor_spec& spec);

/// Text from a file made safe for a terminal: control characters are replaced.
[[nodiscard]] std::string printable(std::string_view text);

/// The metrics as a JSON object; numbers that are not finite become strings.
[[nodiscard]] json metrics_json(const std::map<std::string, double>& metrics);

/// Parses a text that should be JSON. Null for an empty text; a string for one that is not JSON.
[[nodiscard]] json parsed(const std::string& text);

/// Prints rows in columns. The first and last column are left-aligned, the others right-aligned.
void print_table(const std::vector<std::vector<std::string>>& rows);

/// Prints one JSON document.
void print_json(const json& document);

/// Prints an error to standard error and returns its exit code.
int complain(const error& reason);

/// Shows the progress of a long operation on a terminal. Prints nothing elsewhere or for small sizes.
class progress_line {
 public:
  progress_line(std::string what, std::uint64_t total_bytes);
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;
  /// Clears the line.
  ~progress_line();

  void add(std::uint64_t bytes);

 private:
  std::string what_;
  std::uint64_t total_bytes_;
  std::uint64_t done_bytes_ = 0;
  std::uint64_t shown_bytes_ = 0;
  bool visible_;
};

/// The total size of all tensors.
[[nodiscard]] std::uint64_t tensor_bytes(const serialization::manifest& content);

} // namespace troupe::tool
