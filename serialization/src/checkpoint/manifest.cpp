#include <troupe/serialization/checkpoint/manifest.hpp>

#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include "checkpoint/manifest_flaw.hpp"
#include "files/sized_file.hpp"
#include "snapshot.capnp.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <cstring>
#include <fmt/format.h>
#include <kj/exception.h>
#include <span>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

// A frame precedes the message: see schema/snapshot.capnp.
constexpr std::string_view magic = "TRPSNAP\n";
constexpr std::size_t version_offset = 8;
constexpr std::size_t length_offset = 16;
constexpr std::size_t checksum_offset = 24;
constexpr std::size_t frame_bytes = 32;

template <class T>
void put(std::span<std::byte> target, std::size_t offset, T value) {
  std::memcpy(target.data() + offset, &value, sizeof(value));
}

template <class T>
T get(std::span<const std::byte> source, std::size_t offset) {
  auto result = T{};
  std::memcpy(&result, source.data() + offset, sizeof(result));
  return result;
}

std::uint64_t checksum_of(std::span<const std::byte> framed) {
  auto checksum = xxh3_stream{};
  checksum.update(framed.first(checksum_offset));
  checksum.update(framed.subspan(frame_bytes));
  return checksum.digest();
}

std::vector<std::byte> frame(std::span<const std::byte> message) {
  auto result = std::vector<std::byte>(frame_bytes + message.size());
  std::memcpy(result.data(), magic.data(), magic.size());
  put(result, version_offset, snapshot_format_version);
  put(result, length_offset, std::uint64_t{message.size()});
  std::memcpy(result.data() + frame_bytes, message.data(), message.size());
  put(result, checksum_offset, checksum_of(result));
  return result;
}

tl::unexpected<error> damaged(const fs::path& path, const std::string& what) {
  return fail(errc::damaged, fmt::format("{} is damaged: {}; use another checkpoint", path.string(), what));
}

/// Returns the message in a frame.
expected<std::span<const std::byte>> unframe(std::span<const std::byte> framed, const fs::path& path) {
  if (framed.size() < frame_bytes)
    return damaged(path, fmt::format("it has only {} bytes", framed.size()));
  if (std::memcmp(framed.data(), magic.data(), magic.size()) != 0)
    return damaged(path, "it does not begin like a manifest");
  auto length = get<std::uint64_t>(framed, length_offset);
  if (length != framed.size() - frame_bytes)
    return damaged(path,
                   fmt::format("it announces a message of {} bytes and holds {}", length, framed.size() - frame_bytes));
  if (get<std::uint64_t>(framed, checksum_offset) != checksum_of(framed))
    return damaged(path, "its checksum differs");
  auto version = get<std::uint32_t>(framed, version_offset);
  if (version == 0 || version > snapshot_format_version)
    return fail(errc::unsupported_version,
                fmt::format("{} has format version {}, this build reads versions up to {}: use a newer build",
                            path.string(), version, snapshot_format_version));
  return framed.subspan(frame_bytes);
}

expected<std::vector<std::byte>> read_whole(const fs::path& path, file_system& files, read_back from) {
  TROUPE_TRY(auto opened, open_sized(path, files));
  const auto& [source, size] = opened;
  if (from == read_back::from_device)
    source->drop_cached();
  if (size > frame_bytes + max_manifest_bytes)
    return damaged(path, fmt::format("it has {} bytes, more than any manifest", size));
  auto result = std::vector<std::byte>(size);
  TROUPE_TRY(source->read_at(0, result));
  return result;
}

capnp::Text::Reader text(const std::string& value) {
  return {value.c_str(), value.size()};
}

void put_tensor(schema::Tensor::Builder target, const stored_tensor& tensor) {
  target.setName(text(tensor.spec.name));
  target.setDtype(static_cast<schema::DType>(tensor.spec.type));
  auto shape = target.initShape(static_cast<unsigned>(tensor.spec.shape.size()));
  for (unsigned i = 0; i < shape.size(); ++i)
    shape.set(i, tensor.spec.shape[i]);
  auto chunks = target.initChunks(static_cast<unsigned>(tensor.chunks.size()));
  for (unsigned i = 0; i < chunks.size(); ++i) {
    chunks[i].setPart(tensor.chunks[i].part);
    chunks[i].setOffset(tensor.chunks[i].offset_bytes);
    chunks[i].setLength(tensor.chunks[i].length_bytes);
    chunks[i].setXxh3(tensor.chunks[i].xxh3);
  }
}

void put_scalars(schema::Snapshot::Builder target, const manifest& content) {
  target.setFormatVersion(snapshot_format_version);
  target.setRunId(text(content.run.value));
  target.setStep(content.step.value);
  target.setGeneration(content.generation.value);
  target.setSeed(content.seed);
  target.setShards(content.shards);
  target.setGlobalBatch(content.global_batch);
  target.setTreeVersion(content.tree_version);
  target.setProgramBuildId(text(content.program_build_id));
  target.setConfigurationJson(text(content.configuration_json));
  target.setConfigurationDigest(text(content.configuration_digest));
  target.setEarlierProgramsJson(text(content.earlier_programs_json));
  target.setDataFingerprint(text(content.data_fingerprint));
  target.setNumericsFingerprintJson(text(content.numerics_fingerprint_json));
  target.setValuesJson(text(content.values_json));
  target.setWorldSize(content.world_size);
  target.setFinishesRun(content.finishes_run);
  target.setCreatedUnixMs(content.created.time_since_epoch().count());
}

void put_lists(schema::Snapshot::Builder target, const manifest& content) {
  unsigned i = 0;
  auto metrics = target.initMetrics(static_cast<unsigned>(content.metrics.size()));
  for (const auto& [name, value] : content.metrics) {
    metrics[i].setName(text(name));
    metrics[i++].setValue(value);
  }
  i = 0;
  auto parts = target.initParts(static_cast<unsigned>(content.parts.size()));
  for (const auto& part : content.parts) {
    parts[i].setFile(text(part.name));
    parts[i++].setSizeBytes(part.size_bytes);
  }
  i = 0;
  auto tensors = target.initTensors(static_cast<unsigned>(content.tensors.size()));
  for (const auto& tensor : content.tensors)
    put_tensor(tensors[i++], tensor);
  i = 0;
  auto attachments = target.initAttachments(static_cast<unsigned>(content.attachments.size()));
  for (const auto& [name, json] : content.attachments) {
    attachments[i].setName(text(name));
    attachments[i++].setJson(text(json));
  }
}

std::string string_of(capnp::Text::Reader value) {
  return {value.begin(), value.size()};
}

/// A dtype's number; the invalid 0 if it does not fit.
dtype dtype_of_number(schema::DType value) {
  auto number = static_cast<std::uint16_t>(value);
  return static_cast<dtype>(number <= 0xff ? static_cast<std::uint8_t>(number) : std::uint8_t{0});
}

stored_tensor get_tensor(schema::Tensor::Reader source) {
  auto result = stored_tensor{{string_of(source.getName()), dtype_of_number(source.getDtype()), {}}, {}};
  for (auto dimension : source.getShape())
    result.spec.shape.push_back(dimension);
  for (auto chunk : source.getChunks())
    result.chunks.push_back({chunk.getPart(), chunk.getOffset(), chunk.getLength(), chunk.getXxh3()});
  return result;
}

void get_scalars(manifest& target, schema::Snapshot::Reader source) {
  target.run.value = string_of(source.getRunId());
  target.step.value = source.getStep();
  target.generation.value = source.getGeneration();
  target.seed = source.getSeed();
  target.shards = source.getShards();
  target.global_batch = source.getGlobalBatch();
  target.tree_version = source.getTreeVersion();
  target.program_build_id = string_of(source.getProgramBuildId());
  target.configuration_json = string_of(source.getConfigurationJson());
  target.configuration_digest = string_of(source.getConfigurationDigest());
  target.earlier_programs_json = string_of(source.getEarlierProgramsJson());
  target.data_fingerprint = string_of(source.getDataFingerprint());
  target.numerics_fingerprint_json = string_of(source.getNumericsFingerprintJson());
  target.values_json = string_of(source.getValuesJson());
  target.world_size = source.getWorldSize();
  target.finishes_run = source.getFinishesRun();
  target.created =
      std::chrono::sys_time<std::chrono::milliseconds>{std::chrono::milliseconds{source.getCreatedUnixMs()}};
}

void get_lists(manifest& target, schema::Snapshot::Reader source) {
  for (auto metric : source.getMetrics())
    target.metrics.insert_or_assign(string_of(metric.getName()), metric.getValue());
  for (auto part : source.getParts())
    target.parts.push_back({string_of(part.getFile()), part.getSizeBytes()});
  for (auto tensor : source.getTensors())
    target.tensors.push_back(get_tensor(tensor));
  for (auto attachment : source.getAttachments())
    target.attachments.insert_or_assign(string_of(attachment.getName()), string_of(attachment.getJson()));
}

expected<manifest> parse(std::span<const std::byte> message, const fs::path& path) {
  if (message.size() % sizeof(capnp::word) != 0)
    return damaged(path, "its message is not a whole number of words");
  // The frame keeps the message on a word boundary.
  auto words = kj::arrayPtr(reinterpret_cast<const capnp::word*>(message.data()), message.size() / sizeof(capnp::word));
  try {
    auto reader = capnp::FlatArrayMessageReader{words};
    auto root = reader.getRoot<schema::Snapshot>();
    auto result = manifest{};
    get_scalars(result, root);
    get_lists(result, root);
    return result;
  } catch (const kj::Exception& reason) {
    return damaged(path, fmt::format("its message cannot be parsed: {}", reason.getDescription().cStr()));
  }
}

} // namespace

expected<void> write_manifest(const fs::path& path, const manifest& content, file_system& files) {
  if (auto flaw = find_flaw(content))
    return fail(errc::invalid_argument, fmt::format("{} is not written: {}", path.string(), *flaw));
  auto builder = capnp::MallocMessageBuilder{};
  auto root = builder.initRoot<schema::Snapshot>();
  put_scalars(root, content);
  put_lists(root, content);
  auto words = capnp::messageToFlatArray(builder);
  auto message = std::as_bytes(std::span{words.begin(), words.size()});
  if (message.size() > max_manifest_bytes)
    return fail(errc::invalid_argument,
                fmt::format("{} is not written: it would have {} bytes, the limit is {}; keep large values in tensors",
                            path.string(), message.size(), max_manifest_bytes));
  auto framed = frame(message);
  return write_file_durably(path, {reinterpret_cast<const char*>(framed.data()), framed.size()}, files);
}

expected<manifest> read_manifest(const fs::path& path, file_system& files, read_back source) {
  TROUPE_TRY(auto framed, read_whole(path, files, source));
  return parse_manifest(framed, path);
}

expected<manifest> parse_manifest(std::span<const std::byte> bytes, const fs::path& path) {
  TROUPE_TRY(auto message, unframe(bytes, path));
  auto result = parse(message, path);
  if (!result)
    return result;
  if (auto flaw = find_flaw(*result))
    return damaged(path, *flaw);
  return result;
}

} // namespace troupe::serialization
