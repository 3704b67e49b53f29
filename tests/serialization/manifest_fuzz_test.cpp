#include "scratch.hpp"

#include <built.hpp>
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

using namespace troupe;
using namespace troupe::serialization;

namespace {

/// The initial corpus: manifests, each as a file and as its message alone.
void write_corpus(const std::filesystem::path& directory) {
  auto contents = std::vector<manifest>{{}, sample_manifest(), sample_manifest()};
  contents[2].parts = {{"part-0000.bin", 12288}, {"own-chunk.bin", 4096}};
  contents[2].tensors = {{{"w", dtype::f32, {2, 1025}}, {{0, 4096, 8192, 9}, {1, 0, 8, 3}}},
                         {{"empty", dtype::bf16, {0, 3}}, {}}};
  for (std::size_t i = 0; i < contents.size(); ++i) {
    auto path = directory / std::to_string(i);
    REQUIRE(write_manifest(path, contents[i]));
    auto bytes = read_file(path);
    overwrite_file(path, '\0' + bytes);
    overwrite_file(path.string() + "-message", '\1' + bytes.substr(32));
  }
}

} // namespace

// TROUPE_LONG_TESTS=1 runs for ten minutes.
TEST_CASE("the manifest parser survives whatever a fuzzer finds") {
  if (!TROUPE_WITH_MANIFEST_FUZZER) {
    std::puts("SKIP: there was no clang++ with libFuzzer when this was built");
    return;
  }
  auto fuzzer = testing::built("tests/bin/manifest_fuzzer");
  auto scratch = scratch_directory{};
  auto corpus = scratch.path() / "corpus";
  std::filesystem::create_directory(corpus);
  write_corpus(corpus);
  auto length =
      std::getenv("TROUPE_LONG_TESTS") != nullptr ? "-max_total_time=600" : "-runs=5000 -max_total_time=10 -seed=1";
  auto log = scratch.path() / "log";
  auto command = "'" + fuzzer + "' " + length + " -max_len=4096 -artifact_prefix='" + scratch.path().string() + "/' '" +
                 corpus.string() + "' 2> '" + log.string() + "'";
  CAPTURE(command);
  auto status = std::system(command.c_str());
  auto text = read_file(log);
  CHECK_MESSAGE(status == 0, text.substr(text.size() - std::min<std::size_t>(text.size(), 4'000)));
  CHECK(text.find("DONE") != std::string::npos);
}
