#include "remote/replica_messages.hpp"

#include <troupe/dtype.hpp>

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

namespace troupe::serving {

namespace fs = std::filesystem;
using nlohmann::json;
using runtime::secure_stream;

namespace {

constexpr std::size_t gathered_bytes = std::size_t{256} << 10;
constexpr std::size_t block_bytes = std::size_t{1} << 20;
/// Categories can be many.
constexpr std::size_t text_limit_bytes = std::size_t{64} << 20;

/// A stream that fails is a process that is gone.
template <class T>
expected<T> or_lost(expected<T> what) {
  if (!what)
    return fail(errc::worker_lost, fmt::format("the replica's process is gone: {}", what.error().message));
  return what;
}

expected<void> write_bytes(secure_stream& to, std::span<const std::byte> bytes) {
  return or_lost(to.write(bytes));
}

expected<void> read_bytes(secure_stream& from, std::span<std::byte> bytes) {
  return or_lost(from.read(bytes));
}

expected<void> write_text(secure_stream& to, const json& text) {
  return or_lost(to.write_text(text));
}

expected<json> read_text(secure_stream& from) {
  return or_lost(from.read_text(text_limit_bytes));
}

/// A number and what belongs to it: sent together, unless it is long. Each write is a record and a packet.
class gathered {
 public:
  gathered(secure_stream& to, std::uint64_t number) : to_(to) {
    const auto first = std::as_bytes(std::span{&number, 1});
    bytes_.assign(first.begin(), first.end());
  }

  [[nodiscard]] expected<void> add(std::span<const std::byte> more) {
    if (bytes_.size() + more.size() > gathered_bytes) {
      TROUPE_TRY(send());
      return write_bytes(to_, more);
    }
    bytes_.insert(bytes_.end(), more.begin(), more.end());
    return {};
  }

  [[nodiscard]] expected<void> send() {
    const auto sent = bytes_.empty() ? expected<void>{} : write_bytes(to_, bytes_);
    bytes_.clear();
    return sent;
  }

 private:
  secure_stream& to_;
  std::vector<std::byte> bytes_;
};

/// Whatever JSON throws for a text that is not what it should be.
template <class Read>
auto read_json(std::string_view what, Read read) -> decltype(read()) {
  try {
    return read();
  } catch (const std::exception& x) {
    return fail(errc::invalid_argument, fmt::format("{}: {}", what, x.what()));
  }
}

json json_of(const error& reason) {
  return {{"failed", {{"code", static_cast<unsigned>(reason.code)}, {"message", reason.message}}}};
}

/// The reason of the other end.
error error_of(const json& failed) {
  auto result = error{errc::user_error, "the replica's process has not said why"};
  if (!failed.is_object())
    return result;
  const auto code = failed.value("code", static_cast<unsigned>(errc::user_error));
  if (code > 0 && code <= static_cast<unsigned>(errc::busy) && code != static_cast<unsigned>(errc::worker_lost))
    result.code = static_cast<errc>(code);
  result.message = failed.value("message", result.message);
  return result;
}

json json_of(const data::column_spec& column) {
  auto result = json{{"name", column.name}, {"type", to_string(column.type)}, {"shape", column.shape}};
  if (column.categories != nullptr)
    result["categories"] = *column.categories;
  return result;
}

expected<data::column_spec> column_of(const json& x) {
  auto result = data::column_spec{};
  result.name = x.at("name").get<std::string>();
  const auto type = parse_dtype(x.at("type").get<std::string>());
  if (!type)
    return fail(errc::invalid_argument, fmt::format("column '{}' has an unknown type", result.name));
  result.type = *type;
  result.shape = x.at("shape").get<std::vector<std::uint64_t>>();
  if (const auto found = x.find("categories"); found != x.end())
    result.categories = std::make_shared<const std::vector<std::string>>(found->get<std::vector<std::string>>());
  return result;
}

struct sent_file {
  std::string name;
  std::uint64_t bytes = 0;
};

expected<std::vector<sent_file>> files_in(const fs::path& checkpoint) {
  auto code = std::error_code{};
  std::vector<sent_file> result;
  for (auto i = fs::recursive_directory_iterator{checkpoint, code}; !code && i != fs::end(i); i.increment(code)) {
    if (!i->is_regular_file(code) || code)
      continue;
    const auto bytes = i->file_size(code);
    if (!code)
      result.push_back({i->path().lexically_relative(checkpoint).generic_string(), bytes});
  }
  if (code)
    return fail(errc::io_error, fmt::format("{} cannot be read: {}", checkpoint.string(), code.message()));
  std::ranges::sort(result, {}, &sent_file::name);
  return result;
}

expected<void> send_file(secure_stream& to, const fs::path& path, std::uint64_t bytes, std::vector<std::byte>& block) {
  auto in = std::ifstream{path, std::ios::binary};
  while (bytes > 0) {
    const auto now = std::min<std::uint64_t>(bytes, block.size());
    if (!in.read(reinterpret_cast<char*>(block.data()), static_cast<std::streamsize>(now)))
      return fail(errc::io_error, fmt::format("{} cannot be read", path.string()));
    TROUPE_TRY(write_bytes(to, std::span{block}.first(now)));
    bytes -= now;
  }
  return {};
}

expected<void> receive_file(secure_stream& from, const fs::path& path, std::uint64_t bytes,
                            std::vector<std::byte>& block) {
  auto code = std::error_code{};
  fs::create_directories(path.parent_path(), code);
  auto out = std::ofstream{path, std::ios::binary};
  while (bytes > 0) {
    const auto now = std::min<std::uint64_t>(bytes, block.size());
    TROUPE_TRY(read_bytes(from, std::span{block}.first(now)));
    out.write(reinterpret_cast<const char*>(block.data()), static_cast<std::streamsize>(now));
    bytes -= now;
  }
  if (!out.flush())
    return fail(errc::io_error, fmt::format("{} cannot be written: is the device full?", path.string()));
  return {};
}

/// Whether a name stays below the directory that it is put into.
bool is_inside(const fs::path& name) {
  return !name.empty() && name.is_relative() && std::ranges::find(name, fs::path{".."}) == name.end();
}

expected<void> receive_files(secure_stream& from, const json& files, const fs::path& target) {
  std::vector<std::byte> block(block_bytes);
  for (const auto& each : files) {
    const auto name = fs::path{each.at("name").get<std::string>()};
    if (!is_inside(name))
      return fail(errc::invalid_argument, fmt::format("a checkpoint has no file of the name {}", name.string()));
    TROUPE_TRY(receive_file(from, target / name, each.at("bytes").get<std::uint64_t>(), block));
  }
  return {};
}

} // namespace

json to_json(const replica_settings& x) {
  return {{"server", to_string(x.server)}, {"secret", x.secret}, {"options", x.options}};
}

expected<replica_settings> parse_replica_settings(const json& x) {
  return read_json("the settings of a replica", [&]() -> expected<replica_settings> {
    auto result = replica_settings{};
    TROUPE_TRY(result.server, parse_endpoint(x.at("server").get<std::string>()));
    result.secret = x.at("secret").get<std::string>();
    result.options = x.at("options");
    return result;
  });
}

json to_json(const remote_face& x) {
  auto inputs = json::array();
  for (const auto& each : x.inputs)
    inputs.push_back(json_of(each));
  return {{"library", x.library}, {"inputs", std::move(inputs)}, {"outputs", x.outputs}};
}

expected<remote_face> parse_remote_face(const json& x) {
  return read_json("what a replica has loaded", [&]() -> expected<remote_face> {
    auto result = remote_face{};
    result.library = x.at("library").get<std::string>();
    for (const auto& each : x.at("inputs")) {
      TROUPE_TRY(auto column, column_of(each));
      result.inputs.push_back(std::move(column));
    }
    result.outputs = x.at("outputs").get<std::vector<std::string>>();
    return result;
  });
}

expected<void> send_checkpoint(secure_stream& to, const fs::path& checkpoint, checkpoint_route route) {
  if (route == checkpoint_route::path)
    return write_text(to, {{"path", fs::absolute(checkpoint).string()}});
  TROUPE_TRY(const auto files, files_in(checkpoint));
  auto list = json::array();
  for (const auto& each : files)
    list.push_back({{"name", each.name}, {"bytes", each.bytes}});
  TROUPE_TRY(write_text(to, {{"files", std::move(list)}}));
  std::vector<std::byte> block(block_bytes);
  for (const auto& each : files)
    TROUPE_TRY(send_file(to, checkpoint / each.name, each.bytes, block));
  return {};
}

expected<fs::path> receive_checkpoint(secure_stream& from, const std::function<void()>& begun,
                                      const std::function<expected<fs::path>()>& make_directory) {
  TROUPE_TRY(const auto text, read_text(from));
  begun();
  return read_json("a checkpoint for a replica", [&]() -> expected<fs::path> {
    if (const auto found = text.find("path"); found != text.end())
      return fs::path{found->get<std::string>()};
    TROUPE_TRY(auto directory, make_directory());
    TROUPE_TRY(receive_files(from, text.at("files"), directory));
    return directory;
  });
}

expected<void> send_loaded(secure_stream& to, const expected<remote_face>& outcome) {
  return write_text(to, outcome ? json{{"loaded", to_json(*outcome)}} : json_of(outcome.error()));
}

expected<remote_face> receive_loaded(secure_stream& from) {
  TROUPE_TRY(const auto text, read_text(from));
  if (const auto found = text.find("loaded"); found != text.end())
    return parse_remote_face(*found);
  return tl::unexpected{error_of(text.value("failed", json{}))};
}

expected<void> send_rows(secure_stream& to, const data::batch& rows) {
  auto message = gathered{to, rows.size()};
  for (std::size_t i = 0; i < rows.columns().size(); ++i)
    TROUPE_TRY(message.add(rows.bytes(i)));
  return message.send();
}

expected<void> receive_rows(secure_stream& from, std::span<const data::column_spec> columns, data::batch& rows) {
  std::uint64_t count = 0;
  TROUPE_TRY(read_bytes(from, std::as_writable_bytes(std::span{&count, 1})));
  rows.reset(columns, count);
  for (std::size_t i = 0; i < columns.size(); ++i)
    TROUPE_TRY(read_bytes(from, rows.bytes(i)));
  return {};
}

expected<void> send_outputs(secure_stream& to, const expected<void>& outcome, std::span<const float> outputs) {
  auto message = gathered{to, outcome ? outputs.size() : 0};
  if (outcome)
    TROUPE_TRY(message.add(std::as_bytes(outputs)));
  TROUPE_TRY(message.send());
  return outcome ? expected<void>{} : write_text(to, json_of(outcome.error()));
}

expected<void> receive_outputs(secure_stream& from, std::span<float> outputs) {
  std::uint64_t count = 0;
  TROUPE_TRY(read_bytes(from, std::as_writable_bytes(std::span{&count, 1})));
  if (count == 0) {
    TROUPE_TRY(const auto text, read_text(from));
    return tl::unexpected{error_of(text.value("failed", json{}))};
  }
  if (count != outputs.size())
    return fail(errc::worker_lost,
                fmt::format("the replica's process answered {} rows' numbers instead of {}", count, outputs.size()));
  return read_bytes(from, std::as_writable_bytes(outputs));
}

} // namespace troupe::serving
