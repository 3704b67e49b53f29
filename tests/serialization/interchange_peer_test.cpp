#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/interchange/npy.hpp>
#include <troupe/serialization/interchange/safetensors.hpp>

#include "plain_reader.hpp"
#include "scratch.hpp"

#include <built.hpp>
#include <processes.hpp>

#include <doctest/doctest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

/// Runs the Python peer script.
class peer {
 public:
  explicit peer(const fs::path& scratch) : scratch_(scratch) {
    const auto* given = std::getenv("TROUPE_PYTHON");
    python_ = given ? given : "/usr/bin/env";
    prefix_ = given ? std::vector<std::string>{python_} : std::vector<std::string>{python_, "python3"};
  }

  /// Why the peer is not available; empty if it is.
  std::string absent() {
    auto process = start({"probe"});
    if (process.wait() == testing::exit_status{0, {}})
      return {};
    auto reason = process.err();
    while (reason.ends_with('\n'))
      reason.pop_back();
    auto last = reason.rfind('\n');
    return last == std::string::npos ? reason : reason.substr(last + 1);
  }

  nlohmann::json tell(std::vector<std::string> arguments) {
    auto process = start(std::move(arguments));
    auto status = process.wait();
    INFO(process.err());
    REQUIRE(status == testing::exit_status{0, {}});
    return nlohmann::json::parse(process.out());
  }

 private:
  testing::child_process start(std::vector<std::string> arguments) {
    auto argv = prefix_;
    argv.push_back(testing::sources("tests/serialization/interchange_peer.py"));
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return {{argv, {}}, scratch_ / ".python"};
  }

  fs::path scratch_;
  std::string python_;
  std::vector<std::string> prefix_;
};

/// NumPy's name of the dtype.
std::string numpy_name(dtype type) {
  switch (type) {
  case dtype::f32:
    return "float32";
  case dtype::f64:
    return "float64";
  case dtype::f16:
    return "float16";
  case dtype::bf16:
    return "bfloat16";
  case dtype::i32:
    return "int32";
  case dtype::i64:
    return "int64";
  case dtype::u8:
    return "uint8";
  case dtype::i8:
    return "int8";
  case dtype::i16:
    return "int16";
  case dtype::u16:
    return "uint16";
  case dtype::u32:
    return "uint32";
  case dtype::u64:
    return "uint64";
  case dtype::boolean:
    return "bool";
  }
  return "";
}

std::vector<std::byte> read_all(const safetensors_file& source, std::size_t index) {
  auto result = std::vector<std::byte>(source.tensors()[index].spec.size_bytes());
  REQUIRE(source.read(index, 0, result));
  return result;
}

nlohmann::json described(const std::string& type, const tensor_spec& spec, std::span<const std::byte> bytes) {
  return {type, spec.shape, sha256_hex(bytes)};
}

} // namespace

TEST_CASE("files of Python's safetensors and NumPy are read, and ours are read by them") {
  auto scratch = scratch_directory{};
  auto python = peer{scratch.path()};
  if (auto reason = python.absent(); !reason.empty()) {
    std::printf("SKIP: no Python with numpy and safetensors (TROUPE_PYTHON names another one): %s\n", reason.c_str());
    return;
  }
  SUBCASE("theirs") {
    auto files = python.tell({"write", scratch.path().string()});
    CHECK(files.size() == 2 + 12 * 6 * 4);
    for (const auto& [name, tensors] : files.items()) {
      CAPTURE(name);
      if (name.ends_with(".npy")) {
        auto array = read_npy(scratch.path() / name);
        REQUIRE_MESSAGE(array, array.error().message);
        CHECK(described(numpy_name(array->spec.type), array->spec, array->bytes) == tensors.at(""));
        continue;
      }
      auto opened = safetensors_file::open(scratch.path() / name);
      REQUIRE_MESSAGE(opened, opened.error().message);
      REQUIRE(opened->tensors().size() == tensors.size());
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto& spec = opened->tensors()[i].spec;
        CAPTURE(spec.name);
        CHECK(described(testing::safetensors_dtype_name(spec.type), spec, read_all(*opened, i)) ==
              tensors.at(spec.name));
      }
    }
    CHECK(safetensors_file::open(scratch.path() / "arrays.safetensors")->metadata().at("format") == "pt");
  }
  SUBCASE("ours") {
    auto specs = assorted_specs();
    specs.push_back({"half", dtype::f16, {2, 2}});
    specs.push_back({"a\"b\n\u5f35", dtype::i16, {3}});
    specs.push_back({"small", dtype::i8, {2, 0}});
    specs.push_back({"middle", dtype::i32, {5}});
    specs.push_back({"u16", dtype::u16, {5}});
    specs.push_back({"u32", dtype::u32, {1, 7}});
    specs.push_back({"u64", dtype::u64, {3}});
    auto state = booleans_that_are{specs};
    auto all = (scratch.path() / "ours.safetensors").string();
    REQUIRE(write_safetensors(all, state.views(), {{"note", "\u00e9\n"}}, existing_file::keep));
    auto arguments = std::vector<std::string>{"read", all};
    auto arrays = std::vector<std::size_t>{};
    for (std::size_t i = 0; i < specs.size(); ++i)
      if (specs[i].type != dtype::bf16) {
        arguments.push_back((scratch.path() / ("ours-" + std::to_string(i) + ".npy")).string());
        REQUIRE(write_npy(arguments.back(), state.views()[i], existing_file::keep));
        arrays.push_back(i);
      }
    auto files = python.tell(arguments);
    REQUIRE(files.at(all).size() == specs.size());
    for (std::size_t i = 0; i < specs.size(); ++i)
      CHECK(files.at(all).at(specs[i].name) ==
            described(testing::safetensors_dtype_name(specs[i].type), specs[i], state.bytes(i)));
    for (std::size_t i = 0; i < arrays.size(); ++i)
      CHECK(files.at(arguments[2 + i]).at("") ==
            described(numpy_name(specs[arrays[i]].type), specs[arrays[i]], state.bytes(arrays[i])));
  }
}
