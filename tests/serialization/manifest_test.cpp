#include <troupe/serialization/checkpoint/manifest.hpp>
#include <troupe/serialization/files/digest.hpp>

#include "scratch.hpp"

#include <built.hpp>
#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <cstring>

using namespace troupe;
using namespace troupe::serialization;

namespace {

manifest full_manifest() {
  auto result = sample_manifest();
  result.parts = {{"part-0000.bin", 12288}, {"own-chunk.bin", 4096}};
  auto types = {dtype::f32, dtype::f64, dtype::f16,     dtype::bf16, dtype::i32, dtype::i64, dtype::u8,
                dtype::i8,  dtype::i16, dtype::boolean, dtype::u16,  dtype::u32, dtype::u64};
  for (auto type : types)
    result.tensors.push_back({{std::string{to_string(type)}, type, {0, 3}}, {}});
  result.tensors.push_back({{"w", dtype::f32, {2, 1025}}, {{0, 4096, 8192, 0xffffffffffffffff}, {1, 0, 8, 3}}});
  result.tensors.push_back({{"shared", dtype::u8, {8}}, {{1, 0, 8, 3}}});
  return result;
}

/// The frame's bytes around `message`, checksum included.
std::string framed(const std::string& message, std::uint32_t version) {
  auto head = std::string{"TRPSNAP\n"};
  head.append(reinterpret_cast<const char*>(&version), 4);
  head.append(4, '\0');
  auto length = std::uint64_t{message.size()};
  head.append(reinterpret_cast<const char*>(&length), 8);
  auto checksum = xxh3(bytes_of(head + message));
  head.append(reinterpret_cast<const char*>(&checksum), 8);
  return head + message;
}

/// What a shell command prints, and whether it succeeded.
std::pair<std::string, bool> output_of(const std::string& command) {
  auto* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe);
  auto result = std::string{};
  auto buffer = std::array<char, 4096>{};
  while (auto size = std::fread(buffer.data(), 1, buffer.size(), pipe))
    result.append(buffer.data(), size);
  return {result, ::pclose(pipe) == 0};
}

errc code_of(const expected<manifest>& result) {
  return result ? errc::none : result.error().code;
}

} // namespace

TEST_CASE("a manifest is read back with every field") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "manifest.snapshot";
  auto written = full_manifest();
  REQUIRE(write_manifest(path, written));
  auto read = read_manifest(path);
  REQUIRE(read);
  CHECK(*read == written);
}

TEST_CASE("an empty manifest is read back") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "manifest.snapshot";
  REQUIRE(write_manifest(path, {}));
  auto read = read_manifest(path);
  REQUIRE(read);
  CHECK(*read == manifest{});
}

TEST_CASE("every flipped bit of a manifest is damage") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "manifest.snapshot";
  REQUIRE(write_manifest(path, full_manifest()));
  auto good = read_file(path);
  for (std::size_t offset = 0; offset < good.size(); offset += offset < 40 ? 1 : 29) {
    CAPTURE(offset);
    auto bad = good;
    bad[offset] = static_cast<char>(bad[offset] ^ 1);
    overwrite_file(path, bad);
    CHECK(code_of(read_manifest(path)) == errc::damaged);
  }
}

TEST_CASE("a truncated or extended manifest is damaged") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "manifest.snapshot";
  REQUIRE(write_manifest(path, full_manifest()));
  auto good = read_file(path);
  for (auto size : {std::size_t{0}, std::size_t{31}, std::size_t{32}, good.size() - 1}) {
    overwrite_file(path, good.substr(0, size));
    CHECK(code_of(read_manifest(path)) == errc::damaged);
  }
  overwrite_file(path, good + '\0');
  CHECK(code_of(read_manifest(path)) == errc::damaged);
}

TEST_CASE("a manifest of a newer version is refused with both versions") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "manifest.snapshot";
  overwrite_file(path, framed("whatever version 9 holds", 9));
  auto read = read_manifest(path);
  REQUIRE_FALSE(read);
  CHECK(read.error().code == errc::unsupported_version);
  CHECK(read.error().message.find("version 9") != std::string::npos);
  CHECK(read.error().message.find("up to 1") != std::string::npos);
}

TEST_CASE("a message with a valid checksum that cannot be parsed is damaged") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "manifest.snapshot";
  for (const auto& message : {std::string{}, std::string{"odd"}, std::string(8, '\xff'), std::string(64, '\x7f')}) {
    overwrite_file(path, framed(message, 1));
    auto read = read_manifest(path);
    CHECK(code_of(read) == errc::damaged);
  }
}

TEST_CASE("a missing manifest is not found") {
  auto scratch = scratch_directory{};
  CHECK(code_of(read_manifest(scratch.path() / "absent")) == errc::not_found);
}

TEST_CASE("an inconsistent manifest is not written") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "manifest.snapshot";
  auto refused = [&](auto change) {
    auto content = full_manifest();
    change(content);
    auto written = write_manifest(path, content);
    return !written && written.error().code == errc::invalid_argument && !std::filesystem::exists(path);
  };
  CHECK(refused([](manifest& x) { x.parts[1].name = x.parts[0].name; }));
  CHECK(refused([](manifest& x) { x.parts[1].name = "../elsewhere"; }));
  CHECK(refused([](manifest& x) { x.parts[1].name = ".."; }));
  CHECK(refused([](manifest& x) { x.parts[1].name = ""; }));
  CHECK(refused([](manifest& x) { x.parts[1].name = "manifest.snapshot"; }));
  CHECK(refused([](manifest& x) { x.parts[1].size_bytes = 7; }));
  CHECK(refused([](manifest& x) { x.tensors[1].spec.name = x.tensors[0].spec.name; }));
  CHECK(refused([](manifest& x) { x.tensors.back().spec.shape = {9}; }));
  CHECK(refused([](manifest& x) { x.tensors.back().spec.shape = {1ull << 62, 1ull << 62}; }));
  CHECK(refused([](manifest& x) { x.tensors.back().spec.type = dtype{0}; }));
  CHECK(refused([](manifest& x) { x.tensors.back().spec.type = dtype{200}; }));
  CHECK(refused([](manifest& x) { x.tensors.back().chunks[0].part = 2; }));
  CHECK(refused([](manifest& x) { x.tensors.back().chunks[0].offset_bytes = 8; }));
  CHECK(refused([](manifest& x) { x.tensors.back().chunks[0].offset_bytes = 0xfffffffffffff000; }));
  CHECK(refused([](manifest& x) { x.tensors.back().chunks[0].length_bytes = 0; }));
}

TEST_CASE("a manifest near the limit is read, one beyond it is not written") {
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "manifest.snapshot";
  auto content = manifest{};
  content.values_json = std::string(max_manifest_bytes - 4096, 'v');
  REQUIRE(write_manifest(path, content));
  auto read = read_manifest(path);
  REQUIRE(read);
  CHECK(*read == content);
  content.attachments["more"] = std::string(8192, 'v');
  auto written = write_manifest(path, content);
  REQUIRE_FALSE(written);
  CHECK(written.error().code == errc::invalid_argument);
  CHECK(written.error().message.find("tensors") != std::string::npos);
}

TEST_CASE("Cap'n Proto's own tool prints a manifest") {
  if (!output_of("capnp --version 2>/dev/null").second) {
    std::puts("SKIP: the capnp tool is not installed");
    return;
  }
  auto scratch = scratch_directory{};
  auto path = scratch.path() / "manifest.snapshot";
  REQUIRE(write_manifest(path, full_manifest()));
  auto [text, success] = output_of("tail -c +33 '" + path.string() + "' | capnp decode '" +
                                   testing::sources("serialization/schema/snapshot.capnp") + "' Snapshot");
  CHECK(success);
  CHECK(text.find("runId = \"0123456789abcdef0123456789abcdef\"") != std::string::npos);
  CHECK(text.find("globalBatch = 5000000000") != std::string::npos);
  CHECK(text.find("dtype = bf16") != std::string::npos);
  CHECK(text.find("shape = [2, 1025]") != std::string::npos);
  CHECK(text.find("file = \"own-chunk.bin\"") != std::string::npos);
}
