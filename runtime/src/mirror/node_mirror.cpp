#include "mirror/node_mirror.hpp"

#include "mirror/mirror_shelf.hpp"
#include "net/members/member_messages.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/copy.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
#include <system_error>
#include <utility>

namespace troupe::runtime {

namespace fs = std::filesystem;
using json = nlohmann::json;
using serialization::local_files;

namespace {

using namespace std::chrono_literals;

/// A node reads a large checkpoint back before it answers.
constexpr auto patience = 30min;

std::vector<step_id> steps_in(const json& answer, const char* key) {
  std::vector<step_id> result;
  for (const auto& each : answer.at(key))
    result.push_back(step_id{each.get<std::uint64_t>()});
  return result;
}

} // namespace

node_mirror::node_mirror(node_place where, const member_access& how)
    : where_(std::move(where)),
      place_(fmt::format("node:{}/{}", where_.address, where_.path)),
      node_(where_.address, patient(how)) {}

expected<json> node_mirror::ask(const char* what, json with, const std::stop_token& stop) {
  with.update({{"ask", "mirror"}, {"do", what}, {"place", where_.path}});
  auto answer = node_.ask(std::move(with), patience, stop);
  if (!answer)
    return fail(answer.error().code, fmt::format("{}: {}", place_, answer.error().message));
  return answer;
}

expected<void> node_mirror::send(const fs::path& file, const char* what, const json& with,
                                 const std::stop_token& stop) {
  TROUPE_TRY(const auto source, local_files().open(file));
  TROUPE_TRY(const auto size, source->size_bytes());
  auto piece = std::string{};
  auto done = std::uint64_t{0};
  // An empty file is one empty piece.
  do {
    piece.resize(std::min<std::uint64_t>(mirror_piece_bytes, size - done));
    TROUPE_TRY(source->read_at(done, std::as_writable_bytes(std::span{piece})));
    auto question = with;
    question["offset"] = done;
    question["data"] = as_data(piece);
    TROUPE_TRY(ask(what, std::move(question), stop));
    done += piece.size();
  } while (done < size);
  return {};
}

expected<void> node_mirror::receive(const std::string& name, const sink& to, const std::stop_token& stop) {
  for (auto done = std::uint64_t{0};;) {
    TROUPE_TRY(const auto answer, ask("read", {{"name", name}, {"offset", done}, {"limit", mirror_piece_bytes}}, stop));
    const auto bytes = data_of(answer);
    if (bytes.empty())
      return {};
    TROUPE_TRY(to(done, bytes));
    done += bytes.size();
  }
}

expected<actors::mirror_content> node_mirror::list(const std::stop_token& stop) {
  TROUPE_TRY(const auto answer, ask("list", {}, stop));
  try {
    return actors::mirror_content{steps_in(answer, "complete"), steps_in(answer, "incomplete")};
  } catch (const std::exception& x) {
    return fail(errc::io_error, fmt::format("{}: the node's answer is not understood: {}", place_, x.what()));
  }
}

expected<void> node_mirror::upload(const fs::path& checkpoint, const std::stop_token& stop) {
  TROUPE_TRY(const auto source, serialization::checkpoint::open(checkpoint));
  const auto step = source.content().step;
  const auto of_step = json{{"step", step.value}};
  TROUPE_TRY(const auto begun, ask("begin", of_step, stop));
  if (begun.value("has_it", false))
    return {};
  const auto send_file = [&](const std::string& name) {
    auto with = of_step;
    with["name"] = name;
    return send(checkpoint / name, "part", with, stop);
  };
  for (const auto& part : source.content().parts)
    TROUPE_TRY(send_file(part.name));
  TROUPE_TRY(send_file(std::string{serialization::manifest_file_name}));
  TROUPE_TRY(ask("adopt", of_step, stop));
  return {};
}

expected<void> node_mirror::remove(step_id step, const std::stop_token& stop) {
  TROUPE_TRY(ask("remove", {{"step", step.value}}, stop));
  return {};
}

expected<void> node_mirror::upload_files(const fs::path& root, const std::vector<std::string>& names,
                                         const std::stop_token& stop) {
  for (const auto& name : names) {
    auto ignored = std::error_code{};
    if (!fs::exists(root / name, ignored))
      continue;
    TROUPE_TRY(send(root / name, "write", {{"name", name}}, stop));
    TROUPE_TRY(ask("finish", {{"name", name}}, stop));
  }
  return {};
}

expected<void> node_mirror::fetch_parts(step_id step, const fs::path& into, const std::stop_token& stop) {
  TROUPE_TRY(const auto answer, ask("files", {{"step", step.value}}, stop));
  for (const auto& each : answer.value("files", json::array())) {
    const auto name = each.value("name", std::string{});
    if (!is_plain_path(name) || name.find('/') != std::string::npos)
      return fail(errc::damaged, fmt::format("{}: the node names a file '{}'", place_, name));
    TROUPE_TRY(auto file, local_files().create(into / name));
    const auto write = [&](std::uint64_t offset, std::string_view bytes) {
      return file->write_at(offset, std::as_bytes(std::span{bytes}));
    };
    TROUPE_TRY(receive(fmt::format("checkpoints/{}/{}", serialization::checkpoint_name(step), name), write, stop));
    TROUPE_TRY(file->sync());
  }
  return {};
}

expected<void> node_mirror::fetch(step_id step, const fs::path& checkpoints_directory, const std::stop_token& stop) {
  TROUPE_TRY(const auto copy, serialization::begin_copy(checkpoints_directory, step));
  if (auto fetched = fetch_parts(step, copy, stop); !fetched) {
    auto ignored = std::error_code{};
    fs::remove_all(copy, ignored);
    return fetched;
  }
  TROUPE_TRY(serialization::adopt_copy(checkpoints_directory, step, stop));
  return {};
}

expected<void> node_mirror::fetch_file(const std::string& name, const fs::path& to, const std::stop_token& stop) {
  return serialization::write_file_durably(to, [&](const serialization::text_sink& write) {
    return receive(
        name, [&](std::uint64_t /*offset*/, std::string_view bytes) { return write(bytes); }, stop);
  });
}

expected<std::string> node_mirror::move_aside(const std::stop_token& stop) {
  TROUPE_TRY(const auto answer, ask("aside", {}, stop));
  const auto moved = answer.value("place", std::string{});
  return moved.empty() ? std::string{} : fmt::format("node:{}/{}", where_.address, moved);
}

} // namespace troupe::runtime
