#include <built.hpp>
#include <processes.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/reusing_writer.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/interchange/safetensors.hpp>

#include "../../serialization/plain_reader.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sys/file.h>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

struct outcome {
  int code = -1;
  std::string out;
  std::string err;

  [[nodiscard]] nlohmann::json json() const { return nlohmann::json::parse(out); }
};

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// A run's directory with checkpoints of four tensors, and the program to run on it.
class bench {
 public:
  explicit bench(const std::vector<std::uint64_t>& steps = {10, 20, 30}) {
    fs::create_directories(checkpoints());
    for (auto step : steps)
      add(run(), step, step);
  }

  [[nodiscard]] fs::path path(const std::string& name) const { return scratch_.path() / name; }
  [[nodiscard]] fs::path run() const { return path("run"); }
  [[nodiscard]] fs::path checkpoints() const { return run() / "checkpoints"; }
  [[nodiscard]] fs::path at(std::uint64_t step) const { return checkpoints() / checkpoint_name({step}); }

  static std::vector<tensor_spec> specs() {
    return {{"weights", dtype::f32, {40, 50}},
            {"count", dtype::i64, {}},
            {"half", dtype::bf16, {3}},
            {"none", dtype::f64, {0}}};
  }

  static fs::path add(const fs::path& run, std::uint64_t step, std::uint64_t seed,
                      const std::function<void(manifest&)>& change = {}) {
    auto content = sample_manifest({step});
    content.metrics["loss"] = 1.0 / static_cast<double>(step);
    content.metrics["broken"] = std::nan("");
    if (change)
      change(content);
    auto state = sample_state{specs(), seed};
    auto made = save(run / "checkpoints", state, content, 2);
    REQUIRE(made);
    return *made;
  }

  [[nodiscard]] outcome troupe(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {testing::troupe_program(), "checkpoint"});
    auto process = testing::child_process{{std::move(arguments), {}}, path("output")};
    auto status = process.wait();
    return {status.code.value_or(-1), process.out(), process.err()};
  }

 private:
  scratch_directory scratch_;
};

std::string sha256_of(const fs::path& path) {
  return state_sha256(checkpoint::open(path).value()).value();
}

/// Damages the bytes of a tensor's chunk in a part.
std::uint64_t damage(const fs::path& path, const std::string& tensor) {
  auto stored = checkpoint::open(path).value();
  auto chunk = stored.content().tensors.at(stored.find(tensor).value()).chunks.at(0);
  flip_bit(path / stored.content().parts.at(chunk.part).name, chunk.offset_bytes + 1);
  return chunk.offset_bytes;
}

} // namespace

TEST_CASE("ls lists the checkpoints of a run's directory, of a checkpoints directory, and a single one") {
  auto here = bench{};
  for (const auto& path : {here.run(), here.checkpoints(), here.run() / ""}) {
    auto ran = here.troupe({"ls", path.string()});
    CHECK(ran.code == 0);
    CHECK(ran.err.empty());
    for (std::string part : {"step-00000010", "step-00000020", "step-00000030", "2025-11-20 14:46:40", "loss=0.05"})
      CHECK_MESSAGE(has(ran.out, part), part, " is not in ", ran.out);
  }
  auto one = here.troupe({"ls", here.at(20).string(), "--json"});
  CHECK(one.code == 0);
  auto rows = one.json().at("checkpoints");
  REQUIRE(rows.size() == 1);
  CHECK(rows[0]["step"] == 20);
  CHECK(rows[0]["state"] == "good");
  CHECK(rows[0]["world_size"] == 5);
  CHECK(rows[0]["generation"] == 7);
  CHECK(rows[0]["created_unix_ms"] == 1'763'650'000'123);
  CHECK(rows[0]["metrics"]["loss"] == 0.05);
  CHECK(rows[0]["metrics"]["broken"] == "nan");
  CHECK(rows[0]["bytes"] == 4096 * 4);
}

TEST_CASE("ls reports damaged checkpoints with the reason") {
  auto here = bench{};
  flip_bit(here.at(10) / "manifest.snapshot", 100);
  fs::resize_file(here.at(20) / "part-0001.bin", 17);
  fs::create_directories(here.at(40));
  auto ran = here.troupe({"ls", here.run().string()});
  CHECK(ran.code == 1);
  CHECK(has(ran.err, "step-00000010: "));
  CHECK(has(ran.err, "part-0001.bin"));
  CHECK(has(ran.err, "step-00000040: "));
  CHECK_FALSE(has(ran.err, "step-00000030"));
  auto rows = here.troupe({"ls", "--json", here.run().string()}).json().at("checkpoints");
  REQUIRE(rows.size() == 4);
  CHECK(rows[0]["state"] == "damaged");
  CHECK(rows[1]["state"] == "damaged");
  CHECK(rows[2]["state"] == "good");
  CHECK(rows[3]["state"] == "damaged");
  CHECK(has(rows[1]["why"], "17"));
}

TEST_CASE("a path without checkpoints is reported, and an empty checkpoints directory is fine") {
  auto here = bench{{}};
  CHECK(here.troupe({"ls", here.run().string()}).code == 0);
  CHECK(here.troupe({"ls", here.run().string(), "--json"}).json().at("checkpoints").empty());
  fs::create_directories(here.path("other"));
  for (const auto* name : {"nowhere", "other"})
    for (const auto* command : {"ls", "show", "verify", "rm"}) {
      auto ran = here.troupe({command, here.path(name).string()});
      CAPTURE(ran.err);
      CHECK(ran.code == 2);
      CHECK(ran.out.empty());
      CHECK(has(ran.err, here.path(name).string()));
      CHECK(has(ran.err, "give a run's directory"));
    }
  for (const auto* command : {"show", "verify"})
    CHECK(here.troupe({command, here.run().string()}).code == 2);
}

TEST_CASE("show prints everything in a manifest") {
  auto here = bench{};
  auto ran = here.troupe({"show", here.run().string(), "--json", "--sha256"});
  REQUIRE(ran.code == 0);
  auto shown = ran.json();
  CHECK(shown["path"] == here.at(30).string());
  CHECK(shown["run"] == "0123456789abcdef0123456789abcdef");
  CHECK(shown["step"] == 30);
  CHECK(shown["generation"] == 7);
  CHECK(shown["seed"] == 0xfedcba9876543210);
  CHECK(shown["shards"] == 24);
  CHECK(shown["global_batch"] == 5'000'000'000);
  CHECK(shown["tree_version"] == 2);
  CHECK(shown["program_build_id"] == "c0ffee");
  CHECK(shown["configuration"] == nlohmann::json{{"lr", 0.5}});
  CHECK(shown["data_fingerprint"] == "digits 1797");
  CHECK(shown["numerics_fingerprint"]["cpu"] == "x86-64-v3");
  CHECK(shown["metrics"]["accuracy"] == 0.75);
  CHECK(shown["values"]["note"] == "h\u00e9llo");
  CHECK(shown["attachments"]["cursor"]["position"] == 12);
  CHECK(shown["state_sha256"] == sha256_of(here.at(30)));
  CHECK(shown["bytes"] == 8000 + 8 + 6);
  CHECK(shown["elements"] == 2000 + 1 + 3);
  REQUIRE(shown["tensors"].size() == 4);
  CHECK(shown["tensors"][0]["name"] == "weights");
  CHECK(shown["tensors"][0]["dtype"] == "f32");
  CHECK(shown["tensors"][0]["shape"] == nlohmann::json{40, 50});
  CHECK(shown["tensors"][0]["bytes"] == 8000);
  CHECK(shown["tensors"][3]["chunks"] == 0);
  auto text = here.troupe({"show", here.run().string(), "--step", "10"});
  CHECK(text.code == 0);
  for (std::string part : {"step-00000010", "f32 [40, 50]", "bf16 [3]", "i64 []", "c0ffee", "digits 1797", "24",
                           "accuracy: 0.75", "4 tensors, 2004 elements, 8.0 kB"})
    CHECK_MESSAGE(has(text.out, part), part, " is not in ", text.out);
  const auto chained = bench::add(here.path("chained"), 40, 40, [](manifest& content) {
    content.earlier_programs_json =
        R"([{"first_step":1,"last_step":6,"build_id":"deadbeef","configuration_digest":"0123456789abcdef01"}])";
  });
  text = here.troupe({"show", chained.string()});
  CHECK(has(text.out, "before that    steps 1 to 6: build deadbeef, configuration 0123456789abcdef\n"));
  CHECK(has(here.troupe({"diff", here.at(30).string(), chained.string()}).out, "deadbeef"));
  auto missing = here.troupe({"show", here.run().string(), "--step", "15"});
  CHECK(missing.code == 2);
  CHECK(has(missing.err, "the newest is step-00000030"));
  flip_bit(here.at(30) / "manifest.snapshot", 100);
  CHECK(here.troupe({"show", here.run().string()}).code == 1);
}

TEST_CASE("verify reads everything and reports every damaged tensor") {
  auto here = bench{};
  auto good = here.troupe({"verify", here.run().string()});
  CHECK(good.code == 0);
  CHECK(has(good.out, "step-00000020: good (4 tensors, 8.0 kB)"));
  auto offset = damage(here.at(20), "count");
  damage(here.at(20), "weights");
  // The three elements of "half" are followed by padding.
  auto stored = checkpoint::open(here.at(30)).value();
  auto half = stored.content().tensors[2].chunks[0];
  auto part = stored.content().parts[half.part].name;
  flip_bit(here.at(30) / part, half.offset_bytes + 10);
  auto ran = here.troupe({"verify", here.run().string()});
  CHECK(ran.code == 1);
  CHECK(has(ran.out, "step-00000010: good"));
  CHECK(has(ran.out, "tensor \"count\", chunk 0"));
  CHECK(has(ran.out, "offset " + std::to_string(offset)));
  CHECK(has(ran.out, "tensor \"weights\""));
  CHECK(has(ran.out, part + " is damaged: the padding at offset " + std::to_string(half.offset_bytes + 10)));
  auto all = here.troupe({"verify", here.run().string(), "--json"}).json().at("checkpoints");
  REQUIRE(all.size() == 3);
  CHECK(all[0]["state"] == "good");
  CHECK(all[1]["damages"].size() == 2);
  CHECK(all[2]["damages"].size() == 1);
  CHECK(here.troupe({"verify", here.run().string(), "--step", "10"}).code == 0);
  CHECK(here.troupe({"verify", here.at(20).string()}).code == 1);
  fs::remove(here.at(10) / part);
  CHECK(has(here.troupe({"verify", here.at(10).string()}).out, part));
}

TEST_CASE("diff compares states element by element") {
  auto here = bench{};
  bench::add(here.path("other"), 20, 20, [](manifest& content) {
    content.run.value = "another";
    content.created += std::chrono::hours{1};
  });
  auto same = here.troupe({"diff", here.at(20).string(), here.path("other").string()});
  CHECK(same.code == 0);
  CHECK(has(same.out, "the states are equal, bit for bit"));
  CHECK(has(same.out, "> another"));
  CHECK(here.troupe({"diff", here.at(20).string(), here.path("other").string(), "--all"}).code == 1);
  CHECK(here.troupe({"diff", here.at(20).string(), here.at(20).string(), "--all"}).code == 0);
  auto values = bench::add(here.path("values"), 20, 20, [](manifest& content) { content.values_json = "{\"a\":1}"; });
  CHECK(here.troupe({"diff", here.at(20).string(), values.string()}).code == 1);
  auto ran = here.troupe({"diff", here.at(10).string(), here.at(20).string(), "--json"});
  CHECK(ran.code == 1);
  auto document = ran.json();
  CHECK(document["equal"] == false);
  REQUIRE(document["tensors"].size() == 4);
  CHECK(document["tensors"][2]["name"] == "none");
  CHECK(document["tensors"][2]["equal"] == true);
  CHECK(document["tensors"][3]["differing"] == 2000);
  CHECK(document["fields"]["step"]["right"] == "20");
  CHECK_FALSE(document["fields"].contains("seed"));
}

TEST_CASE("diff measures differences and names tensors on one side only") {
  auto here = bench{{}};
  auto left = std::vector<float>{1, 2, 3, 4};
  auto right = std::vector<float>{1, 2, 3.5f, 4};
  auto write = [&](const std::string& name, std::vector<float>& values, const std::vector<tensor_spec>& more) {
    auto views = std::vector<tensor_view>{{{"x", dtype::f32, {4}}, reinterpret_cast<std::byte*>(values.data())}};
    auto bytes = std::vector<std::byte>(64);
    for (const auto& spec : more)
      views.push_back({spec, bytes.data()});
    REQUIRE(write_safetensors(here.path(name + ".safetensors"), views, {}, existing_file::keep));
    REQUIRE(here.troupe({"import", here.path(name + ".safetensors").string(), here.path(name).string()}).code == 0);
  };
  write("a", left, {{"shape", dtype::f32, {2, 3}}, {"left", dtype::u8, {1}}});
  write("b", right, {{"shape", dtype::f32, {3, 2}}, {"right", dtype::u8, {2}}});
  auto document = here.troupe({"diff", here.path("a").string(), here.path("b").string(), "--json"}).json();
  auto rows = std::map<std::string, nlohmann::json>{};
  for (const auto& row : document["tensors"])
    rows[row["name"]] = row;
  CHECK(rows["x"]["differing"] == 1);
  CHECK(rows["x"]["first"] == 2);
  CHECK(rows["x"]["max_absolute"] == 0.5);
  CHECK(rows["x"]["max_relative"] == 0.5 / 3.5);
  CHECK(rows["left"]["right"].is_null());
  CHECK(rows["right"]["right"] == "u8 [2]");
  CHECK(rows["shape"]["left"] == "f32 [2, 3]");
  auto text = here.troupe({"diff", here.path("a").string(), here.path("b").string()}).out;
  CHECK(has(text, "only on the left: u8 [1]"));
  CHECK(has(text, "f32 [2, 3] | f32 [3, 2]"));
  CHECK(here.troupe({"diff", here.path("a").string(), here.path("c").string()}).code == 2);
  damage(here.path("b"), "x");
  auto damaged = here.troupe({"diff", here.path("a").string(), here.path("b").string()});
  CHECK(damaged.code == 1);
  CHECK(has(damaged.err, "tensor \"x\""));
}

TEST_CASE("a checkpoint goes through a safetensors file and back with the same state") {
  auto here = bench{};
  auto file = here.path("model.safetensors");
  auto exported = here.troupe({"export", here.run().string(), file.string(), "--step", "20", "--json"});
  REQUIRE(exported.code == 0);
  CHECK(exported.json()["step"] == 20);
  CHECK(exported.json()["bytes"] == fs::file_size(file));
  auto plain = testing::read_safetensors_plainly(read_file(file));
  CHECK(plain.size() == 4);
  CHECK(plain.at("weights").bytes.size() == 8000);
  auto imported = here.troupe({"import", file.string(), here.path("imported").string(), "--json"});
  REQUIRE(imported.code == 0);
  CHECK(imported.json()["state_sha256"] == sha256_of(here.at(20)));
  CHECK(imported.json()["step"] == 20);
  CHECK(sha256_of(here.path("imported")) == sha256_of(here.at(20)));
  CHECK(here.troupe({"diff", here.path("imported").string(), here.at(20).string(), "--all"}).code == 0);

  auto before = read_file(file);
  auto refused = here.troupe({"export", here.run().string(), file.string()});
  CHECK(refused.code == 2);
  CHECK(has(refused.err, "--force"));
  CHECK(read_file(file) == before);
  CHECK(here.troupe({"export", here.run().string(), file.string(), "--force"}).code == 0);
  CHECK(read_file(file) != before);
  CHECK(here.troupe({"import", file.string(), here.path("imported").string()}).code == 2);
}

TEST_CASE("one tensor goes through an NPY file and back") {
  auto here = bench{};
  auto file = here.path("weights.npy");
  CHECK(here.troupe({"export", here.run().string(), file.string(), "--tensor", "weights"}).code == 0);
  CHECK(testing::read_npy_plainly(read_file(file)).shape == std::vector<std::uint64_t>{40, 50});
  auto imported = here.troupe({"import", file.string(), here.path("one").string(), "--step", "5"});
  REQUIRE(imported.code == 0);
  CHECK(has(imported.out, "none can be resumed"));
  auto shown = here.troupe({"show", here.path("one").string(), "--json"}).json();
  CHECK(shown["step"] == 5);
  CHECK(shown["tensors"][0]["name"] == "weights");
  // The only tensor need not be named.
  CHECK(here.troupe({"export", here.path("one").string(), here.path("again.npy").string()}).code == 0);
  CHECK(read_file(here.path("again.npy")) == read_file(file));
}

TEST_CASE("invalid exports and imports are rejected with advice") {
  auto here = bench{};
  auto refused = [&](int code, std::vector<std::string> arguments, const std::string& part) {
    auto ran = here.troupe(std::move(arguments));
    CAPTURE(ran.err);
    CHECK(ran.code == code);
    CHECK(ran.out.empty());
    CHECK_MESSAGE(has(ran.err, part), "it lacks: ", part);
  };
  auto run = here.run().string();
  refused(2, {"export", run, here.path("x").string()}, ".safetensors or .npy");
  refused(2, {"export", run, here.path("x.npy").string()}, "weights, count, half, none");
  refused(2, {"export", run, here.path("x.npy").string(), "--tensor", "wieghts"}, "weights, count, half, none");
  refused(2, {"export", run, here.path("x.npy").string(), "--tensor", "half"}, "safetensors");
  refused(2, {"export", run, here.path("x.safetensors").string(), "--tensor", "half"}, "--tensor");
  refused(2, {"export", run, here.path("no/x.safetensors").string()}, "no/");
  refused(2, {"import", here.path("none").string(), here.path("y").string()}, "none");
  overwrite_file(here.path("bad"), "{\"not\": \"it\"}");
  refused(1, {"import", here.path("bad").string(), here.path("y").string()}, "not a safetensors file");
  CHECK(here.troupe({"export", run, here.path("x.safetensors").string()}).code == 0);
  flip_bit(here.path("x.safetensors"), fs::file_size(here.path("x.safetensors")) - 1);
  refused(1, {"import", here.path("x.safetensors").string(), here.path("y").string()}, "--changed");
  CHECK_FALSE(fs::exists(here.path("y")));
  CHECK(here.troupe({"import", here.path("x.safetensors").string(), here.path("y").string(), "--changed"}).code == 0);
  damage(here.at(30), "count");
  refused(1, {"export", run, here.path("z.safetensors").string()}, "tensor \"count\"");
  CHECK_FALSE(fs::exists(here.path("z.safetensors")));
}

TEST_CASE("rm removes one checkpoint or the oldest ones, and the last good one only with --force") {
  auto here = bench{{10, 20, 30, 40}};
  auto which = here.troupe({"rm", here.run().string()});
  CHECK(which.code == 2);
  CHECK(has(which.err, "--keep"));
  auto one = here.troupe({"rm", here.at(20).string(), "--json"});
  CHECK(one.code == 0);
  CHECK(one.json()["removed"] == nlohmann::json{fs::canonical(here.checkpoints()) / "step-00000020"});
  CHECK_FALSE(fs::exists(here.at(20)));
  CHECK(here.troupe({"rm", here.run().string(), "--step", "20"}).code == 2);
  CHECK(here.troupe({"rm", here.run().string(), "--keep", "0"}).code == 2);
  CHECK(here.troupe({"rm", here.run().string(), "--keep", "2"}).code == 0);
  CHECK_FALSE(fs::exists(here.at(10)));
  CHECK(has(here.troupe({"rm", here.run().string(), "--keep", "2"}).out, "nothing"));
  // The other one does not count, because it is damaged.
  damage(here.at(40), "weights");
  auto last = here.troupe({"rm", here.run().string(), "--step", "30"});
  CHECK(last.code == 2);
  CHECK(has(last.err, "last good"));
  CHECK(has(last.err, "--force"));
  CHECK(here.troupe({"rm", here.run().string(), "--keep", "1"}).code == 1);
  CHECK(fs::exists(here.at(30)));
  // A damaged one may be removed.
  CHECK(here.troupe({"rm", here.run().string(), "--step", "40"}).code == 0);
  CHECK(here.troupe({"rm", here.at(30).string(), "--force"}).code == 0);
  CHECK(fs::is_empty(here.checkpoints()));
}

TEST_CASE("rm removes nothing from a run whose directory is locked, even through a link") {
  auto here = bench{};
  auto lock = here.run() / ".lock";
  overwrite_file(lock, "4321\n");
  auto descriptor = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(::flock(descriptor, LOCK_EX | LOCK_NB) == 0);
  fs::create_directory_symlink(here.at(10), here.path("step-00000010"));
  for (const auto& arguments : std::vector<std::vector<std::string>>{{"rm", here.at(10).string()},
                                                                     {"rm", here.path("step-00000010").string()},
                                                                     {"rm", here.at(10).string(), "--force"},
                                                                     {"rm", here.run().string(), "--keep", "1"}}) {
    auto ran = here.troupe(arguments);
    CHECK(ran.code == 2);
    CHECK(has(ran.err, "under way (process 4321)"));
  }
  CHECK(fs::exists(here.at(10)));
  ::close(descriptor);
  CHECK(here.troupe({"rm", here.at(10).string()}).code == 0);
}

TEST_CASE("the checkpoint command has help and corrects misspellings") {
  auto here = bench{{}};
  auto help = here.troupe({"--help"});
  CHECK(help.code == 0);
  for (const auto* part : {"ls", "show", "verify", "diff", "export", "import", "rm", "Examples:", "Exit codes:"})
    CHECK(has(help.out, part));
  for (const auto* command : {"ls", "show", "verify", "diff", "export", "import", "rm"}) {
    auto ran = here.troupe({command, "--help"});
    CHECK(ran.code == 0);
    CHECK(has(ran.out, "--json"));
    CHECK(here.troupe({command}).code == 2);
  }
  CHECK(here.troupe({}).code == 2);
  auto misspelt = here.troupe({"verfy", "x"});
  CHECK(misspelt.code == 2);
  CHECK(has(misspelt.err, "did you mean 'verify'"));
}

TEST_CASE("checkpoints that share files are listed, shown, verified and removed like any others") {
  auto here = bench{{}};
  auto writer = reusing_writer{{4096, 8}};
  auto plan = plan_chunks(bench::specs(), 1, 4096);
  auto state = sample_state{bench::specs()};
  auto bytes = std::vector<std::byte>{};
  for (std::size_t i = 0; i < bench::specs().size(); ++i)
    bytes.insert(bytes.end(), state.bytes(i).begin(), state.bytes(i).end());
  for (std::uint64_t step : {10, 20, 30}) {
    auto attempt = here.checkpoints() / temporary_name({{"run"}, {step}, {7}, 1});
    auto content = sample_manifest({step});
    auto report = value_or_throw(writer.write(attempt, 0, plan, bytes));
    value_or_throw(add_parts(content, bench::specs(), plan, std::vector{report}));
    writer.committed(value_or_throw(commit_checkpoint(here.checkpoints(), attempt, content)));
  }
  auto shared = chunk_file_name(0, 0);
  REQUIRE(fs::equivalent(here.at(20) / shared, here.at(30) / shared));
  auto shown = here.troupe({"show", here.at(30).string()});
  CHECK(shown.code == 0);
  CHECK_MESSAGE(has(shown.out, "4 tensors"), shown.out);
  CHECK(has(here.troupe({"show", here.at(30).string(), "--json"}).json().dump(), shared));
  CHECK(here.troupe({"verify", here.run().string()}).code == 0);
  flip_bit(here.at(20) / shared, 77);
  auto verified = here.troupe({"verify", here.run().string()});
  CHECK(verified.code != 0);
  CHECK_FALSE(has(verified.out + verified.err, (here.at(10) / shared).string()));
  for (std::uint64_t step : {20, 30})
    CHECK_MESSAGE(has(verified.out + verified.err, (here.at(step) / shared).string()), verified.out, verified.err);
  flip_bit(here.at(20) / shared, 77);
  CHECK(here.troupe({"rm", here.run().string(), "--keep", "1"}).code == 0);
  CHECK_FALSE(fs::exists(here.at(20)));
  CHECK(here.troupe({"verify", here.at(30).string()}).code == 0);
}
