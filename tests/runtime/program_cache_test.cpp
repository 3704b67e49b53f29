#include "programs/program_cache.hpp"

#include <processes.hpp>
#include <scratch_directory.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;
using testing::scratch_directory;

/// A script of this many bytes that is unlike others with another text.
std::string script(const std::string& text, std::size_t size) {
  auto result = "#!/bin/sh\necho " + text + "\n#";
  result.resize(size, 'x');
  return result;
}

class cache_of_a_node {
 public:
  static constexpr std::size_t limit = 10'000;
  scratch_directory scratch;
  program_cache cache{limit};

  cache_of_a_node() { cache.open(directory()); }

  [[nodiscard]] fs::path directory() const { return scratch.path() / "programs"; }

  /// What the program with this content is called.
  [[nodiscard]] std::string build_id_of(const std::string& content) const {
    const auto path = scratch.path() / "sample";
    std::ofstream{path, std::ios::binary} << content;
    fs::permissions(path, fs::perms::owner_all);
    return value_or_throw(program_file::open(path.string())).identity().build_id;
  }

  expected<void> send(const std::string& content, const std::string& name = "program") {
    TROUPE_TRY(const auto upload, cache.begin(build_id_of(content), name, content.size()));
    for (std::size_t done = 0; done < content.size(); done += 1'000)
      TROUPE_TRY(cache.write(upload, done, std::string_view{content}.substr(done, 1'000)));
    return cache.finish(upload, serialization::sha256_hex(serialization::bytes_of(content)));
  }

  [[nodiscard]] bool has(const std::string& content) { return cache.find(build_id_of(content)).has_value(); }

  [[nodiscard]] std::size_t files() const {
    std::size_t result = 0;
    for (const auto& each : fs::recursive_directory_iterator{directory()})
      result += each.is_regular_file() ? 1 : 0;
    return result;
  }
};

} // namespace

TEST_CASE_FIXTURE(cache_of_a_node, "a program that was sent in pieces is found by its build id, and can be executed") {
  const auto content = testing::read_file("/bin/true");
  program_cache large{content.size() * 2};
  large.open(directory());
  const auto id = build_id_of(content);
  CHECK(large.find(id).error().code == errc::not_found);
  const auto upload = large.begin(id, "true", content.size());
  REQUIRE(upload);
  const auto half = content.size() / 2;
  REQUIRE(large.write(*upload, 0, std::string_view{content}.substr(0, half)));
  CHECK(large.find(id).error().code == errc::not_found);
  REQUIRE(large.write(*upload, half, std::string_view{content}.substr(half)));
  REQUIRE(large.finish(*upload, serialization::sha256_hex(serialization::bytes_of(content))));
  const auto found = large.find(id);
  REQUIRE(found);
  CHECK(found->identity().build_id == id);
  CHECK(fs::path{found->identity().path}.filename() == "true");
  CHECK((fs::status(found->identity().path).permissions() & fs::perms::all) == fs::perms::owner_all);
  testing::child_process ran{{{found->identity().path}, {}, "/dev/null"}, scratch.path() / "output"};
  CHECK(ran.wait() == testing::exit_status{0, {}});
}

TEST_CASE_FIXTURE(cache_of_a_node, "what does not arrive as it was sent is refused, and nothing of it stays") {
  const auto content = script("a", 3'000);
  const auto id = build_id_of(content);
  const auto digest = serialization::sha256_hex(serialization::bytes_of(content));
  const auto begin = [&] { return value_or_throw(cache.begin(id, "program", content.size())); };

  auto damaged = content;
  damaged.back() = 'y';
  const auto first = begin();
  REQUIRE(cache.write(first, 0, damaged));
  CHECK(cache.finish(first, digest).error().code == errc::damaged);
  CHECK(cache.finish(first, digest).error().code == errc::not_found);

  const auto second = begin();
  REQUIRE(cache.write(second, 0, std::string_view{content}.substr(0, 2'000)));
  CHECK(cache.write(second, 1'000, "hole or repetition").error().code == errc::invalid_argument);
  CHECK(cache.write(second, 2'000, std::string(1'001, 'x')).error().code == errc::invalid_argument);
  CHECK(cache.finish(second, digest).error().code == errc::damaged);

  // It is whole, and another program than it is said to be.
  const auto other = script("b", 3'000);
  const auto third = begin();
  REQUIRE(cache.write(third, 0, other));
  const auto refused = cache.finish(third, serialization::sha256_hex(serialization::bytes_of(other)));
  CHECK(refused.error().code == errc::damaged);
  CHECK(refused.error().message.find(build_id_of(other)) != std::string::npos);

  CHECK(files() == 0);
  CHECK(cache.write("unknown", 0, "x").error().code == errc::not_found);
}

TEST_CASE_FIXTURE(cache_of_a_node, "a program for another processor is refused at its first piece") {
  auto content = testing::read_file("/bin/true").substr(0, 4'000);
  content[18] = static_cast<char>(0xf3); // e_machine: RISC-V
  content[19] = 0;
  const auto upload = cache.begin(build_id_of(content), "program", content.size());
  REQUIRE(upload);
  const auto refused = cache.write(*upload, 0, std::string_view{content}.substr(0, 1'000));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::program_mismatch);
  CHECK(refused.error().message.find("RISC-V") != std::string::npos);
}

TEST_CASE_FIXTURE(cache_of_a_node, "the programs that were used longest ago make room for a new one") {
  const auto a = script("a", 4'000);
  const auto b = script("b", 4'000);
  const auto c = script("c", 4'000);
  REQUIRE(send(a));
  REQUIRE(send(b));
  REQUIRE(has(b));
  REQUIRE(has(a));
  REQUIRE(send(c));
  CHECK_FALSE(has(b));
  CHECK(has(a));
  CHECK(has(c));

  // What is on its way has its room already.
  const auto large = script("d", limit - 4'000);
  const auto upload = cache.begin(build_id_of(large), "program", large.size());
  REQUIRE(upload);
  CHECK(cache.begin(build_id_of(b), "program", 4'001).error().code == errc::busy);
  REQUIRE(cache.write(*upload, 0, large));
  REQUIRE(cache.finish(*upload, serialization::sha256_hex(serialization::bytes_of(large))));
  CHECK(has(large));
  CHECK(files() == 2);
}

TEST_CASE_FIXTURE(cache_of_a_node, "a program that is larger than the cache is refused before it is sent") {
  const auto refused = cache.begin(build_id_of("a"), "huge", limit + 1);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::unsatisfiable);
  CHECK(refused.error().message.find("--accept-programs") != std::string::npos);
  CHECK_FALSE(fs::exists(directory()));
}

TEST_CASE_FIXTURE(cache_of_a_node, "a program that was damaged on the disk is removed, and can be sent again") {
  const auto content = script("a", 3'000);
  REQUIRE(send(content));
  const auto path = cache.find(build_id_of(content))->identity().path;
  fs::resize_file(path, 2'000);
  CHECK_FALSE(has(content));
  CHECK_FALSE(fs::exists(path));
  REQUIRE(send(content));
  CHECK(has(content));
}

TEST_CASE_FIXTURE(cache_of_a_node, "two drivers may send one program at once") {
  const auto content = script("a", 3'000);
  const auto digest = serialization::sha256_hex(serialization::bytes_of(content));
  const auto first = value_or_throw(cache.begin(build_id_of(content), "first", content.size()));
  const auto second = value_or_throw(cache.begin(build_id_of(content), "second", content.size()));
  REQUIRE(cache.write(first, 0, content));
  REQUIRE(cache.write(second, 0, content));
  CHECK(cache.finish(first, digest));
  CHECK(cache.finish(second, digest));
  CHECK(has(content));
  CHECK(files() == 1);
}

TEST_CASE_FIXTURE(cache_of_a_node, "names that lead out of the directory, and ids that are none, are refused") {
  const auto id = build_id_of("a");
  for (const auto* name : {"", ".", "..", "../a", "a/b", ".hidden", "a\nb"})
    CHECK(cache.begin(id, name, 1).error().code == errc::invalid_argument);
  for (const auto* each :
       {"", "xxh3:", "xxh3:../../../../etc/passwd", "md5:0123456789abcdef", "xxh3:0123456789ABCDEF"}) {
    CHECK(cache.begin(each, "program", 1).error().code == errc::invalid_argument);
    CHECK(cache.find(each).error().code == errc::invalid_argument);
  }
  CHECK_FALSE(fs::exists(directory()));
}

TEST_CASE_FIXTURE(cache_of_a_node, "a program that was put elsewhere stays there when the cache drops it") {
  const auto content = script("a", 6'000);
  const auto id = build_id_of(content);
  const auto place = scratch.path() / "job" / "program";
  CHECK(cache.link(id, "driver", place).error().code == errc::not_found);
  REQUIRE(send(content));
  REQUIRE(cache.link(id, "driver", place));
  REQUIRE(cache.link(id, "driver", place));
  REQUIRE(send(script("b", 6'000)));
  CHECK_FALSE(has(content));
  CHECK(value_or_throw(program_file::open((place / "driver").string())).identity().build_id == id);
}

TEST_CASE_FIXTURE(cache_of_a_node, "what an upload has left behind is removed when the node starts an hour later") {
  REQUIRE(send(script("a", 100)));
  const auto old = directory() / ".0123.upload.tmp";
  const auto recent = directory() / ".4567.upload.tmp";
  for (const auto& each : {old, recent})
    std::ofstream{each} << "half";
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours{2});
  program_cache again{limit};
  again.open(directory());
  CHECK_FALSE(fs::exists(old));
  CHECK(fs::exists(recent));
  CHECK(again.find(build_id_of(script("a", 100))));
}

} // namespace troupe::runtime
