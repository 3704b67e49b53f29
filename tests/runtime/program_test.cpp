#include <troupe/runtime/program.hpp>

#include <built.hpp>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>
#include <vector>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;

/// A file that is removed after the test.
struct temporary_file {
  fs::path path = fs::temp_directory_path() / ("troupe_program_test_" + std::to_string(getpid()));

  explicit temporary_file(std::string_view content, fs::perms permissions = fs::perms::owner_all) {
    std::ofstream{path} << content;
    fs::permissions(path, permissions);
  }
  ~temporary_file() { fs::remove(path); }
};

std::string identity_of(const std::string& path) {
  auto program = program_file::open(path);
  REQUIRE(program);
  return program->identity().build_id;
}

} // namespace

TEST_CASE("debug information and comments do not change what a program is, its code and its data do") {
  const auto plain = identity_of(testing::built("tests/bin/sample_plain"));
  CHECK(plain.starts_with("xxh3:"));
  CHECK(identity_of(testing::built("tests/bin/sample_debug")) == plain);
  CHECK(identity_of(testing::built("tests/bin/sample_commented")) == plain);
  CHECK(identity_of(testing::built("tests/bin/sample_other_data")) != plain);
  CHECK(identity_of(testing::built("tests/bin/sample_other_constant")) != plain);
  CHECK(program_file::open("/bin/sh")->identity().path == "/bin/sh");
}

TEST_CASE("what is no program is identified by its digest") {
  temporary_file file{"abc"};
  auto program = program_file::open(file.path);
  REQUIRE(program);
  // The first 40 digits of the well-known SHA-256 of "abc".
  CHECK(program->identity().build_id == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a3");
}

TEST_CASE("a damaged ELF file is identified by its digest") {
  std::ifstream shell{"/bin/sh", std::ios::binary};
  std::string start(300, '\0');
  shell.read(start.data(), static_cast<std::streamsize>(start.size()));
  temporary_file file{start};
  auto program = program_file::open(file.path);
  REQUIRE(program);
  CHECK(program->identity().build_id.starts_with("sha256:"));
}

TEST_CASE("the running program identifies itself") {
  auto own = own_program();
  REQUIRE(own);
  CHECK(own->path == fs::read_symlink("/proc/self/exe").string());
  auto opened = program_file::own();
  REQUIRE(opened);
  CHECK(opened->identity() == *own);
  CHECK(opened->fd() >= 0);
}

TEST_CASE("identifying a program does not change the file's offset") {
  unique_fd fd{open("/bin/sh", O_RDONLY | O_CLOEXEC)};
  REQUIRE(fd.get() >= 0);
  REQUIRE(lseek(fd.get(), 5, SEEK_SET) == 5);
  REQUIRE(identify_program(fd.get(), "/bin/sh"));
  CHECK(lseek(fd.get(), 0, SEEK_CUR) == 5);
}

TEST_CASE("a replaced program keeps the identity with which it was opened") {
  std::optional<expected<program_file>> program;
  std::string before;
  {
    temporary_file file{"first"};
    program = program_file::open(file.path);
    REQUIRE(*program);
    before = (*program)->identity().build_id;
  }
  temporary_file file{"second"};
  CHECK(identify_program((*program)->fd(), file.path)->build_id == before);
  CHECK(program_file::open(file.path)->identity().build_id != before);
}

TEST_CASE("a file that cannot be executed is rejected with the reason") {
  auto absent = program_file::open("/nowhere/at/all");
  REQUIRE_FALSE(absent);
  CHECK(absent.error().code == errc::not_found);
  CHECK(absent.error().message.find("/nowhere/at/all") != std::string::npos);

  auto directory = program_file::open("/");
  REQUIRE_FALSE(directory);
  CHECK(directory.error().code == errc::invalid_argument);

  temporary_file file{"text", fs::perms::owner_read};
  auto text = program_file::open(file.path);
  REQUIRE_FALSE(text);
  CHECK(text.error().message.find("chmod +x") != std::string::npos);
}

TEST_CASE("the loaded objects include the program and the C library, with what its linker wrote as build id") {
  auto objects = loaded_objects();
  REQUIRE(objects.size() > 1);
  auto own = own_program();
  REQUIRE(own);
  CHECK(objects.front().name == own->path);
  auto libc = std::ranges::find_if(objects, [](const auto& x) { return x.name.find("/libc.so") != std::string::npos; });
  REQUIRE(libc != objects.end());
  CHECK(libc->build_id.size() == 40);
}

TEST_CASE("a program for another processor is rejected, and both processors are named") {
  std::ifstream shell{"/bin/sh", std::ios::binary};
  std::string content{std::istreambuf_iterator<char>{shell}, {}};
  content[18] = static_cast<char>(0xf3); // e_machine: RISC-V
  content[19] = 0;
  temporary_file file{content};
  auto other = program_file::open(file.path);
  REQUIRE(other);
  auto checked = check_processor(other->fd(), "the_program");
  REQUIRE_FALSE(checked);
  CHECK(checked.error().code == errc::program_mismatch);
  CHECK(checked.error().message.find("the_program is a program for RISC-V") != std::string::npos);
  CHECK(check_processor(program_file::own()->fd(), "own"));
  temporary_file script{"#!/bin/sh\n"};
  CHECK(check_processor(program_file::open(script.path)->fd(), "script"));
}

TEST_CASE("libraries that are absent are named before the program starts") {
  auto program = program_file::open(testing::built("tests/bin/sample_lacking"));
  REQUIRE(program);
  CHECK(missing_libraries(program->fd(), {}) == std::vector<std::string>{"libtroupe_absent.so"});
  // Where the environment says that it is, it is found.
  CHECK(missing_libraries(program->fd(), {"LD_LIBRARY_PATH=" + testing::built("tests/bin/absent")}).empty());
  CHECK(missing_libraries(program_file::own()->fd(), {}).empty());
  temporary_file script{"#!/bin/sh\n"};
  CHECK(missing_libraries(program_file::open(script.path)->fd(), {}).empty());
}

TEST_CASE("the missing library is found in the dynamic linker's message") {
  std::vector<std::string> lines{"starting",
                                 "./train: error while loading shared libraries: libcapnp.so.0: cannot open "
                                 "shared object file: No such file or directory"};
  CHECK(missing_library(lines) == "libcapnp.so.0");
  CHECK_FALSE(missing_library(std::span{lines}.first(1)));
  std::vector<std::string> other{"./train: error while loading shared libraries: libx.so: file too short"};
  CHECK_FALSE(missing_library(other));
}

} // namespace troupe::runtime
