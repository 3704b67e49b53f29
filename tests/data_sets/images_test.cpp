#include <troupe/data/images.hpp>
#include <troupe/data/loader.hpp>

#include "image_contents.hpp"
#include "image_files.hpp"

#include <doctest/doctest.h>
#include <scratch_directory.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::data;
using testing::all_of;
using testing::image_bytes;
using testing::make_jpeg;
using testing::make_png;
using testing::noise;
using testing::write_file;

namespace {

namespace fs = std::filesystem;

/// A folder of 2 x 2 images, which are what is asked for.
struct folder {
  testing::scratch_directory scratch;
  image_options options{.height = 2, .width = 2, .channels = 1};

  void add(const std::string& path, std::uint8_t value) const {
    write_file(scratch.path() / path, make_png(2, 2, image_bytes(4, value), {.colour = PNG_COLOR_TYPE_GRAY}));
  }

  [[nodiscard]] expected<image_set_ptr> read() const { return read_image_folder(scratch.path(), options); }

  [[nodiscard]] image_set_ptr set() const {
    auto result = read();
    REQUIRE_MESSAGE(result.has_value(), result.error().message);
    return *result;
  }

  [[nodiscard]] std::string fingerprint() const { return set()->fingerprint(); }
};

} // namespace

TEST_CASE("directories are classes in byte order, and images are ordered by class and path") {
  folder f;
  f.add("dog/b.png", 1);
  f.add("dog/a.PNG", 2);
  f.add("dog/deep/er/c.png", 3);
  f.add("cat/z.jpeg", 4); // a PNG by its content
  f.add("dog-old/x.png", 5);
  f.add("Zebra/z.png", 6);
  write_file(f.scratch.path() / "dog/notes.txt", {1});
  write_file(f.scratch.path() / "readme.png", {1});
  auto set = f.set();
  REQUIRE(set->size() == 6);
  CHECK(set->ignored() == 2);
  auto all = all_of(*set);
  CHECK(all.values == std::vector<int>{6, 4, 2, 1, 3, 5});
  CHECK(all.labels == std::vector<std::int64_t>{0, 1, 2, 2, 2, 3});
  REQUIRE(set->columns().size() == 2);
  CHECK(set->columns()[0] == column_spec{"image", dtype::u8, {2, 2, 1}, {}});
  auto names =
      std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"Zebra", "cat", "dog", "dog-old"});
  CHECK(set->columns()[1] == column_spec{"label", dtype::i64, {}, names});
  CHECK(set->name(4) == (f.scratch.path() / "dog/deep/er/c.png").string());
  CHECK_THROWS_AS((void)set->name(6), exception);
}

TEST_CASE("images of any size and kind become samples of one shape") {
  folder f;
  f.options = {.height = 4, .width = 6, .channels = 3, .fit = image_fit::crop};
  write_file(f.scratch.path() / "a/1.jpg", make_jpeg(50, 30, image_bytes(4500, 90)));
  write_file(f.scratch.path() / "a/2.JPG", make_jpeg(5, 9, image_bytes(45, 90), {.colour = JCS_GRAYSCALE}));
  write_file(f.scratch.path() / "a/3.png", make_png(6, 4, image_bytes(96, 90), {.colour = PNG_COLOR_TYPE_RGBA}));
  auto set = f.set();
  batch out;
  REQUIRE(set->fetch(std::vector<std::uint64_t>{2, 0, 1, 0}, out).has_value());
  auto values = out.values<std::uint8_t>("image");
  REQUIRE(values.size() == 4 * 72);
  CHECK(std::ranges::all_of(values, [](int x) { return x >= 88 && x <= 92; }));
}

TEST_CASE("a second folder takes the codes of the first") {
  folder f;
  f.add("cat/1.png", 1);
  f.add("ant/2.png", 2);
  f.options.categories = {"dog", "cat", "ant"};
  auto all = all_of(*f.set());
  CHECK(all.labels == std::vector<std::int64_t>{1, 2});
  CHECK(all.values == std::vector<int>{1, 2});
  CHECK(*f.set()->columns()[1].categories == f.options.categories);
  f.add("yak/3.png", 3);
  auto refused = f.read();
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error() ==
        error{errc::mismatch, (f.scratch.path() / "yak").string() + ": the class is none of the 3 given categories"});
}

TEST_CASE("links inside of a folder are not followed") {
  folder f;
  f.add("a/1.png", 1);
  fs::create_directory_symlink(f.scratch.path(), f.scratch.path() / "a/loop");
  fs::create_directory_symlink(f.scratch.path() / "a", f.scratch.path() / "b");
  fs::create_symlink("1.png", f.scratch.path() / "a/2.png");
  auto set = f.set();
  CHECK(set->size() == 1);
  CHECK(set->ignored() == 3);
  // The folder itself may be one.
  testing::scratch_directory elsewhere;
  fs::create_directory_symlink(f.scratch.path(), elsewhere.path() / "data");
  CHECK(value_or_throw(read_image_folder(elsewhere.path() / "data", f.options))->fingerprint() == set->fingerprint());
}

TEST_CASE("a folder without images is an error that names the place") {
  folder f;
  auto says = [&](errc code, const fs::path& where, const std::string& what) {
    auto read = f.read();
    REQUIRE_FALSE(read.has_value());
    CHECK(read.error().code == code);
    CHECK_MESSAGE(read.error().message.find(where.string() + ": " + what) == 0, read.error().message);
  };
  says(errc::not_found, f.scratch.path(), "no directories, expected one for each class");
  fs::create_directories(f.scratch.path() / "b/c");
  says(errc::not_found, f.scratch.path() / "b", "the class has no .jpg, .jpeg or .png files");
  auto missing = read_image_folder("/nowhere/images", f.options);
  REQUIRE_FALSE(missing.has_value());
  CHECK(missing.error() == error{errc::not_found, "/nowhere/images: No such file or directory"});
  write_file(f.scratch.path() / "file", {1});
  CHECK(read_image_folder(f.scratch.path() / "file", f.options).error().code == errc::io_error);
}

TEST_CASE("options out of range are refused") {
  folder f;
  f.add("a/1.png", 1);
  for (const auto& [options, says] : std::vector<std::pair<image_options, std::string>>{
           {{}, "images of 0 x 0 pixels (height x width): set both"},
           {{.height = 2}, "images of 2 x 0 pixels"},
           {{.height = 2, .width = 16385}, "from 1 to 16384"},
           {{.height = 2, .width = 2, .channels = 4}, "images of 4 channels"},
       }) {
    auto read = read_image_folder(f.scratch.path(), options);
    REQUIRE_FALSE(read.has_value());
    CHECK(read.error().code == errc::invalid_argument);
    CHECK_MESSAGE(read.error().message.find(says) != std::string::npos, read.error().message);
  }
}

TEST_CASE("an image that cannot be used fails the fetch, by name") {
  folder f;
  f.add("a/1.png", 1);
  f.add("a/2.png", 2);
  const auto path = f.scratch.path() / "a/2.png";
  auto refusal = [&](const data_set& set) {
    batch out;
    CHECK(set.fetch(std::vector<std::uint64_t>{0}, out).has_value());
    auto done = set.fetch(std::vector<std::uint64_t>{0, 1}, out);
    REQUIRE_FALSE(done.has_value());
    CHECK_MESSAGE(done.error().message.find(path.string() + ": ") == 0, done.error().message);
    return done.error();
  };
  SUBCASE("damaged") {
    auto content = make_png(2, 2, image_bytes(4), {.colour = PNG_COLOR_TYPE_GRAY});
    content[content.size() - 20] ^= 1U;
    write_file(path, content);
    CHECK(refusal(*f.set()).code == errc::damaged);
  }
  SUBCASE("empty") {
    write_file(path, {});
    CHECK(refusal(*f.set()).code == errc::damaged);
  }
  SUBCASE("of another size") {
    write_file(path, make_png(3, 2, image_bytes(6), {.colour = PNG_COLOR_TYPE_GRAY}));
    f.options.fit = image_fit::exact;
    CHECK(refusal(*f.set()).code == errc::invalid_argument);
  }
  SUBCASE("changed since") {
    auto set = f.set();
    auto before = testing::read_file(path);
    write_file(path, {before.begin(), before.end() - 1});
    CHECK(refusal(*set).code == errc::mismatch);
    before += "x";
    write_file(path, {before.begin(), before.end()});
    CHECK(refusal(*set).code == errc::mismatch);
    fs::remove(path);
    CHECK(refusal(*set).code == errc::not_found);
    fs::create_directory(path);
    CHECK(refusal(*set).code == errc::io_error);
  }
}

TEST_CASE("a fingerprint knows content, names and options, and not the place") {
  folder f;
  folder g;
  for (const auto* x : {&f, &g}) {
    x->add("a/1.png", 1);
    x->add("b/2.png", 2);
  }
  const auto original = f.fingerprint();
  CHECK(g.fingerprint() == original);
  auto differs = [&](auto change) {
    auto options = g.options;
    change(options);
    return value_or_throw(read_image_folder(g.scratch.path(), options))->fingerprint() != original;
  };
  CHECK(differs([](image_options& x) { x.height = 3; }));
  CHECK(differs([](image_options& x) { x.width = 3; }));
  CHECK(differs([](image_options& x) { x.channels = 3; }));
  CHECK(differs([](image_options& x) { x.fit = image_fit::stretch; }));
  CHECK(differs([](image_options& x) { x.categories = {"b", "a"}; }));
  CHECK(differs([](image_options& x) { x.fingerprint = image_fingerprint::names_and_sizes; }));

  f.options.fingerprint = g.options.fingerprint = image_fingerprint::names_and_sizes;
  const auto by_names = g.fingerprint();
  g.add("b/2.png", 3);
  REQUIRE(fs::file_size(g.scratch.path() / "b/2.png") == fs::file_size(f.scratch.path() / "b/2.png"));
  CHECK(g.fingerprint() == by_names); // what it does not notice
  g.options.fingerprint = image_fingerprint::content;
  CHECK(g.fingerprint() != original);
  write_file(g.scratch.path() / "b/2.png", make_png(3, 3, image_bytes(9, 2), {.colour = PNG_COLOR_TYPE_GRAY}));
  g.options.fingerprint = image_fingerprint::names_and_sizes;
  CHECK(g.fingerprint() != by_names);

  fs::rename(f.scratch.path() / "b/2.png", f.scratch.path() / "b/3.png");
  CHECK(f.fingerprint() != by_names);
  f.options.fingerprint = image_fingerprint::content;
  CHECK(f.fingerprint() != original);
}

TEST_CASE("making a data set gives signs of life") {
  folder f;
  for (int i = 0; i < 5; ++i)
    f.add("a/" + std::to_string(i) + ".png", 1);
  int beats = 0;
  f.options.heartbeat = [&] { ++beats; };
  (void)f.set();
  CHECK(beats == 10);
}

TEST_CASE("a loader has the same batches with any number of threads") {
  folder f;
  f.options = {.height = 5, .width = 7, .channels = 3, .fit = image_fit::crop};
  for (std::uint32_t i = 0; i < 40; ++i) {
    auto name = std::string(1, static_cast<char>('a' + i % 3)) + "/" + std::to_string(i);
    auto width = 4 + i % 9;
    auto height = 5 + i % 7;
    auto values = noise(std::size_t{width} * height * 3, i);
    if (i % 2 == 0)
      write_file(f.scratch.path() / (name + ".jpg"), make_jpeg(width, height, values));
    else
      write_file(f.scratch.path() / (name + ".png"), make_png(width, height, values));
  }
  auto set = f.set();
  constexpr std::uint32_t shards = 8;
  auto run = [&](std::size_t threads, std::size_t ahead) {
    auto batches = loader{set, {.batch_samples = 16, .prefetch_shards = ahead, .threads = threads}, shards, 3};
    auto order = data_order{batches.epoch_samples(), 16, shards, 3};
    image_bytes values;
    std::vector<std::int64_t> labels;
    std::vector<std::uint64_t> samples;
    for (std::uint64_t step = 1; step <= 10; ++step)
      for (std::uint32_t v = 0; v < shards; ++v) {
        order.samples_of(step_id{step}, shard_id{v}, samples);
        const auto& own = *value_or_throw(batches.fetch(step_id{step}, shard_id{v}, samples));
        auto image = own.values<std::uint8_t>("image");
        auto label = own.values<std::int64_t>("label");
        values.insert(values.end(), image.begin(), image.end());
        labels.insert(labels.end(), label.begin(), label.end());
      }
    return std::pair{values, labels};
  };
  const auto expected_batches = run(1, 0);
  CHECK(expected_batches.second.size() == 160);
  for (std::size_t threads : {1U, 2U, 4U})
    for (std::size_t ahead : {1U, 3U, 8U})
      CHECK(run(threads, ahead) == expected_batches);
}
