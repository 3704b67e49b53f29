#include <troupe/data/csv.hpp>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

using namespace troupe::data;

namespace {

void require(bool holds) {
  if (!holds)
    std::abort();
}

std::vector<std::string> texts(const column& read) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < read.samples(); ++i) {
    std::int64_t code = 0;
    std::memcpy(&code, read.bytes.data() + i * sizeof(code), sizeof(code));
    result.push_back(read.spec.categories->at(static_cast<std::size_t>(code)));
  }
  return result;
}

/// All fields of the first column, and the same after quoting and parsing them again.
void round_trip(std::string_view text, char delimiter) {
  csv_options options;
  options.header = false;
  options.delimiter = delimiter;
  options.missing_texts = {};
  options.columns = {{"first", csv_type::categorical, {"0"}, {}}};
  auto read = parse_csv(text, "input", options);
  if (!read) {
    require(!read.error().message.empty());
    return;
  }
  auto fields = texts(read->front());
  std::string written;
  for (const auto& field : fields) {
    written += '"';
    for (auto c : field)
      written += c == '"' ? std::string{"\"\""} : std::string{c};
    // A second column is needed, because a single empty field would be an empty line.
    written += "\"" + std::string{delimiter} + "\r\n";
  }
  auto again = parse_csv(written, "written", options);
  if (fields.empty())
    return;
  require(again.has_value() && texts(again->front()) == fields);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto text = std::string_view{reinterpret_cast<const char*>(data), size};
  round_trip(text, ',');
  round_trip(text, ';');
  csv_options options;
  options.missing = missing_values::marked;
  if (auto read = parse_csv(text, "input", options))
    for (const auto& each : *read)
      require(each.samples() == read->front().samples());
  options.columns = {{"number", csv_type::f64, {}, {}}, {"count", csv_type::i64, {}, {}}};
  (void)parse_csv(text, "input", options);
  return 0;
}
