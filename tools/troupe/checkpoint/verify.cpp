#include "commands.hpp"
#include "locate.hpp"
#include "text.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <unistd.h>
#include <utility>

namespace troupe::tool {

namespace fs = std::filesystem;

namespace {

struct verdict {
  fs::path path;
  std::uint64_t bytes = 0;
  std::size_t tensors = 0;
  /// The first damage of each tensor and part.
  std::vector<error> damages;
};

/// Drops a file from the page cache, whose content proves nothing about the device.
void drop_cached(const fs::path& path) {
  auto descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return;
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  ::close(descriptor);
}

/// The byte ranges of a part that belong to no chunk.
std::vector<std::pair<std::uint64_t, std::uint64_t>> gaps_of(const serialization::manifest& content,
                                                             std::uint32_t part) {
  auto covered = std::vector<std::pair<std::uint64_t, std::uint64_t>>{};
  for (const auto& tensor : content.tensors)
    for (const auto& chunk : tensor.chunks)
      if (chunk.part == part)
        covered.emplace_back(chunk.offset_bytes, chunk.offset_bytes + chunk.length_bytes);
  covered.emplace_back(content.parts[part].size_bytes, content.parts[part].size_bytes);
  std::ranges::sort(covered);
  auto result = std::vector<std::pair<std::uint64_t, std::uint64_t>>{};
  auto end = std::uint64_t{0};
  for (auto [first, last] : covered) {
    if (first > end)
      result.emplace_back(end, first);
    end = std::max(end, last);
  }
  return result;
}

/// Checks that the padding between chunks is zero.
expected<void> verify_padding(const serialization::checkpoint& stored, std::uint32_t part) {
  auto path = stored.directory() / stored.content().parts[part].name;
  auto in = std::ifstream{path, std::ios::binary};
  auto buffer = std::vector<char>(1 << 16);
  for (auto [first, last] : gaps_of(stored.content(), part)) {
    in.seekg(static_cast<std::streamoff>(first));
    while (first < last) {
      auto size = std::min<std::uint64_t>(buffer.size(), last - first);
      if (!in.read(buffer.data(), static_cast<std::streamsize>(size)))
        return fail(errc::io_error, fmt::format("cannot read {} at offset {}", path.string(), first));
      auto end = buffer.begin() + static_cast<std::ptrdiff_t>(size);
      if (auto bad = std::find_if(buffer.begin(), end, [](char c) { return c != 0; }); bad != end)
        return fail(errc::damaged, fmt::format("{} is damaged: the padding at offset {} is not zero", path.string(),
                                               first + static_cast<std::uint64_t>(bad - buffer.begin())));
      first += size;
    }
  }
  return {};
}

verdict verify_one(const fs::path& path) {
  auto result = verdict{path, 0, 0, {}};
  auto opened = serialization::checkpoint::open(path);
  if (!opened) {
    result.damages.push_back(opened.error());
    return result;
  }
  const auto& content = opened->content();
  for (const auto& part : content.parts)
    drop_cached(path / part.name);
  result.bytes = tensor_bytes(content);
  result.tensors = content.tensors.size();
  auto progress = progress_line{fmt::format("verifying {}", path.filename().string()), result.bytes};
  for (std::size_t i = 0; i < content.tensors.size(); ++i)
    if (auto read = opened->read_chunks(i, [&](std::span<const std::byte> bytes) { progress.add(bytes.size()); });
        !read)
      result.damages.push_back(read.error());
  for (std::uint32_t part = 0; part < content.parts.size(); ++part)
    if (auto good = verify_padding(*opened, part); !good)
      result.damages.push_back(good.error());
  return result;
}

json described(const verdict& one) {
  auto damages = json::array();
  for (const auto& reason : one.damages)
    damages.push_back(reason.message);
  return {{"path", one.path.string()},
          {"state", one.damages.empty() ? "good" : "damaged"},
          {"tensors", one.tensors},
          {"bytes", one.bytes},
          {"damages", damages}};
}

void print(const verdict& one) {
  auto name = printable(one.path.filename().string());
  if (one.damages.empty())
    std::printf("%s: good (%zu tensors, %s)\n", name.c_str(), one.tensors, bytes_text(one.bytes).c_str());
  for (const auto& reason : one.damages)
    std::printf("%s: %s\n", name.c_str(), printable(reason.message).c_str());
  std::fflush(stdout);
}

} // namespace

int verify(const verify_arguments& given) {
  auto paths = std::vector<fs::path>{};
  if (given.step) {
    auto one = locate_one(given.path, given.step);
    if (!one)
      return complain(one.error());
    paths.push_back(*one);
  } else {
    auto where = locate(given.path);
    if (!where)
      return complain(where.error());
    if (where->checkpoints.empty())
      return complain({errc::not_found, fmt::format("there is no checkpoint in {}", where->directory.string())});
    paths = where->checkpoints;
  }
  auto document = json::array();
  auto code = exit_good;
  for (const auto& path : paths) {
    auto one = verify_one(path);
    document.push_back(described(one));
    if (given.output == output_format::text)
      print(one);
    // An unreadable device and a newer version are failures, not damage.
    for (const auto& reason : one.damages)
      code = std::max(code, exit_code_of(reason.code));
  }
  if (given.output == output_format::json)
    print_json({{"checkpoints", document}});
  return code;
}

} // namespace troupe::tool
