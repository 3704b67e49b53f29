#include <troupe/serialization/files/file_system.hpp>
#include <troupe/serialization/interchange/interchange.hpp>

#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>
#include <troupe/serialization/interchange/npy.hpp>
#include <troupe/serialization/interchange/safetensors.hpp>

#include "checkpoint/exported_manifest.hpp"
#include "files/file_place.hpp"
#include "files/hidden_sibling.hpp"
#include "files/new_file.hpp"
#include "files/reserved_memory.hpp"
#include "files/sized_file.hpp"
#include "vocabulary/quote_for_log.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

/// The memory for one part's bytes.
constexpr std::uint64_t part_bytes = 4 * max_chunk_bytes;

/// Passes bytes on to `sink`, and counts them.
byte_sink counted(const byte_sink& sink, const byte_counter& progress) {
  return [&](std::span<const std::byte> bytes) {
    sink(bytes);
    if (progress)
      progress(bytes.size());
  };
}

/// A directory beside the import's target.
expected<temporary_directory> make_directory_beside(const fs::path& target) {
  auto path = hidden_sibling(target, ".import");
  TROUPE_TRY(local_files().make_directory(path));
  return temporary_directory{std::move(path)};
}

/// A state to import: its manifest, and how to bring its bytes into memory.
struct incoming_state {
  manifest content;
  std::vector<tensor_view> tensors;
  /// The SHA-256 that the file gives for the state; empty for none.
  std::string expected_sha256;
  /// Called before and after the bytes of a chunk are used.
  std::function<expected<void>(const planned_chunk&)> fetch;
  std::function<void(const planned_chunk&)> release;
};

expected<fs::path> write_checkpoint(const fs::path& directory, incoming_state& state) {
  auto specs = specs_of(state.tensors);
  auto total = std::uint64_t{0};
  for (const auto& spec : specs)
    total += spec.size_bytes();
  auto parts = static_cast<std::uint32_t>(total / part_bytes + 1);
  auto plan = plan_chunks(specs, parts);
  auto temporary = directory / temporary_name({state.content.run, state.content.step, state.content.generation, 1});
  auto reports = std::vector<part_report>{};
  for (std::uint32_t part = 0; part < parts; ++part) {
    for (const auto& chunk : plan.chunks_of(part))
      TROUPE_TRY(state.fetch(chunk));
    TROUPE_TRY(auto report, write_part(temporary, part, plan, state.tensors));
    reports.push_back(std::move(report));
    for (const auto& chunk : plan.chunks_of(part))
      state.release(chunk);
  }
  TROUPE_TRY(add_parts(state.content, specs, plan, reports));
  return commit_checkpoint(directory, temporary, state.content);
}

expected<void> check_written(const fs::path& made, const fs::path& source, const std::string& expected_sha256) {
  TROUPE_TRY(auto stored, checkpoint::open(made));
  TROUPE_TRY(stored.verify(read_back::from_device));
  if (expected_sha256.empty())
    return {};
  TROUPE_TRY(auto sha256, state_sha256(stored));
  if (sha256 != expected_sha256)
    return fail(errc::mismatch,
                fmt::format("{} does not hold the state that was exported (SHA-256 {}, exported {}): it is damaged, or "
                            "was changed since; export it again, or accept the change (--changed)",
                            source.string(), sha256, quote_for_log(expected_sha256)));
  return {};
}

/// Writes the checkpoint in a temporary directory, verifies it, and renames it to `target`.
expected<checkpoint> commit_import(const fs::path& source, const fs::path& target, incoming_state state) {
  TROUPE_TRY(auto where, make_directory_beside(target));
  TROUPE_TRY(auto made, write_checkpoint(where.path(), state));
  TROUPE_TRY(check_written(made, source, state.expected_sha256));
  TROUPE_TRY(rename_to_target(made, target, existing_file::keep));
  TROUPE_TRY(local_files().sync_directory(target.parent_path()));
  return checkpoint::open(target);
}

manifest manifest_of_foreign_file(const import_options& options) {
  auto result = manifest{};
  result.run.value = random_hex(16);
  result.step = options.step;
  result.created = options.created;
  return result;
}

expected<manifest> manifest_of(const safetensors_file& source, const import_options& options) {
  const auto& metadata = source.metadata();
  if (is_exported(metadata))
    return from_metadata(metadata);
  auto result = manifest_of_foreign_file(options);
  if (!metadata.empty())
    result.attachments["safetensors"] = nlohmann::json(metadata).dump();
  return result;
}

/// The indices of a file's tensors in the order in which the checkpoint lists them.
expected<std::vector<std::size_t>> import_order(const safetensors_file& source) {
  TROUPE_TRY(auto names, tracked_order(source.metadata()));
  auto index_by_name = std::map<std::string_view, std::size_t>{};
  for (std::size_t i = 0; i < source.tensors().size(); ++i)
    index_by_name.emplace(source.tensors()[i].spec.name, i);
  auto result = std::vector<std::size_t>{};
  auto take = [&](std::string_view name) {
    if (auto found = index_by_name.find(name); found != index_by_name.end()) {
      result.push_back(found->second);
      index_by_name.erase(found);
    }
  };
  // Tensors that were added or removed since are not an error here: the state's digest detects the change.
  for (const auto& name : names)
    take(name);
  for (const auto& entry : source.tensors())
    take(entry.spec.name);
  return result;
}

expected<checkpoint> import_safetensors(const fs::path& path, const fs::path& target, const import_options& options) {
  TROUPE_TRY(auto source, safetensors_file::open(path));
  auto state = incoming_state{};
  auto content = manifest_of(source, options);
  if (!content)
    return fail(of_file(path, std::move(content.error())));
  state.content = std::move(*content);
  if (auto found = source.metadata().find(std::string{exported_state_key});
      found != source.metadata().end() && options.changed == changed_state::refuse)
    state.expected_sha256 = found->second;
  auto order = import_order(source);
  if (!order)
    return fail(of_file(path, std::move(order.error())));
  auto begins = std::vector<std::uint64_t>{};
  auto total = std::uint64_t{0};
  for (auto i : *order) {
    begins.push_back(total);
    total += round_up_to_page(source.tensors()[i].spec.size_bytes());
  }
  auto memory = reserved_memory::make(total);
  if (!memory)
    return fail(of_file(path, std::move(memory.error())));
  for (std::size_t i = 0; i < order->size(); ++i)
    state.tensors.push_back({source.tensors()[(*order)[i]].spec, memory->data() + begins[i]});
  auto place_of = [&](const planned_chunk& chunk) {
    return memory->data() + begins[chunk.tensor] + chunk.tensor_offset_bytes;
  };
  state.fetch = [&](const planned_chunk& chunk) {
    if (options.progress)
      options.progress(chunk.length_bytes);
    return source.read((*order)[chunk.tensor], chunk.tensor_offset_bytes, {place_of(chunk), chunk.length_bytes});
  };
  state.release = [&](const planned_chunk& chunk) { memory->drop(place_of(chunk), chunk.length_bytes); };
  return commit_import(path, target, std::move(state));
}

expected<checkpoint> import_npy(const fs::path& path, const fs::path& target, const import_options& options) {
  TROUPE_TRY(auto array, read_npy(path));
  array.spec.name = options.tensor.empty() ? path.stem().string() : options.tensor;
  if (options.progress)
    options.progress(array.bytes.size());
  auto state = incoming_state{};
  state.content = manifest_of_foreign_file(options);
  state.tensors.push_back({array.spec, array.bytes.data()});
  state.fetch = [](const planned_chunk&) { return expected<void>{}; };
  state.release = [](const planned_chunk&) {};
  return commit_import(path, target, std::move(state));
}

expected<bool> begins_as_npy(const fs::path& path) {
  TROUPE_TRY(auto opened, open_sized(path));
  auto text = std::string(std::min<std::uint64_t>(opened.size_bytes, 6), '\0');
  TROUPE_TRY(opened.source->read_at(0, std::as_writable_bytes(std::span{text})));
  return text == "\x93NUMPY";
}

} // namespace

expected<void> export_safetensors(const checkpoint& source, const fs::path& target, existing_file existing,
                                  const byte_counter& progress) {
  TROUPE_TRY(auto sha256, state_sha256(source));
  auto metadata = to_metadata(source.content());
  metadata.emplace(exported_state_key, sha256);
  auto specs = std::vector<tensor_spec>{};
  for (const auto& tensor : source.content().tensors)
    specs.push_back(tensor.spec);
  auto read = [&](std::size_t index, const byte_sink& sink) {
    return source.read_chunks(index, counted(sink, progress));
  };
  return write_safetensors(target, specs, metadata, read, existing);
}

expected<void> export_npy(const checkpoint& source, std::string_view tensor, const fs::path& target,
                          existing_file existing, const byte_counter& progress) {
  auto index = source.find(tensor);
  if (!index)
    return fail(errc::not_found,
                fmt::format("{} holds no tensor {}", source.directory().string(), quote_for_log(tensor)));
  auto read = [&](const byte_sink& sink) { return source.read_chunks(*index, counted(sink, progress)); };
  return write_npy(target, source.content().tensors[*index].spec, read, existing);
}

expected<checkpoint> import_checkpoint(const fs::path& source, const fs::path& target, const import_options& options) {
  // "a/b/" has an empty file name; its parent path "a/b" is the directory to create.
  auto place = target.has_filename() ? target : target.parent_path();
  auto code = std::error_code{};
  if (fs::exists(fs::symlink_status(place, code)))
    return fail(errc::already_exists, fmt::format("{} exists: choose another name, or remove it", place.string()));
  TROUPE_TRY(auto is_npy, begins_as_npy(source));
  if (is_npy)
    return import_npy(source, place, options);
  if (!options.tensor.empty())
    return fail(errc::invalid_argument, fmt::format("{} is not an NPY file, and its tensors have names: leave out the "
                                                    "name {}",
                                                    source.string(), quote_for_log(options.tensor)));
  return import_safetensors(source, place, options);
}

} // namespace troupe::serialization
