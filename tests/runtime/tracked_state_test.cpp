#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/chunk_plan.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/tracked_state.hpp>

#include <doctest/doctest.h>
#include <hidden_memory.hpp>
#include <scratch_directory.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <tuple>

namespace troupe {

namespace {

namespace fs = std::filesystem;

using scratch = testing::scratch_directory;

/// Writes what is tracked as a checkpoint of `parts` workers.
fs::path save(const fs::path& directory, const tracked_state& state, std::uint32_t parts = 2) {
  serialization::manifest content;
  content.run = run_id{"0123456789abcdef0123456789abcdef"};
  content.step = step_id{5};
  content.generation = generation_id{1};
  content.world_size = parts;
  content.values_json = state.values().dump();
  auto specs = state.specs();
  auto plan = serialization::plan_chunks(specs, parts);
  auto temporary = directory / serialization::temporary_name({content.run, content.step, content.generation, 1});
  std::vector<serialization::part_report> reports;
  for (std::uint32_t part = 0; part < parts; ++part)
    reports.push_back(value_or_throw(serialization::write_part(temporary, part, plan, state.tensors())));
  value_or_throw(serialization::add_parts(content, specs, plan, reports));
  return value_or_throw(serialization::commit_checkpoint(directory, temporary, content));
}

std::shared_ptr<const serialization::checkpoint> open(const fs::path& path) {
  return std::make_shared<const serialization::checkpoint>(value_or_throw(serialization::checkpoint::open(path)));
}

/// What `f` throws.
error thrown_by(const std::function<void()>& f) {
  try {
    f();
  } catch (const exception& x) {
    return x.reason();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class T>
std::vector<T> counted(std::size_t n, T first) {
  std::vector<T> result(n);
  std::iota(result.begin(), result.end(), first);
  return result;
}

/// What the tests track: a matrix, an empty tensor, and something longer than a slice.
struct sample {
  std::vector<float> weights = counted<float>(12, 0.5f);
  std::vector<double> none;
  std::vector<std::int64_t> large = counted<std::int64_t>(40'000, -7);

  void track(tracked_state& state) {
    state.track("weights", weights, {3, 4});
    state.track("none", none);
    state.track("large", large);
  }
};

TEST_CASE("tensors are tracked with their names, types and shapes") {
  tracked_state state;
  sample mine;
  mine.track(state);
  CHECK(state.specs() == std::vector<tensor_spec>{{"weights", dtype::f32, {3, 4}},
                                                  {"none", dtype::f64, {0}},
                                                  {"large", dtype::i64, {40'000}}});
  REQUIRE(state.tensors().size() == 3);
  CHECK(state.tensors()[0].data == reinterpret_cast<std::byte*>(mine.weights.data()));
  CHECK(state.untouched().empty());
}

TEST_CASE("a name is taken once, and a refused tensor is not tracked") {
  tracked_state state;
  std::vector<float> a(3);
  std::vector<double> b(4);
  state.track("a", a);
  auto twice = thrown_by([&] { state.track("a", b); });
  CHECK(twice.code == errc::invalid_argument);
  CHECK(contains(twice.message, "'a'"));
  CHECK(contains(twice.message, "twice"));
  CHECK(state.tensors().size() == 1);
}

TEST_CASE("a shape that its memory does not have is refused") {
  tracked_state state;
  std::vector<float> a(6);
  auto wrong = thrown_by([&] { state.track("a", a, {2, 4}); });
  CHECK(wrong.code == errc::invalid_argument);
  CHECK(contains(wrong.message, "'a'"));
  CHECK(contains(wrong.message, "f32 [2, 4]"));
  CHECK(contains(wrong.message, "32 bytes"));
  CHECK(contains(wrong.message, "24"));
  CHECK(state.tensors().empty());
  state.track("a", a, {2, 3});
  CHECK(state.tensors().size() == 1);
}

TEST_CASE("tracking restores what a checkpoint holds, however many wrote it and in whatever order it is tracked") {
  for (std::uint32_t parts : {1u, 3u}) {
    scratch place;
    sample saved;
    tracked_state before;
    saved.track(before);
    before.values()["lr"] = 0.25;
    before.values()["note"] = "héllo";
    auto path = save(place.path(), before, parts);

    tracked_state after;
    after.restore_from(open(path));
    CHECK(after.values() == before.values());
    CHECK(after.untouched() == std::vector<std::string>{"weights", "none", "large"});
    std::vector<std::int64_t> large(40'000);
    after.track("large", large);
    CHECK(large == saved.large);
    CHECK(after.untouched() == std::vector<std::string>{"weights", "none"});
    std::vector<float> weights(12, 99.0f);
    after.track("weights", weights, {3, 4});
    CHECK(weights == saved.weights);
    std::vector<double> none;
    after.track("none", none);
    CHECK(after.untouched().empty());
    CHECK(after.sha256() == before.sha256());
  }
}

TEST_CASE("without a checkpoint what is tracked is left as it is") {
  tracked_state state;
  auto a = counted<float>(5, 3.0f);
  state.track("a", a);
  CHECK(a == counted<float>(5, 3.0f));
}

TEST_CASE("what does not fit a checkpoint is refused with both sides") {
  scratch place;
  sample saved;
  tracked_state before;
  saved.track(before);
  auto path = save(place.path(), before);
  tracked_state after;
  after.restore_from(open(path));

  // All of it, once everything is tracked.
  std::vector<float> other(12, 3.0f);
  std::vector<float> momentum(2);
  std::vector<float> velocity(3);
  after.track("momentum", momentum);
  after.track("velocity", velocity);
  after.track("weights", other, {4, 3});
  CHECK(other == std::vector<float>(12, 3.0f));
  auto flaws = thrown_by([&] { after.check_restored(); });
  CHECK(flaws.code == errc::mismatch);
  CHECK(contains(flaws.message, path.string()));
  CHECK(contains(flaws.message, "missing in it: 'momentum' f32 [2], 'velocity' f32 [3]"));
  CHECK(contains(flaws.message, "'weights' is f32 [3, 4], but tracked as f32 [4, 3]"));
  CHECK(contains(flaws.message, "'none', 'large'"));

  tracked_state another;
  another.restore_from(open(path));
  std::vector<std::int32_t> integers(12);
  another.track("weights", integers, {3, 4});
  CHECK(contains(thrown_by([&] { another.check_restored(); }).message, "but tracked as i32 [3, 4]"));
}

TEST_CASE("a state of another run can be taken in part, and under other names") {
  scratch place;
  sample saved;
  tracked_state before;
  saved.track(before);
  auto path = save(place.path(), before);
  load_options options;
  options.allow_missing = true;
  options.ignore_extra = true;
  options.renames = {{"weights", "encoder.weights"}};
  tracked_state after;
  after.restore_from(open(path), options);
  std::vector<float> encoder(12);
  std::vector<float> head(2, 5.0f);
  // The name that it had there is free for another.
  std::vector<float> weights(1, 7.0f);
  after.track("encoder.weights", encoder, {3, 4});
  after.track("head", head);
  after.track("weights", weights);
  after.check_restored();
  CHECK(std::ranges::equal(std::as_bytes(std::span{encoder}),
                           std::span{before.tensors()[0].data, before.tensors()[0].spec.size_bytes()}));
  CHECK(head == std::vector<float>(2, 5.0f));
  CHECK(weights == std::vector<float>(1, 7.0f));

  options.renames = {{"wieghts", "encoder.weights"}};
  tracked_state mistaken;
  mistaken.restore_from(open(path), options);
  // What is not tracked yet is no flaw so far.
  CHECK_FALSE(contains(thrown_by([&] { mistaken.check_restored_so_far(); }).message, "not tracked"));
  CHECK(contains(thrown_by([&] { mistaken.check_restored(); }).message, "to be renamed, but not in it: 'wieghts'"));
}

TEST_CASE("damage in a checkpoint is found when its tensor is tracked") {
  scratch place;
  sample saved;
  tracked_state before;
  saved.track(before);
  auto path = save(place.path(), before, 1);
  auto source = open(path);
  auto file = path / serialization::part_file_name(0);
  auto offset = source->content().tensors[2].chunks[0].offset_bytes;
  {
    auto* stream = std::fopen(file.c_str(), "r+b");
    REQUIRE(stream != nullptr);
    std::fseek(stream, static_cast<long>(offset + 100), SEEK_SET);
    std::fputc(0x55, stream);
    std::fclose(stream);
  }
  tracked_state after;
  after.restore_from(source);
  std::vector<std::int64_t> large(40'000);
  auto damage = thrown_by([&] { after.track("large", large); });
  CHECK(damage.code == errc::damaged);
  CHECK(contains(damage.message, "large"));
  CHECK(after.tensors().empty());
}

TEST_CASE("digests notice a single flipped bit anywhere, and name its tensor") {
  tracked_state state;
  sample mine;
  mine.track(state);
  auto whole = state.digest();
  auto parts = state.digests();
  REQUIRE(parts.size() == 4);
  CHECK(state.name_of_part(0) == "tensor 'weights'");
  CHECK(state.name_of_part(2) == "tensor 'large'");
  CHECK(state.name_of_part(3) == "values()");
  auto identity = state.sha256();
  auto check_flip = [&](std::size_t tensor, std::size_t byte, unsigned bit) {
    CAPTURE(tensor);
    CAPTURE(byte);
    auto& target = state.tensors()[tensor].data[byte];
    target ^= std::byte{1} << bit;
    CHECK(state.digest() != whole);
    CHECK(state.sha256() != identity);
    auto now = state.digests();
    for (std::size_t i = 0; i < parts.size(); ++i)
      CHECK((now[i] != parts[i]) == (i == tensor));
    target ^= std::byte{1} << bit;
    CHECK(state.digest() == whole);
  };
  for (std::size_t byte = 0; byte < 48; ++byte)
    check_flip(0, byte, byte % 8);
  for (std::size_t byte : {0u, 65'535u, 65'536u, 131'072u, 319'999u})
    check_flip(2, byte, 3);
}

TEST_CASE("digests notice a changed value") {
  tracked_state state;
  state.values()["lr"] = 0.5;
  auto whole = state.digest();
  auto parts = state.digests();
  auto slice = state.digest_of_slice(0);
  state.values()["lr"] = 0.25;
  CHECK(state.digest() != whole);
  CHECK(state.digests() != parts);
  CHECK(state.digest_of_slice(0) != slice);
}

TEST_CASE("two tensors that exchange their contents are noticed") {
  tracked_state state;
  std::vector<float> a{1, 2};
  std::vector<float> b{3, 4};
  state.track("a", a);
  state.track("b", b);
  auto whole = state.digest();
  std::swap(a[0], b[0]);
  std::swap(a[1], b[1]);
  CHECK(state.digest() != whole);
}

TEST_CASE("the slices of one round cover the whole state") {
  tracked_state state;
  std::vector<float> small(3, 1.0f);
  std::vector<float> none;
  std::vector<float> exact(2 * 16'384, 2.0f); // two slices of 64 KiB
  std::vector<float> odd(16'385, 3.0f);       // one slice and a bit
  state.track("small", small);
  state.track("none", none);
  state.track("exact", exact);
  state.track("odd", odd);
  constexpr std::uint64_t slices = 1 + 0 + 2 + 2 + 1; // the values are the last
  auto round = [&](std::uint64_t first) {
    std::vector<std::uint64_t> result;
    for (std::uint64_t i = 0; i < slices; ++i)
      result.push_back(state.digest_of_slice(first + i));
    return result;
  };
  auto before = round(0);
  CHECK(round(slices) == before);
  auto changed = [&](auto&& change, auto&& undo) {
    change();
    std::size_t differing = 0;
    auto now = round(0);
    for (std::size_t i = 0; i < slices; ++i)
      differing += now[i] != before[i] ? 1 : 0;
    undo();
    return differing;
  };
  for (auto* tensor : {&small, &exact, &odd})
    for (auto index : {std::size_t{0}, tensor->size() / 2 - 1, tensor->size() / 2, tensor->size() - 1}) {
      CAPTURE(index);
      auto old = (*tensor)[index];
      // The sign is in an element's last byte, the last digit in its first.
      CHECK(changed([&] { (*tensor)[index] = -old; }, [&] { (*tensor)[index] = old; }) == 1);
      CHECK(changed([&] { (*tensor)[index] = std::nextafter(old, 9.0f); }, [&] { (*tensor)[index] = old; }) == 1);
    }
  CHECK(changed([&] { state.values()["x"] = 1; }, [&] { state.values().erase("x"); }) == 1);
  CHECK(round(17 * slices) == before);
}

TEST_CASE("the identity is that of the stored state, and empty when nothing is tracked") {
  tracked_state state;
  CHECK(state.sha256().empty());
  state.values()["epoch"] = 3;
  CHECK(state.sha256() == serialization::state_sha256({}, R"({"epoch":3})"));
  sample mine;
  mine.track(state);
  CHECK(state.sha256().size() == 64);
  CHECK(state.sha256() == serialization::state_sha256(state.tensors(), state.values().dump()));
  scratch place;
  auto stored = open(save(place.path(), state, 3));
  CHECK(state.sha256() == value_or_throw(serialization::state_sha256(*stored)));
}

/// The same tensors as `sample`, at no address.
struct hidden_sample {
  std::shared_ptr<testing::hidden_memory> weights = std::make_shared<testing::hidden_memory>(12 * sizeof(float));
  std::shared_ptr<testing::hidden_memory> none = std::make_shared<testing::hidden_memory>(0);
  std::shared_ptr<testing::hidden_memory> large =
      std::make_shared<testing::hidden_memory>(40'000 * sizeof(std::int64_t));

  void fill(const sample& from) const {
    weights->assign(from.weights);
    large->assign(from.large);
  }

  void track(tracked_state& state) const {
    state.track("weights", dtype::f32, {3, 4}, weights);
    state.track("none", dtype::f64, {0}, none);
    state.track("large", dtype::i64, {40'000}, large);
  }
};

TEST_CASE("a state that no pointer leads to has the digests and the identity of one that lies here") {
  tracked_state here;
  tracked_state there;
  sample mine;
  hidden_sample theirs;
  theirs.fill(mine);
  mine.track(here);
  theirs.track(there);
  CHECK(there.specs() == here.specs());
  CHECK(there.tensors()[0].data == nullptr);
  CHECK(there.distant_memory() == theirs.weights);
  CHECK(here.distant_memory() == nullptr);
  CHECK(there.digests() == here.digests());
  CHECK(there.digest() == here.digest());
  CHECK(there.sha256() == here.sha256());
  for (std::uint64_t number = 0; number < 9; ++number)
    CHECK(there.digest_of_slice(number) == here.digest_of_slice(number));
  // And follows what is written there.
  mine.large[39'999] = 5;
  theirs.large->assign(mine.large);
  CHECK(there.digests() == here.digests());
  std::vector<std::byte> range(16);
  there.copy_out(2, 39'998 * 8, range);
  CHECK(std::equal(range.begin(), range.end(), here.in_place(2, 39'998 * 8, 16).begin()));
  there.copy_in(2, 8, range);
  CHECK(theirs.large->values<std::int64_t>()[2] == 5);
}

TEST_CASE("a state that no pointer leads to is restored from what is stored") {
  scratch place;
  sample saved;
  tracked_state before;
  saved.track(before);
  auto path = save(place.path(), before, 3);
  tracked_state after;
  after.restore_from(open(path));
  hidden_sample loaded;
  loaded.track(after);
  after.check_restored();
  CHECK(loaded.weights->values<float>() == saved.weights);
  CHECK(loaded.large->values<std::int64_t>() == saved.large);
  CHECK(after.sha256() == before.sha256());
}

TEST_CASE("errors of a tensor_memory are passed on, and one of another size is refused") {
  tracked_state state;
  hidden_sample mine;
  mine.track(state);
  mine.large->trouble = {errc::io_error, "GPU 0: no such luck"};
  CHECK(thrown_by([&] { std::ignore = state.digest(); }) == mine.large->trouble);
  CHECK(thrown_by([&] { std::ignore = state.sha256(); }) == mine.large->trouble);
  auto wrong = thrown_by([&] { state.track("short", dtype::f32, {5}, mine.weights); });
  CHECK(wrong.code == errc::invalid_argument);
  CHECK(contains(wrong.message, "20 bytes"));
  CHECK(contains(wrong.message, "48"));
  CHECK(thrown_by([&] { state.track("none", dtype::f64, {0}, mine.none); }).code == errc::invalid_argument);
}

} // namespace

} // namespace troupe
