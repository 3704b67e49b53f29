#include "prediction_file.hpp"

#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/files/file_system.hpp>
#include <troupe/serialization/interchange/npy.hpp>

#include <array>
#include <charconv>
#include <cstring>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::inference {

namespace fs = std::filesystem;

namespace {

/// Text is written in pieces of about this size.
constexpr std::size_t piece_bytes = std::size_t{1} << 20;

expected<void> write_npy(const serialization::checkpoint& source, std::size_t index, const fs::path& path,
                         serialization::existing_file existing) {
  auto chunks = [&](const serialization::byte_sink& sink) { return source.read_chunks(index, sink); };
  return serialization::write_npy(path, source.content().tensors[index].spec, chunks, existing);
}

/// A field of RFC 4180.
std::string csv_field(const std::string& text) {
  if (text.find_first_of("\",\r\n") == std::string::npos)
    return text;
  std::string result = "\"";
  for (auto c : text)
    result += c == '"' ? "\"\"" : std::string(1, c);
  return result + "\"";
}

std::string header_of(const nlohmann::json& values, std::uint64_t outputs) {
  auto names = std::vector<std::string>{};
  if (auto found = values.find(outputs_value); found != values.end())
    names = found->get<std::vector<std::string>>();
  names.resize(outputs);
  auto fields = std::vector<std::string>{};
  for (const auto& name : names)
    fields.push_back(csv_field(name));
  return fmt::format("{}\n", fmt::join(fields, ","));
}

/// Appends text to a file in pieces.
class text_file {
 public:
  explicit text_file(serialization::file& target) : target_(target) {}

  void append(std::string_view text) {
    piece_ += text;
    if (piece_.size() >= piece_bytes)
      flush();
  }

  expected<void> finish() {
    flush();
    return std::move(result_);
  }

 private:
  void flush() {
    if (result_)
      result_ = target_.write_at(written_, serialization::bytes_of(piece_));
    written_ += piece_.size();
    piece_.clear();
  }

  serialization::file& target_;
  std::string piece_;
  std::uint64_t written_ = 0;
  expected<void> result_;
};

expected<void> write_rows(const serialization::checkpoint& source, std::size_t index, std::uint64_t outputs,
                          serialization::file& target) {
  auto text = text_file{target};
  const auto& values = source.content().values_json;
  text.append(header_of(values.empty() ? nlohmann::json::object() : nlohmann::json::parse(values), outputs));
  std::uint64_t column = 0;
  // A chunk holds whole numbers, but not necessarily whole rows.
  auto read = source.read_chunks(index, [&](std::span<const std::byte> bytes) {
    std::array<char, 32> digits{};
    for (std::size_t at = 0; at + sizeof(float) <= bytes.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      auto* end = std::to_chars(digits.data(), digits.data() + digits.size() - 1, value).ptr;
      column = (column + 1) % outputs;
      *end++ = column == 0 ? '\n' : ',';
      text.append({digits.data(), static_cast<std::size_t>(end - digits.data())});
    }
  });
  if (!read)
    return read;
  TROUPE_TRY(text.finish());
  return target.sync();
}

expected<void> write_csv(const serialization::checkpoint& source, std::size_t index, const fs::path& path,
                         serialization::existing_file existing) {
  auto& files = serialization::local_files();
  auto temporary = path.parent_path() / fmt::format(".{}.{}.tmp", path.filename().string(), ::getpid());
  auto write = [&]() -> expected<void> {
    TROUPE_TRY(auto target, files.create(temporary));
    TROUPE_TRY(write_rows(source, index, source.content().tensors[index].spec.shape[1], *target));
    auto taken = existing == serialization::existing_file::keep ? serialization::if_taken::refuse
                                                                : serialization::if_taken::replace;
    TROUPE_TRY(files.rename(temporary, path, taken));
    return files.sync_directory(path.has_parent_path() ? path.parent_path() : fs::path{"."});
  };
  auto result = write();
  if (!result)
    (void)files.remove(temporary);
  return result;
}

} // namespace

expected<prediction_format> format_of(const fs::path& path) {
  if (path.extension() == ".npy")
    return prediction_format::npy;
  if (path.extension() == ".csv")
    return prediction_format::csv;
  return fail(errc::invalid_argument, fmt::format("{}: predictions are written as NPY or CSV: give a name that ends in "
                                                  ".npy or .csv",
                                                  path.string()));
}

expected<std::uint64_t> write_predictions(const serialization::checkpoint& source, const fs::path& path,
                                          serialization::existing_file existing) {
  TROUPE_TRY(auto format, format_of(path));
  auto index = source.find(predictions_tensor);
  if (!index || source.content().tensors[*index].spec.shape.size() != 2 ||
      source.content().tensors[*index].spec.type != dtype::f32)
    return fail(errc::not_found, fmt::format("{} holds no predictions: it was not written by a batch_predictor",
                                             source.directory().string()));
  TROUPE_TRY(format == prediction_format::npy ? write_npy(source, *index, path, existing)
                                              : write_csv(source, *index, path, existing));
  return source.content().tensors[*index].spec.shape[0];
}

} // namespace troupe::inference
