#include <charlm/corpus.hpp>

#include <cmath>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fstream>
#include <random>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;

using charlm::corpus;
using charlm::load_corpus;
using charlm::make_corpus;

/// A directory that is removed with its contents.
class temporary_directory {
 public:
  temporary_directory() {
    auto pattern = (fs::temp_directory_path() / "charlm-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~temporary_directory() { fs::remove_all(path_); }

  temporary_directory(const temporary_directory&) = delete;
  temporary_directory& operator=(const temporary_directory&) = delete;

  [[nodiscard]] const fs::path& path() const { return path_; }

  fs::path write(const fs::path& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream{path_ / name, std::ios::binary} << text;
    return path_ / name;
  }

 private:
  fs::path path_;
};

std::vector<std::uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string text_of(const corpus& text) {
  return {text.bytes().begin(), text.bytes().end()};
}

corpus corpus_of(std::vector<std::uint8_t> bytes, std::size_t context = 16) {
  return troupe::value_or_throw(make_corpus(std::move(bytes), context));
}

bool held_out(const corpus& text, std::uint64_t byte) {
  return byte / text.block_bytes() % 10 == 9;
}

/// Whether all bytes of the window at `position` are in the given part.
bool window_within(const corpus& text, std::uint64_t position, bool part) {
  for (std::uint64_t i = position; i <= position + text.context(); ++i)
    if (i >= text.bytes().size() || held_out(text, i) != part)
      return false;
  return true;
}

std::set<std::uint64_t> windows_of(const corpus& text, bool part) {
  std::set<std::uint64_t> result;
  for (std::uint64_t i = 0; i < text.bytes().size(); ++i)
    if (window_within(text, i, part))
      result.insert(i);
  return result;
}

std::vector<std::uint8_t> drawn(std::size_t count, std::uint64_t seed, const std::vector<std::uint8_t>& from) {
  std::mt19937_64 engine{seed};
  std::vector<std::uint8_t> result(count);
  for (auto& byte : result)
    byte = from[engine() % from.size()];
  return result;
}

} // namespace

TEST_CASE("the samples are exactly the windows that are within one part of the text") {
  for (std::size_t size : {170, 171, 179, 180, 999, 5'000, 10'239, 10'240, 10'241, 10'256, 10'257, 19'456, 19'473,
                           20'480, 25'000, 39'936, 40'000})
    for (std::size_t context : {1, 2, 16}) {
      CAPTURE(size);
      CAPTURE(context);
      const auto text = corpus_of(std::vector<std::uint8_t>(size), context);
      std::set<std::uint64_t> training;
      for (std::uint64_t i = 0; i < text.training_samples(); ++i)
        training.insert(text.training_position(i));
      std::set<std::uint64_t> testing;
      for (std::uint64_t i = 0; i < text.held_out_samples(); ++i)
        testing.insert(text.held_out_position(i));
      CHECK(training == windows_of(text, false));
      CHECK(testing == windows_of(text, true));
      CHECK(training.size() == text.training_samples());
      CHECK(testing.size() == text.held_out_samples());
      CHECK_FALSE(training.empty());
      CHECK_FALSE(testing.empty());
    }
}

TEST_CASE("about a tenth of a long text is held out") {
  const auto text = corpus_of(std::vector<std::uint8_t>(1'000'000));
  const auto all = static_cast<double>(text.training_samples() + text.held_out_samples());
  CHECK(static_cast<double>(text.held_out_samples()) / all == doctest::Approx(0.1).epsilon(0.02));
  CHECK(all > 990'000.0);
}

TEST_CASE("a sample index that is out of range is rejected") {
  const auto text = corpus_of(std::vector<std::uint8_t>(1000));
  CHECK_THROWS_AS((void)text.training_position(text.training_samples()), troupe::exception);
  CHECK_THROWS_AS((void)text.held_out_position(text.held_out_samples()), troupe::exception);
}

TEST_CASE("a text that is too short for both parts is rejected, and the message names the required length") {
  const auto result = make_corpus(std::vector<std::uint8_t>(169));
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().code == troupe::errc::invalid_argument);
  CHECK(result.error().message.find("169 bytes") != std::string::npos);
  CHECK(result.error().message.find("at least 170") != std::string::npos);
  CHECK(make_corpus(std::vector<std::uint8_t>(170)).has_value());
  CHECK_FALSE(make_corpus({}).has_value());
  CHECK_FALSE(make_corpus(std::vector<std::uint8_t>(1000), 0).has_value());
  CHECK_FALSE(make_corpus(std::vector<std::uint8_t>(100'000), 1024).has_value());
  CHECK(make_corpus(std::vector<std::uint8_t>(100'000), 1023).has_value());
}

TEST_CASE("a file is read unchanged") {
  const temporary_directory directory;
  auto content = std::string(70'000, 'x') + '\0' + "\r\n\xff";
  const auto text = load_corpus(directory.write("text", content));
  REQUIRE(text.has_value());
  CHECK(text_of(*text) == content);
}

TEST_CASE("a directory means its regular files in the order of their paths, joined by newlines") {
  const temporary_directory directory;
  directory.write("b", std::string(100, 'b'));
  directory.write("a/2", std::string(100, '2'));
  directory.write("a/1", std::string(100, '1'));
  directory.write("B", std::string(100, 'B'));
  const auto text = load_corpus(directory.path());
  REQUIRE(text.has_value());
  CHECK(text_of(*text) == std::string(100, 'B') + "\n" + std::string(100, '1') + "\n" + std::string(100, '2') + "\n" +
                              std::string(100, 'b'));
}

TEST_CASE("links and pipes in a directory are skipped, but the directory itself may be a link") {
  const temporary_directory directory;
  directory.write("texts/GPL-3", std::string(200, 'g'));
  directory.write("elsewhere/more", std::string(200, 'm'));
  fs::create_symlink("GPL-3", directory.path() / "texts/GPL");
  fs::create_symlink("../elsewhere", directory.path() / "texts/link");
  fs::create_symlink("nowhere", directory.path() / "texts/dangling");
  REQUIRE(::mkfifo((directory.path() / "texts/pipe").c_str(), 0600) == 0);
  fs::create_directory_symlink(directory.path() / "texts", directory.path() / "name");
  for (const auto* name : {"texts", "name"}) {
    const auto text = load_corpus(directory.path() / name);
    REQUIRE(text.has_value());
    CHECK(text_of(*text) == std::string(200, 'g'));
  }
}

TEST_CASE("a missing file is named") {
  const auto result = load_corpus("/nowhere/to/be/found");
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().code == troupe::errc::not_found);
  CHECK(result.error().message == "/nowhere/to/be/found: No such file or directory");
}

TEST_CASE("a directory without files is rejected and named") {
  const temporary_directory directory;
  fs::create_directories(directory.path() / "empty/inside");
  const auto result = load_corpus(directory.path());
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().code == troupe::errc::not_found);
  CHECK(result.error().message.find(directory.path().string()) == 0);
}

TEST_CASE("the error for a short text from a file names the file") {
  const temporary_directory directory;
  const auto path = directory.write("short", "short");
  const auto result = load_corpus(path);
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().code == troupe::errc::invalid_argument);
  CHECK(result.error().message.find(path.string() + ": 5 bytes") == 0);
}

TEST_CASE("files that cannot be opened or read are named with the reason") {
  const temporary_directory directory;
  const auto loop = directory.path() / "loop";
  fs::create_symlink("loop", loop);
  const auto looping = load_corpus(loop);
  REQUIRE_FALSE(looping.has_value());
  CHECK(looping.error().code == troupe::errc::io_error);
  CHECK(looping.error().message.find(loop.string() + ": ") == 0);

  const auto unreadable = load_corpus("/proc/self/mem"); // opening succeeds, but reading its first page fails
  REQUIRE_FALSE(unreadable.has_value());
  CHECK(unreadable.error().code == troupe::errc::io_error);
  CHECK(unreadable.error().message == "/proc/self/mem: Input/output error");

  if (::geteuid() != 0) { // root may read everything
    const auto secret = directory.write("texts/secret", std::string(500, 's'));
    fs::permissions(secret, fs::perms::none);
    const auto refused = load_corpus(directory.path() / "texts");
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().message == secret.string() + ": Permission denied");
  }
}

TEST_CASE("equal texts and splits have equal fingerprints, different ones do not") {
  const auto text = drawn(5000, 1, bytes_of("abc"));
  auto changed = text;
  changed[4321] ^= 1U;
  const auto print = corpus_of(text).training().fingerprint();
  CHECK(print.size() == 32);
  CHECK(print.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(corpus_of(text).training().fingerprint() == print);
  CHECK(corpus_of(changed).training().fingerprint() != print);
  CHECK(corpus_of(text, 8).training().fingerprint() != print);
}

TEST_CASE("four equally likely bytes have log 4 nats, with or without the previous byte") {
  const auto text = corpus_of(drawn(400'000, 2, bytes_of("acgt")));
  CHECK(charlm::unigram_entropy(text) == doctest::Approx(std::log(4.0)).epsilon(0.003));
  CHECK(charlm::bigram_entropy(text) == doctest::Approx(std::log(4.0)).epsilon(0.003));
}

TEST_CASE("a byte that follows from the previous one has entropy alone, but none after it") {
  std::vector<std::uint8_t> bytes;
  while (bytes.size() < 100'000)
    for (char c : {'a', 'b', 'c', 'd', 'e'})
      bytes.push_back(static_cast<std::uint8_t>(c));
  const auto text = corpus_of(bytes);
  CHECK(charlm::unigram_entropy(text) == doctest::Approx(std::log(5.0)).epsilon(0.005));
  CHECK(charlm::bigram_entropy(text) < 0.001);
}

TEST_CASE("the entropies are measured on the held-out part with the counts of the training part") {
  // Training: all 'a'. Held out: all 'b'. The counts are 9000 + 1 and 0 + 1 of 9000 + 256.
  std::vector<std::uint8_t> bytes(9000, 'a');
  bytes.resize(10'000, 'b');
  const auto text = corpus_of(bytes);
  CHECK(text.block_bytes() == 1000);
  CHECK(charlm::unigram_entropy(text) == doctest::Approx(std::log(9256.0)));
  CHECK(charlm::bigram_entropy(text) == doctest::Approx(std::log(9256.0))); // no pair starts with 'b'
}
