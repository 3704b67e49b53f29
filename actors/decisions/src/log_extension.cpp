#include <troupe/actors/decisions/log_extension.hpp>

#include <troupe/serialization/files/digest.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace troupe::actors {

namespace {

/// False after the last whole line: one that is torn ends with the file.
bool next_line(std::istream& from, std::string& line) {
  return std::getline(from, line) && !from.eof();
}

std::uint64_t digest_of(const std::string& line) {
  return serialization::xxh3(serialization::bytes_of(line));
}

bool is_until(const std::string& line, step_id until) {
  const auto row = nlohmann::json::parse(line, nullptr, false);
  const auto step = row.is_object() ? row.find("step") : row.end();
  return step != row.end() && step->is_number_unsigned() && step->get<std::uint64_t>() <= until.value;
}

} // namespace

bool extends_log(std::istream& ours, std::istream& theirs, std::optional<step_id> until) {
  std::vector<std::uint64_t> known;
  std::string line;
  while (next_line(ours, line))
    known.push_back(digest_of(line));
  std::ranges::sort(known);
  while (next_line(theirs, line))
    if (!std::ranges::binary_search(known, digest_of(line)) && (!until || is_until(line, *until)))
      return false;
  return true;
}

} // namespace troupe::actors
