#include "commands.hpp"
#include "locate.hpp"
#include "text.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>

#include <cstdio>

namespace troupe::tool {

namespace {

json tensors_json(const serialization::manifest& content) {
  auto result = json::array();
  for (const auto& tensor : content.tensors)
    result.push_back({{"name", tensor.spec.name},
                      {"dtype", std::string{to_string(tensor.spec.type)}},
                      {"shape", tensor.spec.shape},
                      {"bytes", tensor.spec.size_bytes()},
                      {"chunks", tensor.chunks.size()}});
  return result;
}

json parts_json(const serialization::manifest& content) {
  auto result = json::array();
  for (const auto& part : content.parts)
    result.push_back({{"file", part.name}, {"bytes", part.size_bytes}});
  return result;
}

std::uint64_t elements_of(const serialization::manifest& content) {
  auto result = std::uint64_t{0};
  for (const auto& tensor : content.tensors)
    result += tensor.spec.elements();
  return result;
}

json described(const serialization::checkpoint& stored) {
  const auto& content = stored.content();
  auto attachments = json::object();
  for (const auto& [name, text] : content.attachments)
    attachments[name] = parsed(text);
  return {{"path", stored.directory().string()},
          {"run", content.run.value},
          {"step", content.step.value},
          {"generation", content.generation.value},
          {"created_unix_ms", content.created.time_since_epoch().count()},
          {"world_size", content.world_size},
          {"finishes_run", content.finishes_run},
          {"seed", content.seed},
          {"shards", content.shards},
          {"global_batch", content.global_batch},
          {"tree_version", content.tree_version},
          {"program_build_id", content.program_build_id},
          {"configuration", parsed(content.configuration_json)},
          {"configuration_digest", content.configuration_digest},
          {"earlier_programs", parsed(content.earlier_programs_json)},
          {"data_fingerprint", content.data_fingerprint},
          {"numerics_fingerprint", parsed(content.numerics_fingerprint_json)},
          {"metrics", metrics_json(content.metrics)},
          {"values", parsed(content.values_json)},
          {"attachments", attachments},
          {"tensors", tensors_json(content)},
          {"parts", parts_json(content)},
          {"elements", elements_of(content)},
          {"bytes", tensor_bytes(content)}};
}

std::string or_none(const std::string& text) {
  return text.empty() ? "-" : printable(text);
}

void print_line(const char* what, const std::string& text) {
  std::printf("%-14s %s\n", what, text.c_str());
}

void print_map(const char* what, const std::map<std::string, std::string>& texts) {
  for (const auto& [name, text] : texts) {
    print_line(what, fmt::format("{}: {}", printable(name), printable(text)));
    what = "";
  }
}

/// Prints the programs that computed the steps before the present program and configuration.
void print_earlier_programs(const serialization::manifest& content) {
  const auto programs = parsed(content.earlier_programs_json);
  if (!programs.is_array())
    return;
  for (const auto& each : programs)
    if (each.is_object())
      print_line(
          "before that",
          printable(fmt::format("steps {} to {}: build {}, configuration {}", each.value("first_step", json{}).dump(),
                                each.value("last_step", json{}).dump(), each.value("build_id", "?"),
                                each.value("configuration_digest", "?").substr(0, 16))));
}

void print_tensors(const serialization::manifest& content) {
  auto rows = std::vector<std::vector<std::string>>{{"tensor", "size", "chunks", "dtype and shape"}};
  auto chunks = std::size_t{0};
  for (const auto& tensor : content.tensors) {
    rows.push_back({printable(tensor.spec.name), bytes_text(tensor.spec.size_bytes()),
                    std::to_string(tensor.chunks.size()), spec_text(tensor.spec)});
    chunks += tensor.chunks.size();
  }
  std::printf("\n");
  print_table(rows);
  std::printf("\n%zu tensors, %llu elements, %s in %zu chunks and %zu part files\n", content.tensors.size(),
              static_cast<unsigned long long>(elements_of(content)), bytes_text(tensor_bytes(content)).c_str(), chunks,
              content.parts.size());
}

void print(const serialization::checkpoint& stored, const std::string& sha256) {
  const auto& content = stored.content();
  auto metrics = std::map<std::string, std::string>{};
  for (const auto& [name, value] : content.metrics)
    metrics[name] = number_text(value);
  print_line("checkpoint", stored.directory().string());
  print_line("run", or_none(content.run.value));
  print_line("step", std::to_string(content.step.value));
  print_line("created", fmt::format("{} UTC, by {} worker(s) in generation {}", time_text(content.created),
                                    content.world_size, content.generation));
  print_line("seed", std::to_string(content.seed));
  print_line("shards (V)", std::to_string(content.shards));
  print_line("batch (B)", std::to_string(content.global_batch));
  print_line("sums", fmt::format("tree version {}", content.tree_version));
  print_line("program build", or_none(content.program_build_id));
  print_earlier_programs(content);
  print_line("configuration", or_none(content.configuration_json));
  print_line("data", or_none(content.data_fingerprint));
  print_line("numerics", or_none(content.numerics_fingerprint_json));
  print_map("metrics", metrics);
  print_line("values", or_none(content.values_json));
  print_map("attachments", content.attachments);
  if (!sha256.empty())
    print_line("state", sha256);
  print_tensors(content);
}

} // namespace

int show(const show_arguments& given) {
  auto path = locate_one(given.path, given.step);
  if (!path)
    return complain(path.error());
  auto opened = serialization::checkpoint::open(*path);
  if (!opened)
    return complain(opened.error());
  auto sha256 = std::string{};
  if (given.sha256) {
    auto digest = serialization::state_sha256(*opened);
    if (!digest)
      return complain(digest.error());
    sha256 = *digest;
  }
  if (given.output == output_format::text) {
    print(*opened, sha256);
    return exit_good;
  }
  auto document = described(*opened);
  if (!sha256.empty())
    document["state_sha256"] = sha256;
  print_json(document);
  return exit_good;
}

} // namespace troupe::tool
