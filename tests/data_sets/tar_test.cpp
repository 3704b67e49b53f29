#include <troupe/data/tar.hpp>

#include "image_contents.hpp"
#include "image_files.hpp"

#include "images/tar_archive.hpp"

#include <doctest/doctest.h>
#include <scratch_directory.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

using namespace troupe;
using namespace troupe::data;
using testing::all_of;
using testing::image_bytes;
using testing::make_png;
using testing::write_file;

namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

std::string text_of(const image_bytes& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string image(std::uint8_t value) {
  return text_of(make_png(2, 2, image_bytes(4, value), {.colour = PNG_COLOR_TYPE_GRAY}));
}

/// What is unusual in a header.
struct fields {
  char type = '0';
  /// Instead of the content's size, as 12 bytes.
  std::string size = {};
  std::string magic = "ustar\00000"s;
  std::string prefix = {};
};

/// A crafted archive.
struct crafted {
  std::string bytes;

  crafted& add(const std::string& name, const std::string& content, const fields& f = {}) {
    std::string head(512, '\0');
    auto set = [&](std::size_t place, const std::string& value) { head.replace(place, value.size(), value); };
    set(0, name.substr(0, 100));
    set(100, "0000644");
    set(108, "0000000");
    set(116, "0000000");
    char octal[13];
    std::snprintf(octal, sizeof(octal), "%011zo", content.size());
    set(124, f.size.empty() ? octal + "\0"s : f.size);
    set(136, "00000000000");
    head[156] = f.type;
    set(257, f.magic);
    set(345, f.prefix);
    set(148, "        ");
    unsigned sum = 0;
    for (auto byte : head)
      sum += static_cast<unsigned char>(byte);
    std::snprintf(octal, sizeof(octal), "%06o", sum);
    set(148, octal + "\0 "s);
    bytes += head + content;
    bytes.resize((bytes.size() + 511) / 512 * 512);
    return *this;
  }

  crafted& pax(const std::string& key, const std::string& value, char type = 'x') {
    auto rest = " " + key + "=" + value + "\n";
    auto length = rest.size() + 1;
    while (std::to_string(length).size() + rest.size() != length)
      ++length;
    return add("PaxHeaders/x", std::to_string(length) + rest, {.type = type});
  }

  [[nodiscard]] std::string ended() const { return bytes + std::string(1024, '\0'); }
};

struct listed {
  std::vector<std::string> names;
  std::vector<std::string> contents;

  bool operator==(const listed&) const = default;
};

expected<listed> list(const std::string& archive) {
  listed result;
  auto done = read_tar(std::as_bytes(std::span{archive}), "x.tar", [&](const tar_member& member) -> expected<void> {
    result.names.push_back(member.name);
    result.contents.push_back(archive.substr(member.offset, member.bytes));
    return {};
  });
  if (!done)
    return fail(done.error());
  return result;
}

error refusal(const std::string& archive) {
  auto done = list(archive);
  return done ? error{} : done.error();
}

const image_options small{.height = 2, .width = 2, .channels = 1};

struct shards {
  testing::scratch_directory scratch;
  std::vector<fs::path> paths;

  shards& add(const std::string& archive) {
    paths.push_back(scratch.path() / (std::to_string(paths.size()) + ".tar"));
    write_file(paths.back(), {archive.begin(), archive.end()});
    return *this;
  }

  [[nodiscard]] expected<image_set_ptr> read(const image_options& options = small) const {
    return read_tar_shards(paths, options);
  }

  [[nodiscard]] image_set_ptr set(const image_options& options = small) const {
    auto result = read(options);
    REQUIRE_MESSAGE(result.has_value(), result.error().message);
    return *result;
  }
};

} // namespace

TEST_CASE("archives of every format that tar writes are read, with long names") {
  testing::scratch_directory scratch;
  const auto input = scratch.path() / "in";
  const auto deep = "a/" + std::string(90, 'd') + "/" + std::string(60, 'e'); // fits a prefix and a name
  const auto longer = "b/" + std::string(200, 'f') + "/" + std::string(150, 'g');
  for (const auto& [name, value] : {std::pair{"a/0001"s, 1}, {"a/0002"s, 2}, {deep, 3}, {longer, 4}}) {
    write_file(input / (name + ".png"),
               make_png(2, 2, image_bytes(4, static_cast<std::uint8_t>(value)), {.colour = PNG_COLOR_TYPE_GRAY}));
    auto label = std::to_string(10 * value) + "\n";
    write_file(input / (name + ".cls"), {label.begin(), label.end()});
    write_file(input / (name + ".json"), {'{', '}'});
  }
  for (const auto* format : {"ustar", "gnu", "pax", "v7", "oldgnu"}) {
    CAPTURE(format);
    const bool short_names = format == "v7"s || format == "ustar"s;
    const auto path = scratch.path() / (format + ".tar"s);
    const auto command =
        "tar --format="s + format + " --sort=name -cf " + path.string() + " -C " + input.string() +
        (short_names ? " a/0001.png a/0001.cls a/0001.json a/0002.cls a/0002.png a/0002.json"s : " a b"s) +
        (format == "ustar"s ? " " + deep + ".cls " + deep + ".png " + deep + ".json" : ""s);
    REQUIRE(std::system(command.c_str()) == 0);
    auto set = value_or_throw(read_tar_shards({path}, small));
    auto all = all_of(*set);
    const auto count = format == "v7"s ? 2U : format == "ustar"s ? 3U : 4U;
    REQUIRE(set->size() == count);
    CHECK(set->ignored() == count);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(all.values[i] == static_cast<int>(i) + 1);
      CHECK(all.labels[i] == all.values[i] * 10);
    }
    CHECK(set->name(1) == path.string() + ": a/0002.png");
    if (count == 4)
      CHECK(set->name(3) == path.string() + ": " + longer + ".png");
  }
}

TEST_CASE("samples are in the order of shards and keys, whatever stands between their files") {
  shards s;
  s.add(crafted{}
            .add("7.cls", "5")
            .add("9.PNG", image(1))
            .add("7.png", image(2))
            .add("9.cls", "0 \n")
            .add("7.meta.png", "not the image")
            .add("__MACOSX/._7.png", "x")
            .add("README", "x")
            .ended());
  s.add(crafted{}.add("7.jpeg", image(3)).add("7.cls", "3").ended());
  auto set = s.set();
  auto all = all_of(*set);
  CHECK(all.values == std::vector<int>{2, 1, 3});
  CHECK(all.labels == std::vector<std::int64_t>{5, 0, 3});
  CHECK(set->ignored() == 3);
  CHECK(set->columns()[1] == column_spec{"label", dtype::i64, {}, {}});
  CHECK(set->name(1) == s.paths[0].string() + ": 9.PNG");
  // Where the shards are cut does not matter.
  shards joined;
  joined.add(crafted{}.add("7.png", image(2)).add("7.cls", "5").ended());
  joined.add(crafted{}.add("9.png", image(1)).add("9.cls", "0").ended());
  joined.add(crafted{}.add("7.png", image(3)).add("7.cls", "3").ended());
  CHECK(joined.set()->fingerprint() == set->fingerprint());
  joined.paths.pop_back();
  CHECK(joined.set()->fingerprint() != set->fingerprint());
}

TEST_CASE("labels are optional, and may be codes of categories") {
  shards s;
  s.add(crafted{}.add("a.png", image(1)).add("b.png", image(2)).ended());
  auto set = s.set();
  CHECK(set->columns().size() == 1);
  CHECK(all_of(*set).values == std::vector<int>{1, 2});

  shards labelled;
  labelled.add(crafted{}.add("a.png", image(1)).add("a.cls", "1").ended());
  auto options = small;
  options.categories = {"cat", "dog"};
  CHECK(*labelled.set(options)->columns()[1].categories == options.categories);
  CHECK(labelled.set(options)->fingerprint() != labelled.set()->fingerprint());
  options.categories = {"cat"};
  auto refused = labelled.read(options);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == errc::invalid_argument);
  CHECK(refused.error().message ==
        labelled.paths[0].string() + ": byte 1024: a.cls holds label 1, and there are 1 categories");
}

TEST_CASE("a changed image, label or key changes the fingerprint") {
  auto fingerprint = [](const std::string& key, std::uint8_t value, const std::string& label,
                        image_fingerprint how = image_fingerprint::content) {
    shards s;
    auto options = small;
    options.fingerprint = how;
    s.add(crafted{}.add(key + ".png", image(value)).add(key + ".cls", label).ended());
    return s.set(options)->fingerprint();
  };
  const auto original = fingerprint("a", 1, "1");
  CHECK(fingerprint("a", 1, "1") == original);
  CHECK(fingerprint("b", 1, "1") != original);
  CHECK(fingerprint("a", 2, "1") != original);
  CHECK(fingerprint("a", 1, "2") != original);
  const auto names = image_fingerprint::names_and_sizes;
  CHECK(fingerprint("a", 1, "1", names) == fingerprint("a", 2, "1", names));
  CHECK(fingerprint("a", 1, "1", names) != fingerprint("a", 1, "2", names));
}

TEST_CASE("names and sizes are read from every kind of header") {
  const auto content = std::string(700, 'x');
  auto one = [](const std::string& name, const std::string& what) { return listed{{name}, {what}}; };
  CHECK(list(crafted{}.add("n", content, {.prefix = "some/where"}).ended()) == one("some/where/n", content));
  // Before POSIX there was no prefix: GNU's headers have times in its place.
  CHECK(list(crafted{}.add("n", content, {.magic = "ustar  \0"s, .prefix = "12345"}).ended()) == one("n", content));
  CHECK(list(crafted{}.add("n", content, {.type = '\0', .magic = std::string(8, '\0')}).ended()) == one("n", content));
  CHECK(list(crafted{}.add("n", content, {.size = "       1274 "}).ended()) == one("n", content));
  CHECK(list(crafted{}.add("n", content, {.size = "\x80"s + std::string(9, '\0') + "\x02\xbc"}).ended()) ==
        one("n", content));
  CHECK(list(crafted{}.pax("path", "a=b\nc/\xc3\xa4").add("n", content).ended()) == one("a=b\nc/\xc3\xa4", content));
  CHECK(list(crafted{}.pax("size", "700").add("n", content, {.size = "00000000000\0"s}).ended()) == one("n", content));
  CHECK(list(crafted{}.pax("comment", "a commit", 'g').pax("mtime", "1.5").add("n", content).ended()) ==
        one("n", content));
  CHECK(list(crafted{}.add("././@LongLink", "long/name\0"s, {.type = 'L'}).add("n", content).ended()) ==
        one("long/name", content));
  // A long name is that of one member alone.
  CHECK(list(crafted{}.add("@", "long\0"s, {.type = 'L'}).add("m", "1").add("n", "2").ended()) ==
        listed{{"long", "n"}, {"1", "2"}});
  CHECK(list(crafted{}.add("@", "target\0"s, {.type = 'K'}).add("l", "", {.type = '2'}).ended()) == one("l", ""));
  CHECK(list(crafted{}.add("d/", "", {.type = '5'}).add("old/", "", {.type = '\0'}).add("n", "").ended()) ==
        one("n", ""));
  // The size of a hard link is that of the file it leads to.
  CHECK(list(crafted{}.add("l", "", {.type = '1', .size = "00000001000\0"s}).add("n", "1").ended()) ==
        listed{{"l", "n"}, {"", "1"}});
}

TEST_CASE("what is not a whole tar archive is refused with file and byte") {
  const auto good = crafted{}.add("a", "1").add("b", "2");
  auto damaged_checksum = good.ended();
  damaged_checksum[1024 + 5] = 'x';
  struct sample_case {
    std::string archive;
    std::string says;
  };
  for (const auto& [archive, says] : {
           sample_case{"", "byte 0: not a tar archive: it has 0 bytes"},
           sample_case{"hello", "byte 0: not a tar archive: it has 5 bytes"},
           sample_case{std::string(2000, 'x'), "byte 0: not a tar archive: no header with a valid checksum"},
           sample_case{"\x1f\x8b"s + good.ended(), "byte 0: compressed with gzip: unpack it"},
           sample_case{good.bytes, "byte 2048: truncated: the archive has no end mark"},
           sample_case{good.bytes + std::string(512, '\0'), "byte 2048: truncated: the archive has half an end mark"},
           sample_case{good.bytes.substr(0, 1536), "byte 1024: truncated: a member of 1 bytes, of which 0 are there"},
           sample_case{damaged_checksum, "byte 1024: damaged: a header with an invalid checksum"},
           sample_case{good.ended() + good.ended(), "byte 3072: data after the end mark"},
           sample_case{crafted{}.add("a", "1", {.size = "0000000000x\0"s}).ended(), "a header with an invalid size"},
           sample_case{crafted{}.add("a", "1", {.size = std::string(12, '\xff')}).ended(), "with an invalid size"},
           sample_case{crafted{}.add("a", "1", {.size = "\x80"s + std::string(11, '\x7f')}).ended(), "an invalid size"},
           sample_case{
               crafted{}.add("a", "1", {.size = "\x80"s + std::string(3, '\0') + std::string(8, '\xff')}).ended(),
               "byte 0: truncated: a member of 18446744073709551615 bytes, of which"},
           sample_case{crafted{}.add("@", "name", {.type = 'L'}).ended(), "a long name or a size without its member"},
           sample_case{crafted{}.add("@", std::string((1U << 20U) + 1, 'x'), {.type = 'L'}).add("a", "").ended(),
                       "byte 0: damaged: a record of 1048577 bytes for a name"},
           sample_case{crafted{}.add("a", "x", {.type = 'S'}).ended(), "byte 0: a sparse file"},
           sample_case{crafted{}.pax("GNU.sparse.major", "1").add("a", "").ended(), "byte 0: a sparse file"},
           sample_case{crafted{}.pax("path", "b", 'g').add("a", "").ended(), "a global pax header with a path"},
           sample_case{crafted{}.pax("size", "12x").add("a", "").ended(), "a pax record with an invalid size"},
           sample_case{crafted{}.add("p", "99 path=b\n", {.type = 'x'}).add("a", "").ended(), "an invalid pax record"},
           sample_case{crafted{}.add("p", "8 path=b\n", {.type = 'x'}).add("a", "").ended(), "an invalid pax record"},
           sample_case{crafted{}.add("p", "0 path=b\n", {.type = 'x'}).add("a", "").ended(), "an invalid pax record"},
           sample_case{crafted{}.add("p", "2 path=b\n", {.type = 'x'}).add("a", "").ended(), "an invalid pax record"},
           sample_case{crafted{}.add("p", "10 path=bc", {.type = 'x'}).add("a", "").ended(), "an invalid pax record"},
           sample_case{crafted{}.add("p", "10", {.type = 'x'}).add("a", "").ended(), "an invalid pax record"},
           sample_case{crafted{}.add("p", "8 pathb\n", {.type = 'x'}).add("a", "").ended(), "record without a value"},
       }) {
    auto why = refusal(archive);
    CHECK_MESSAGE(why.code == errc::damaged, says);
    CHECK_MESSAGE(why.message.find("x.tar: byte ") == 0, why.message);
    CHECK_MESSAGE(why.message.find(says) != std::string::npos, why.message << " has no " << says);
  }
}

TEST_CASE("an archive truncated anywhere is an error") {
  const auto whole = crafted{}
                         .add("a", "1")
                         .pax("path", "long")
                         .add("b", std::string(513, '2'))
                         .add("@", "x", {.type = 'L'})
                         .add("c", "")
                         .ended();
  CHECK(refusal(whole) == error{});
  for (std::size_t size = 0; size < whole.size(); ++size)
    REQUIRE_MESSAGE(refusal(whole.substr(0, size)).code == errc::damaged, size);
}

TEST_CASE("a changed bit of a header is an error, or changes nothing") {
  const auto whole = crafted{}.add("name", "1").add("@", "x", {.type = 'L'}).add("other", "2").ended();
  const auto original = list(whole);
  REQUIRE(original.has_value());
  std::size_t unnoticed = 0;
  for (std::size_t begin : {0U, 1024U, 2048U})
    for (std::size_t i = 0; i < 4096; ++i) {
      auto changed = whole;
      changed[begin + i / 8] = static_cast<char>(changed[begin + i / 8] ^ (1 << (i % 8)));
      auto read = list(changed);
      if (read)
        ++unnoticed;
      CHECK((!read || *read == *original));
    }
  CHECK(unnoticed < 200); // such as a blank around the checksum
}

TEST_CASE("samples that are not whole are refused with shard and byte") {
  struct sample_case {
    crafted archive;
    std::string says;
  };
  for (const auto& [archive, says] : {
           sample_case{crafted{}.add("a.png", image(1)).add("b.cls", "1"),
                       "byte 1024: sample b has a label and no image"},
           sample_case{crafted{}.add("a.png", image(1)).add("a.jpg", image(1)),
                       "byte 1024: a.jpg is a second image of sample a"},
           sample_case{crafted{}.add("a.cls", "1").add("a.cls", "1"), "byte 1024: a.cls is a second label of sample a"},
           sample_case{crafted{}.add("a.png", image(1)).add("b.png", image(1)).add("b.cls", "1"),
                       "byte 0: sample a has no label"},
           sample_case{crafted{}.add("a.png", image(1)).add("a.cls", "1").add("b.png", image(1)),
                       "byte 2048: sample b has no label"},
           sample_case{crafted{}.add("a.cls", ""), "byte 0: a.cls holds no label"},
           sample_case{crafted{}.add("a.cls", "one"), "a.cls holds no label: expected a decimal number from 0 on"},
           sample_case{crafted{}.add("a.cls", "-1"), "a.cls holds no label"},
           sample_case{crafted{}.add("a.cls", "99999999999999999999"), "a.cls holds no label"},
           sample_case{crafted{}.add("a.png", "", {.type = '2'}), "byte 0: a.png is a link or a device"},
           sample_case{crafted{}.add("a.png", "", {.type = '1'}), "--hard-dereference"},
       }) {
    shards s;
    s.add(crafted{}.add("good.png", image(9)).add("good.cls", "1").ended());
    s.paths.clear();
    s.add(archive.ended());
    auto read = s.read();
    REQUIRE_FALSE_MESSAGE(read.has_value(), says);
    CHECK(read.error().code == errc::damaged);
    CHECK_MESSAGE(read.error().message.find(s.paths.back().string() + ": byte ") == 0, read.error().message);
    CHECK_MESSAGE(read.error().message.find(says) != std::string::npos, read.error().message << " has no " << says);
  }
}

TEST_CASE("shards that hold nothing, or cannot be read, are refused") {
  CHECK(read_tar_shards({}, small).error() == error{errc::invalid_argument, "no tar files are given"});
  CHECK(read_tar_shards({"/nowhere/x.tar"}, small).error() ==
        error{errc::not_found, "/nowhere/x.tar: No such file or directory"});
  CHECK(read_tar_shards({"/"}, small).error().code == errc::io_error);
  CHECK(read_tar_shards({"x.tar"}, {}).error().code == errc::invalid_argument);
  shards s;
  s.add(crafted{}.add("a.txt", "1").ended());
  CHECK(s.read().error() ==
        error{errc::not_found, s.paths[0].string() + ": no .jpg, .jpeg or .png files in the archive"});
}

TEST_CASE("a damaged image in a shard fails the fetch, by name") {
  shards s;
  s.add(crafted{}.add("a.png", image(1)).add("b.png", image(2).substr(0, 40)).ended());
  auto set = s.set();
  batch out;
  CHECK(set->fetch(std::vector<std::uint64_t>{0}, out).has_value());
  auto done = set->fetch(std::vector<std::uint64_t>{0, 1}, out);
  REQUIRE_FALSE(done.has_value());
  CHECK(done.error().code == errc::damaged);
  CHECK_MESSAGE(done.error().message.find(s.paths[0].string() + ": b.png: damaged PNG image: ") == 0,
                done.error().message);
}

TEST_CASE("braces stand for lists of shards") {
  auto expand = [](std::string_view pattern) {
    std::vector<std::string> result;
    for (const auto& path : value_or_throw(expand_braces(pattern)))
      result.push_back(path.string());
    return result;
  };
  using names = std::vector<std::string>;
  CHECK(expand("plain.tar") == names{"plain.tar"});
  CHECK(expand("s-{008..011}.tar") == names{"s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"});
  CHECK(expand("{9..11}") == names{"9", "10", "11"});
  CHECK(expand("{0..2}") == names{"0", "1", "2"});
  CHECK(expand("{7..7}x") == names{"7x"});
  CHECK(expand("{a,b}-{0..1}.tar") == names{"a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"});
  CHECK(expand("x{,-more}") == names{"x", "x-more"});
  CHECK(expand("{0..999}{0..999}").size() == 1'000'000);
  for (const auto* bad : {"a{", "a}", "{a{b}}", "{1..}", "{..2}", "{2..1}", "{a..c}", "{1..2..3}", "{-1..2}",
                          "{0..1000000}", "{0..9999}{0..9999}", "{0..99999999999999999999}"}) {
    CAPTURE(bad);
    auto read = expand_braces(bad);
    REQUIRE_FALSE(read.has_value());
    CHECK(read.error().code == errc::invalid_argument);
  }
}
