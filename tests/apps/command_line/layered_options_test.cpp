#include <layered_options.hpp>

#include <scratch_directory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::apps;

namespace {

/// A program with options of all kinds.
class program {
 public:
  program() {
    app.add_option("--name", name)->capture_default_str();
    app.add_option("--count", count);
    app.add_option("--join", join)->delimiter(',');
    app.add_flag("--loud", loud);
    app.add_option("--config", config);
  }

  void parse(std::vector<std::string> words) {
    std::ranges::reverse(words);
    app.parse(words);
  }

  expected<void> environment(const std::map<std::string, std::string>& all) {
    return layers.take_environment([&](const char* variable) {
      const auto found = all.find(variable);
      return found == all.end() ? nullptr : found->second.c_str();
    });
  }

  expected<void> file(const std::string& text) {
    std::ofstream{path()} << text;
    return layers.take_file(path());
  }

  [[nodiscard]] std::filesystem::path path() const { return scratch.path() / "a.conf"; }

  testing::scratch_directory scratch;
  CLI::App app{"", "program"};
  std::string name = "nobody";
  std::optional<unsigned> count;
  std::vector<std::string> join;
  bool loud = false;
  std::string config;
  layered_options layers{app, "APP", {"config"}};
};

std::string refusal(const std::string& text) {
  auto parsed = parse_config("f", text);
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error().code == errc::invalid_argument);
  return parsed.error().message;
}

} // namespace

TEST_CASE("a configuration file has words, texts and lists, and comments") {
  const auto parsed =
      parse_config("f", "# nothing\n\n a = 1 # one\nb-c=\"x # \\\"y\\\" \\\\\"\r\nd = [ \"p q\", r,s ]\ne = []\n");
  REQUIRE(parsed);
  CHECK(*parsed == std::vector<config_line>{
                       {"a", {"1"}, 3}, {"b-c", {"x # \"y\" \\"}, 4}, {"d", {"p q", "r", "s"}, 5}, {"e", {}, 6}});
}

TEST_CASE("a line of another form is named") {
  for (const auto* line :
       {"a", "a =", "= 1", "a = b c", "a = \"b", "a = \"\\n\"", "a = [b", "a = [b c]", "[section]", "a == b"})
    CHECK(refusal(std::string{"ok = 1\n"} + line).starts_with("f:2: not 'key = value'"));
  CHECK(refusal("a = 1\nb = 2\na = 3\n") == "f:3: 'a' is set a second time, after line 1");
}

TEST_CASE_FIXTURE(program, "the command line comes before the environment, and that before the file") {
  parse({"--name", "line"});
  REQUIRE(environment({{"APP_NAME", "variable"}, {"APP_COUNT", "2"}, {"APP_CONFIG", "ignored"}}));
  REQUIRE(file("name = file\ncount = 3\njoin = [a, b]\nloud = true\n"));
  CHECK(name == "line");
  CHECK(count == 2u);
  CHECK(join == std::vector<std::string>{"a", "b"});
  CHECK(loud);
  CHECK(config.empty());
  CHECK(layers.dump() == "name = line\ncount = 2\njoin = [a, b]\nloud = true\n");
}

TEST_CASE_FIXTURE(program, "what is not given is as it was, and is shown") {
  parse({});
  REQUIRE(environment({{"APP_NAME", ""}}));
  REQUIRE(file(""));
  CHECK(name == "nobody");
  CHECK_FALSE(count);
  CHECK(layers.dump().starts_with("name = nobody\n# count = "));
  CHECK(layers.dump().ends_with("loud = false\n"));
}

TEST_CASE_FIXTURE(program, "wrong values and unknown keys name where they are") {
  parse({});
  const auto variable = environment({{"APP_COUNT", "many"}});
  REQUIRE_FALSE(variable);
  CHECK(variable.error().message.starts_with("the environment variable APP_COUNT: "));
  program other;
  other.parse({});
  const auto place = other.path().string();
  CHECK(other.file("\ncount = many\n").error().message.starts_with(place + ":2: "));
  CHECK(other.file("nmae = x\n").error().message == place + ":1: unknown key 'nmae' (did you mean 'name'?)");
  CHECK(other.file("config = x\n").error().message.starts_with(place + ":1: unknown key 'config'"));
  CHECK(other.layers.take_file(other.scratch.path() / "none").error().code == errc::io_error);
  CHECK(other.layers.take_file(other.scratch.path()).error().code == errc::io_error);
}
