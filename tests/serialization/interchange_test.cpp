#include <troupe/serialization/interchange/interchange.hpp>

#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/interchange/npy.hpp>
#include <troupe/serialization/interchange/safetensors.hpp>

#include "plain_reader.hpp"
#include "scratch.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

checkpoint open_good(const fs::path& path) {
  auto result = checkpoint::open(path);
  REQUIRE(result);
  REQUIRE(result->verify());
  return *result;
}

/// A manifest without the places of bytes.
manifest said(const checkpoint& stored) {
  auto result = stored.content();
  result.parts.clear();
  for (auto& tensor : result.tensors)
    tensor.chunks.clear();
  return result;
}

std::size_t entries_in(const fs::path& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator{directory}, {}));
}

} // namespace

TEST_CASE("exporting and importing a checkpoint restores it") {
  auto scratch = scratch_directory{};
  auto state = booleans_that_are{assorted_specs()};
  auto content = sample_manifest();
  content.metrics["infinite"] = -std::numeric_limits<double>::infinity();
  content.metrics["tiny"] = std::numeric_limits<double>::denorm_min();
  auto original = open_good(save(scratch.path() / "run", state, content, 3).value());
  auto file = scratch.path() / "x.safetensors";
  auto counted = std::uint64_t{0};
  REQUIRE(export_safetensors(original, file, existing_file::keep, [&](std::uint64_t n) { counted += n; }));
  CHECK(counted == 3 * 1001 * 4 + 8 + 1 + 4096 + 9 * 5003 * 2 + 13 + 257 * 8);
  fs::create_directories(scratch.path() / "other");
  auto imported = import_checkpoint(file, scratch.path() / "other" / "imported" / "");
  REQUIRE_MESSAGE(imported, imported.error().message);
  CHECK(imported->directory() == scratch.path() / "other" / "imported");
  CHECK(said(*imported) == said(original));
  CHECK(state_sha256(*imported).value() == state_sha256(original).value());
  REQUIRE(open_good(imported->directory()).content() == imported->content());
  CHECK(entries_in(scratch.path() / "other") == 1);
  auto again = scratch.path() / "again.safetensors";
  REQUIRE(export_safetensors(*imported, again, existing_file::keep));
  CHECK(read_file(again) == read_file(file));
}

TEST_CASE("non-finite metrics survive an export") {
  auto scratch = scratch_directory{};
  auto state = sample_state{{{"a", dtype::f32, {2}}}};
  auto content = sample_manifest();
  content.metrics = {{"nan", std::nan("")}};
  auto original = open_good(save(scratch.path() / "run", state, content, 1).value());
  REQUIRE(export_safetensors(original, scratch.path() / "x", existing_file::keep));
  auto imported = import_checkpoint(scratch.path() / "x", scratch.path() / "imported");
  REQUIRE(imported);
  CHECK(std::isnan(imported->content().metrics.at("nan")));
}

TEST_CASE("a state changed after its export is refused, unless the change is accepted") {
  auto scratch = scratch_directory{};
  auto state = sample_state{{{"a", dtype::f32, {200}}, {"b", dtype::i64, {3}}}};
  auto original = open_good(save(scratch.path() / "run", state, sample_manifest(), 2).value());
  auto file = scratch.path() / "x.safetensors";
  REQUIRE(export_safetensors(original, file, existing_file::keep));
  flip_bit(file, fs::file_size(file) - 5);
  auto before = entries_in(scratch.path());
  auto refused = import_checkpoint(file, scratch.path() / "imported");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::mismatch);
  CHECK(has(refused.error().message, file.string()));
  CHECK(has(refused.error().message, state_sha256(original).value()));
  CHECK(entries_in(scratch.path()) == before);
  auto accepted = import_checkpoint(file, scratch.path() / "imported", {.changed = changed_state::accept});
  REQUIRE(accepted);
  CHECK(accepted->content().step == original.content().step);
  CHECK(state_sha256(*accepted).value() != state_sha256(original).value());
}

TEST_CASE("a foreign safetensors file becomes a checkpoint with its own run id") {
  auto scratch = scratch_directory{};
  auto state = booleans_that_are{assorted_specs()};
  auto file = scratch.path() / "x.safetensors";
  REQUIRE(write_safetensors(file, state.views(), {{"format", "pt"}}, existing_file::keep));
  auto created = std::chrono::sys_time<std::chrono::milliseconds>{std::chrono::milliseconds{1'700'000'000'000}};
  auto imported = import_checkpoint(file, scratch.path() / "imported", {.step = {7}, .created = created});
  REQUIRE_MESSAGE(imported, imported.error().message);
  CHECK(imported->content().step == step_id{7});
  CHECK(imported->content().created == created);
  CHECK(imported->content().run.value.size() == 32);
  CHECK(imported->content().values_json.empty());
  CHECK(imported->content().attachments.at("safetensors") == R"({"format":"pt"})");
  CHECK(state_sha256(*imported).value() == state_sha256(state.views(), ""));
  auto other = import_checkpoint(file, scratch.path() / "other");
  REQUIRE(other);
  CHECK(other->content().run != imported->content().run);
}

TEST_CASE("a state that needs several parts is imported completely") {
  auto scratch = scratch_directory{};
  // 300 MiB with a few bits set: sparse to create, but read completely.
  auto spec = tensor_spec{"large", dtype::u8, {300 << 20}};
  auto file = scratch.path() / "x.safetensors";
  auto piece = std::vector<std::byte>(1 << 20);
  auto source = [&](std::size_t, const byte_sink& sink) -> expected<void> {
    for (int i = 0; i < 300; ++i) {
      piece[static_cast<std::size_t>(i)] = static_cast<std::byte>(i);
      sink(piece);
    }
    return {};
  };
  REQUIRE(write_safetensors(file, {{spec}}, {}, source, existing_file::keep));
  auto imported = import_checkpoint(file, scratch.path() / "imported");
  REQUIRE(imported);
  CHECK(imported->content().parts.size() == 2);
  auto place = std::uint64_t{0};
  auto wrong = std::uint64_t{0};
  auto expected_piece = std::vector<std::byte>(1 << 20);
  REQUIRE(imported->read_chunks(0, [&](std::span<const std::byte> bytes) {
    for (; !bytes.empty(); bytes = bytes.subspan(piece.size()), ++place) {
      expected_piece[place] = static_cast<std::byte>(place);
      wrong += std::ranges::equal(bytes.first(piece.size()), expected_piece) ? 0 : 1;
    }
  }));
  CHECK(place == 300);
  CHECK(wrong == 0);
}

TEST_CASE("one tensor is written to an NPY file and read back") {
  auto scratch = scratch_directory{};
  auto state = booleans_that_are{assorted_specs()};
  auto original = open_good(save(scratch.path() / "run", state, sample_manifest(), 3).value());
  auto file = scratch.path() / "weights.npy";
  REQUIRE(export_npy(original, "weights", file, existing_file::keep));
  CHECK(read_npy(file)->bytes == state.bytes(0));
  for (const auto* name : {"", "renamed"}) {
    auto target = scratch.path() / (std::string{"imported"} + name);
    auto imported = import_checkpoint(file, target, {.step = {3}, .tensor = name});
    REQUIRE_MESSAGE(imported, imported.error().message);
    auto spec = state.specs()[0];
    spec.name = *name ? name : "weights";
    CHECK(imported->content().tensors.at(0).spec == spec);
    CHECK(imported->content().step == step_id{3});
    auto bytes = std::vector<std::byte>(spec.size_bytes());
    REQUIRE(imported->read_tensor(0, bytes));
    CHECK(bytes == state.bytes(0));
  }
  CHECK(export_npy(original, "wieghts", scratch.path() / "y", existing_file::keep).error().code == errc::not_found);
  CHECK(export_npy(original, "huge", scratch.path() / "y", existing_file::keep).error().code == errc::invalid_argument);
  CHECK_FALSE(fs::exists(scratch.path() / "y"));
}

TEST_CASE("damage in a checkpoint is not exported") {
  auto scratch = scratch_directory{};
  auto state = sample_state{{{"a", dtype::f32, {2000}}, {"b", dtype::f32, {2000}}}};
  auto original = open_good(save(scratch.path() / "run", state, sample_manifest(), 1).value());
  flip_bit(original.directory() / "part-0000.bin", 9000);
  auto failed = export_safetensors(original, scratch.path() / "x", existing_file::keep);
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == errc::damaged);
  CHECK(has(failed.error().message, "tensor \"b\""));
  CHECK(export_npy(original, "b", scratch.path() / "x", existing_file::keep).error().code == errc::damaged);
  CHECK(export_npy(original, "a", scratch.path() / "a", existing_file::keep));
  CHECK(entries_in(scratch.path()) == 2);
}

TEST_CASE("a failed import leaves nothing behind") {
  auto scratch = scratch_directory{};
  auto state = sample_state{{{"a", dtype::f32, {2}}}};
  auto views = state.views();
  auto error_of = [&](const std::map<std::string, std::string>& metadata) {
    auto file = scratch.path() / "x.safetensors";
    REQUIRE(write_safetensors(file, views, metadata, existing_file::replace));
    auto imported = import_checkpoint(file, scratch.path() / "imported");
    REQUIRE_FALSE(imported);
    CHECK(has(imported.error().message, file.string()));
    CHECK(entries_in(scratch.path()) == 1);
    return imported.error();
  };
  CHECK(error_of({{"troupe.format", "2"}}).code == errc::unsupported_version);
  auto refused = [&](const std::string& key, const std::string& value) {
    auto reason = error_of({{"troupe.format", "1"}, {key, value}});
    CAPTURE(key);
    CHECK(reason.code == errc::damaged);
    CHECK(has(reason.message, key));
  };
  refused("troupe.step", "-1");
  refused("troupe.step", "1x");
  refused("troupe.step", "");
  refused("troupe.seed", "18446744073709551616");
  refused("troupe.shards", "4294967296");
  refused("troupe.values", "[1]");
  refused("troupe.values", "{");
  refused("troupe.configuration", "1");
  refused("troupe.numerics_fingerprint", "null");
  refused("troupe.metrics", "{\"a\":\"much\"}");
  refused("troupe.metrics", "[]");
  refused("troupe.attachments", "{\"a\":1}");
  refused("troupe.tensor_order", "{}");
  refused("troupe.tensor_order", "[1]");
  CHECK(error_of({{"troupe.format", "1"}, {"troupe.state_sha256", "no digest"}}).code == errc::mismatch);
  auto file = scratch.path() / "x.safetensors";
  auto text = read_file(file);
  overwrite_file(file, text.substr(0, text.size() - 1));
  CHECK(import_checkpoint(file, scratch.path() / "imported").error().code == errc::damaged);
  fs::remove(file);
  CHECK(import_checkpoint(file, scratch.path() / "imported").error().code == errc::not_found);
  CHECK(entries_in(scratch.path()) == 0);
}

TEST_CASE("an import never overwrites") {
  auto scratch = scratch_directory{};
  auto state = sample_state{{{"a", dtype::f32, {2}}}};
  auto file = scratch.path() / "x.safetensors";
  REQUIRE(write_safetensors(file, state.views(), {}, existing_file::keep));
  fs::create_directories(scratch.path() / "there");
  auto refused = import_checkpoint(file, scratch.path() / "there");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::already_exists);
  CHECK(has(refused.error().message, "there"));
  auto named = import_checkpoint(file, scratch.path() / "new", {.tensor = "b"});
  REQUIRE_FALSE(named);
  CHECK(named.error().code == errc::invalid_argument);
  CHECK_FALSE(fs::exists(scratch.path() / "new"));
  CHECK(fs::is_empty(scratch.path() / "there"));
}
