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

/// How the commands print.
namespace troupe::tool {

using json = nlohmann::ordered_json;

/// "3.4 MB"; exact below 1000.
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

/// "2026-11-21 15:33:04" in UTC; "-" for none.
[[nodiscard]] std::string time_text(std::chrono::sys_time<std::chrono::milliseconds> time);

/// The shortest digits that tell a number from its neighbours.
[[nodiscard]] std::string number_text(double value);

/// Six digits, for tables.
[[nodiscard]] std::string short_number_text(double value);

/// "f32 [3, 4]"
[[nodiscard]] std::string spec_text(const tensor_spec& spec);

/// Text out of a file, as it may go to a terminal: without control characters.
[[nodiscard]] std::string printable(std::string_view text);

/// The metrics as a JSON object; what is no number as a text.
[[nodiscard]] json metrics_json(const std::map<std::string, double>& metrics);

/// A text that should be JSON, as what it is; null for an empty one.
[[nodiscard]] json parsed(const std::string& text);

/// Prints rows in columns; all but the first and last of each row are flush right.
void print_table(const std::vector<std::vector<std::string>>& rows);

/// Prints one JSON document.
void print_json(const json& document);

/// Tells an error on standard error, and returns the exit code for it.
int complain(const error& reason);

/// Shows on a terminal how far something long has come. Silent elsewhere, and for what is small.
class progress_line {
 public:
  progress_line(std::string what, std::uint64_t total_bytes);
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;
  /// Wipes the line.
  ~progress_line();

  void add(std::uint64_t bytes);

 private:
  std::string what_;
  std::uint64_t total_bytes_;
  std::uint64_t done_bytes_ = 0;
  std::uint64_t shown_bytes_ = 0;
  bool visible_;
};

/// The bytes of all tensors.
[[nodiscard]] std::uint64_t tensor_bytes(const serialization::manifest& content);

} // namespace troupe::tool
