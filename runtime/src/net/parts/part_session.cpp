#include "net/parts/part_session.hpp"

#include "net/parts/part_messages.hpp"

#include <troupe/serialization/checkpoint/directory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace troupe::runtime {

namespace {

using collectives::unique_fd;
using nlohmann::json;

/// How much is read or written between checks of the stop token and of the device.
constexpr std::size_t piece_bytes = std::size_t{1} << 20;

} // namespace

bool part_session::answer_next(piece_buffer& buffer) {
  auto request = stream_.read_text(text_limit_bytes);
  if (!request)
    return false;
  auto done = expected<void>{};
  try {
    done = answer(*request, buffer);
  } catch (const std::exception& x) {
    done = fail(errc::invalid_argument, fmt::format("cannot parse the request: {}", x.what()));
  }
  if (!done)
    (void)stream_.write_text(describe(done.error()));
  return done.has_value();
}

expected<void> part_session::answer(const json& request, piece_buffer& buffer) {
  if (request.contains("put"))
    return answer_put(request.at("put"), buffer);
  if (request.contains("get"))
    return answer_get(request.at("get"), buffer);
  return fail(errc::invalid_argument, "the request is neither put nor get");
}

expected<void> part_session::answer_put(const json& head, piece_buffer& buffer) {
  auto rank = head.at("rank").get<std::uint32_t>();
  auto world_size = head.at("world_size").get<std::uint32_t>();
  if (world_size == 0 || rank >= world_size)
    return fail(errc::invalid_argument, fmt::format("rank {} is not below the world size {}", rank, world_size));
  auto plan = serialization::plan_chunks(parse_tensors(head.at("tensors")), world_size);
  auto directory =
      checkpoints_ / serialization::temporary_name(
                         {run_, step_id{head.at("step")}, generation_id{head.at("generation")}, head.at("attempt")});
  TROUPE_TRY(auto writer, serialization::part_writer::create(directory, rank, plan));
  auto report = receive(writer, buffer);
  if (!report) {
    // No one else refers to the incomplete part.
    auto ignored = std::error_code{};
    std::filesystem::remove(directory / serialization::part_file_name(rank), ignored);
    std::filesystem::remove(directory, ignored);
    return fail(std::move(report.error()));
  }
  return stream_.write_text({{"report", describe(*report)}});
}

expected<serialization::part_report> part_session::receive(serialization::part_writer& writer, piece_buffer& buffer) {
  TROUPE_TRY(stream_.write_text(json::object()));
  buffer.resize(piece_bytes);
  auto written = expected<void>{};
  for (auto left = writer.missing_bytes(); left > 0;) {
    auto piece = std::span{buffer}.first(std::min<std::uint64_t>(left, buffer.size()));
    TROUPE_TRY(stream_.read(piece));
    left -= piece.size();
    // Reported to the worker after it has sent everything.
    if (written)
      written = writer.write(piece);
  }
  TROUPE_TRY(auto sums, stream_.read_text(text_limit_bytes));
  if (!written)
    return fail(std::move(written.error()));
  auto report = writer.finish();
  if (!report)
    return report;
  const auto& theirs = sums.at("chunks");
  for (std::size_t i = 0; i < report->chunks.size(); ++i)
    if (i >= theirs.size() || theirs[i].get<std::uint64_t>() != report->chunks[i].xxh3)
      return fail(
          errc::damaged,
          fmt::format("chunk {} of {} differs from what the worker sent: it was damaged in transit", i, report->file));
  return report;
}

expected<void> part_session::answer_get(const json& head, piece_buffer& buffer) {
  auto source = lent_();
  if (!source)
    return fail(errc::not_found, "the driver lends no checkpoint");
  auto name = head.at("file").get<std::string>();
  const auto& parts = source->content().parts;
  auto is_part = std::ranges::any_of(parts, [&](const auto& x) { return x.name == name; });
  if (!is_part && name != serialization::manifest_file_name)
    return fail(errc::not_found, fmt::format("the checkpoint has no file {}", name));
  auto path = source->directory() / name;
  auto file = unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0)
    return fail(errc::io_error, fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)));
  auto offset = head.at("offset").get<std::uint64_t>();
  auto size = head.at("size").get<std::uint64_t>();
  auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  if (size == 0 && offset == 0)
    size = file_bytes;
  if (offset > file_bytes || size > file_bytes - offset)
    return fail(errc::damaged, fmt::format("{} has only {} bytes; {} were requested from offset {}", path.string(),
                                           file_bytes, size, offset));
  TROUPE_TRY(stream_.write_text({{"size", size}}));
  buffer.resize(piece_bytes);
  while (size > 0) {
    auto piece = std::span{buffer}.first(std::min<std::uint64_t>(size, buffer.size()));
    auto taken = ::pread(file.get(), piece.data(), piece.size(), static_cast<off_t>(offset));
    if (taken <= 0)
      // The worker sees the connection end before it has all bytes.
      return fail(errc::io_error, fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
    TROUPE_TRY(stream_.write(piece.first(static_cast<std::size_t>(taken))));
    offset += static_cast<std::uint64_t>(taken);
    size -= static_cast<std::uint64_t>(taken);
  }
  return {};
}

} // namespace troupe::runtime
