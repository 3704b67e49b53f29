#include <description.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>

using namespace troupe::apps;

namespace {

/// One of everything.
struct sample {
  CLI::App app{"Counts sheep. It doesn't tire:\n  sheep < field\n.dots and \\slashes.", "sheep"};
  std::string kind;
  std::string where;
  std::vector<std::string> fields;
  std::uint64_t steps = 7;
  bool fast = false;

  sample() {
    app.add_option("-k,--kind", kind, "What to count")->check(CLI::IsMember({"ewe", "ram"}))->default_str("ewe");
    app.add_option("--steps", steps, "When to [stop]: then")->capture_default_str();
    app.add_option("FIELD", fields, "Where they are")->required();
    app.add_option("--hidden", where, "Nobody sees this")->group("");
    auto* speed = app.add_option_group("Speed");
    speed->add_flag("--fast", fast, "At once");
    auto* farm = app.add_subcommand("farm", "What belongs to the farm's keeper");
    auto* count = farm->add_subcommand("count", "Count all");
    count->add_option("--until", where, "An hour");
    count->footer("Exit codes: 0 slept, 1 not.");
  }
};

const option_description* find(const command_description& in, const std::string& name) {
  for (const auto& group : in.groups)
    for (const auto& option : group.options)
      if (std::ranges::find(option.names, name) != option.names.end())
        return &option;
  return nullptr;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("a program's options, arguments and commands are described as it declares them") {
  const auto program = describe(sample{}.app);
  CHECK(program.name == "sheep");
  const auto* kind = find(program, "--kind");
  REQUIRE(kind != nullptr);
  CHECK(kind->names == std::vector<std::string>{"-k", "--kind"});
  CHECK(kind->choices == std::vector<std::string>{"ewe", "ram"});
  CHECK(kind->default_value == "ewe");
  REQUIRE(find(program, "--steps") != nullptr);
  CHECK(find(program, "--steps")->default_value == "7");
  CHECK(find(program, "--hidden") == nullptr);
  REQUIRE(find(program, "--fast") != nullptr);
  CHECK(find(program, "--fast")->is_flag());
  CHECK(program.groups.back().title == "Speed");
  REQUIRE(program.arguments.size() == 1);
  CHECK(program.arguments[0].value == "FIELD");
  CHECK(program.arguments[0].is_required);
  CHECK(program.arguments[0].is_list);
  REQUIRE(program.commands.size() == 1);
  REQUIRE(program.commands[0].commands.size() == 1);
  const auto& count = program.commands[0].commands[0];
  CHECK(count.name == "sheep farm count");
  CHECK(count.word() == "count");
  CHECK(find(count, "--until") != nullptr);
  CHECK(count.footer == "Exit codes: 0 slept, 1 not.");
}

TEST_CASE("a manual page has every option, and no text of it is taken for a request to the formatter") {
  const auto page = manual_page(describe(sample{}.app), "1.2");
  CHECK(has(page, ".TH \"SHEEP\" 1 \"\" \"Troupe 1.2\""));
  CHECK(has(page, "sheep \\- counts sheep\n"));
  CHECK(has(page, "\\fB\\-k\\fR, \\fB\\-\\-kind\\fR \\fBewe\\fR|\\fBram\\fR\nWhat to count. Default: \\fBewe\\fR.\n"));
  CHECK(has(page, "[\\fIOPTION\\fR]... \\fIFIELD\\fR... \\fICOMMAND\\fR"));
  CHECK(has(page, ".SH \"SPEED OPTIONS\"\n"));
  CHECK(has(page, ".SS \"sheep farm count\"\n"));
  CHECK(has(page, "It doesn\\(aqt tire:\n.nf\n  sheep < field\n.fi\n\\&.dots and \\eslashes."));
  CHECK(!has(page, "Nobody"));
}

TEST_CASE("completions quote the texts that they carry") {
  const auto program = describe(sample{}.app);
  const auto zsh = zsh_completion(program);
  CHECK(has(zsh, R"('--steps=[When to \[stop\]\: then]:UINT:_files')"));
  CHECK(has(zsh, R"('--kind=[What to count]:WORD:(ewe ram)')"));
  CHECK(has(zsh, R"('farm:What belongs to the farm'\''s keeper')"));
  CHECK(has(zsh, R"('*:FIELD:_files')"));
  const auto bash = bash_completion(program);
  CHECK(has(bash, "' -k' | ' --kind') value=yes words='ewe ram' ;;"));
  CHECK(has(bash, "' farm count')\n      options='-h --help --until'"));
  CHECK(!has(bash, "--hidden"));
}
