#include "command.hpp"
#include "submit/remote.hpp"
#include "submit/submission.hpp"

#include "scratch.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::tool;

namespace {

/// What any of systemd, a shell and YAML reads otherwise.
const std::vector<std::string> odd_words{"",       "two words", "it's",     "\"quoted\"", "100%", "%h%%",
                                         "$HOME",  "${HOME}",   "$(id)",    "$$",         "a\nb", "back\\slash\\n",
                                         "\ttab",  "`id`",      ";",        "-",          "#x",   "caf\xc3\xa9",
                                         "@NAME@", "key: [1]",  "a\\\nb\\", "!x",         "*",    "\x01\x7f"};

submission odd_job() {
  submission result;
  result.name = "odd";
  result.program = "/opt/odd place/100%/train";
  result.arguments = odd_words;
  result.directory = "/home/o'neil/a $b";
  result.environment = {{"TEXT", "two words, 100% \"of\" $HOME\nand more"}};
  result.job.name = "odd";
  result.job.mirror = "/mirror of 'odd'";
  result.job.job = {"slurm", "", "f00d"};
  return result;
}

} // namespace

TEST_CASE("a job is named after its program, or as its program's own option says") {
  CHECK(default_job_name("/usr/bin/charlm", {}) == "charlm");
  CHECK(default_job_name("charlm", {"--steps", "3", "--name", "night"}) == "night");
  CHECK(default_job_name("charlm", {"--name=night"}) == "night");
  CHECK(option_value({"--storage"}, "--storage").empty());
}

TEST_CASE("what no engine could hand on is refused") {
  auto job = odd_job();
  CHECK(validate(job));
  job.arguments = {"\xff"};
  CHECK_FALSE(validate(job));
  job = odd_job();
  job.directory = "/a\nb";
  CHECK_FALSE(validate(job));
  job = odd_job();
  job.environment = {{"1x", ""}};
  CHECK_FALSE(validate(job));
}

TEST_CASE("systemd reads words and variables without specifiers and variables of its own") {
  CHECK(systemd_word("plain") == "\"plain\"");
  CHECK(systemd_word("") == "\"\"");
  CHECK(systemd_word("a \"b\" \\ 100% $HOME\n\t") == "\"a \\\"b\\\" \\\\ 100%% $$HOME\\n\\x09\"");
  CHECK(systemd_variable("A", "100% $HOME \"x\"") == "\"A=100%% $HOME \\\"x\\\"\"");
}

TEST_CASE("the units of a job restart its driver, and are removed when it has ended") {
  auto job = odd_job();
  job.job.nodes = "127.0.0.1:20001";
  const auto units =
      systemd_units(job, {true, "/home/o'neil/units", "o'neil"}, companion_node{"/usr/bin/caf-node", 20'001});
  REQUIRE(units.size() == 2);
  CHECK(units[0].name == "troupe-odd.service");
  CHECK(units[1].name == "caf-node-odd.service");
  const auto has = [](const unit_file& unit, const std::string& part) {
    INFO(unit.text);
    CHECK_MESSAGE(unit.text.find(part) != std::string::npos, part);
  };
  has(units[0], "Wants=caf-node-odd.service\nAfter=caf-node-odd.service\n");
  has(units[0], "WorkingDirectory=/home/o'neil/a $b\n");
  has(units[0], "ExecStart=\"/opt/odd place/100%%/train\" \"\" \"two words\"");
  has(units[0], "case $$EXIT_STATUS in 0|75) ;; *) exit 0;; esac;");
  has(units[0], "systemctl --user disable --quiet troupe-odd.service; systemctl --user stop --no-block caf-node-odd");
  has(units[0], "Restart=on-failure\n");
  has(units[0], "WantedBy=default.target\n");
  has(units[1], "ExecStart=\"/usr/bin/caf-node\" --listen 127.0.0.1:20001");
  has(units[1], "StopWhenUnneeded=yes\n");
  const auto of_system = systemd_units(job, {false, "/etc/systemd/system", "root"}, std::nullopt);
  REQUIRE(of_system.size() == 1);
  has(of_system[0], "User=root\n");
  has(of_system[0], "WantedBy=multi-user.target\n");
  CHECK(of_system[0].text.find("caf-node") == std::string::npos);
}

TEST_CASE("bash reads back from a batch script what the job is") {
  const auto scratch = serialization::scratch_directory{};
  auto job = odd_job();
  job.directory = scratch.path().string();
  const auto script = slurm_script(job, {"--nodes=4", "--comment=two words"});
  CHECK(script.starts_with("#!/usr/bin/env bash\n#SBATCH "));
  const auto before_commands = script.substr(0, script.find("set -euo pipefail"));
  CHECK(before_commands.find("\n#SBATCH --job-name=odd\n#SBATCH --nodes=4\n#SBATCH '--comment=two words'\n") !=
        std::string::npos);
  CHECK(before_commands.find("--job-name=troupe") == std::string::npos);
  // Up to where the script begins to ask Slurm.
  const auto settings = script.substr(0, script.find("\nsay()"));
  REQUIRE(settings.size() < script.size());
  const auto file = scratch.path() / "script";
  serialization::overwrite_file(file, settings + "\nprintf '%s\\0' \"$TROUPE_JOB\" \"$TEXT\" \"$@\"\n");
  const auto ran = run_command({"env", "SLURM_JOB_ID=17", "bash", file.string()}, {.captures = true});
  REQUIRE(ran);
  REQUIRE(ran->code == 0);
  std::vector<std::string> read;
  for (std::size_t at = 0, end = 0; (end = ran->out.find('\0', at)) != std::string::npos; at = end + 1)
    read.push_back(ran->out.substr(at, end - at));
  auto expected_words = std::vector<std::string>{job.program};
  expected_words.insert(expected_words.end(), odd_words.begin(), odd_words.end());
  REQUIRE(read.size() == 2 + expected_words.size());
  job.job.job.id = "17";
  CHECK(read[0] == to_text(job.job));
  CHECK(read[1] == job.environment["TEXT"]);
  CHECK(std::vector<std::string>(read.begin() + 2, read.end()) == expected_words);
}

TEST_CASE("names that Kubernetes does not take are refused") {
  for (const auto* name : {"night", "a", "run-7"})
    CHECK(validate_kubernetes_name("--name", name));
  for (const auto* name : {"", "Night", "a.b", "-a", "a-", "a_b", "0123456789012345678901234567890123456789x"})
    CHECK_FALSE(validate_kubernetes_name("--name", name));
}

TEST_CASE("YAML reads back from a manifest what the job is, and nothing is left to replace") {
  const auto scratch = serialization::scratch_directory{};
  const auto job = odd_job();
  const auto manifest = kubernetes_manifest(job, {.image = "registry.example/odd:1", .nodes = 3});
  const auto file = scratch.path() / "manifest.yaml";
  serialization::overwrite_file(file, manifest);
  // As Kubernetes does it: $(NAME) is a variable, and $$ is a $ before a parenthesis.
  const auto script = R"(import json, sys
try:
    import yaml
except ImportError:
    sys.exit(77)
documents = list(yaml.safe_load_all(open(sys.argv[1])))
driver = documents[3]["spec"]["template"]["spec"]["containers"][0]
words = [each.replace("$$", "$") for each in driver["command"]]
environment = {each["name"]: each["value"].replace("$$", "$") for each in driver["env"] if "value" in each}
print(json.dumps({"kinds": [each["kind"] for each in documents], "words": words, "environment": environment,
                  "nodes": documents[1]["spec"]["replicas"]}))
)";
  const auto ran = run_command({"python3", "-c", script, file.string()}, {.captures = true});
  REQUIRE(ran);
  if (ran->code == 77) {
    std::puts("SKIP: python3 has no yaml");
    return;
  }
  REQUIRE(ran->code == 0);
  const auto read = nlohmann::json::parse(ran->out);
  CHECK(read["kinds"] == nlohmann::json{"Service", "StatefulSet", "PersistentVolumeClaim", "Job"});
  CHECK(read["nodes"] == 3);
  auto words = std::vector<std::string>{job.program};
  words.insert(words.end(), odd_words.begin(), odd_words.end());
  CHECK(read["words"] == words);
  CHECK(read["environment"]["TEXT"] == job.environment.at("TEXT"));
  CHECK(read["environment"]["TROUPE_JOB"] == to_text(job.job));
}

TEST_CASE("files for another host are those below this directory, and only what differs there is sent") {
  const auto scratch = serialization::scratch_directory{};
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(scratch.path());
  serialization::overwrite_file("train", "program");
  std::filesystem::create_directory("data");
  serialization::overwrite_file("data/a b", "text");
  const auto files = files_to_send("./train", {"data/../data/a b"});
  REQUIRE(files);
  REQUIRE(files->size() == 2);
  CHECK(files->at(0).there == "bin/train");
  CHECK(files->at(1).there == "data/a b");
  CHECK_FALSE(files_to_send("./train", {"/etc/passwd"}));
  CHECK_FALSE(files_to_send("./train", {"../x"}));
  CHECK_FALSE(files_to_send("./train", {"data/none"}));
  CHECK_FALSE(files_to_send("./none", {}));
  // A program in PATH there.
  CHECK(files_to_send("charlm", {})->empty());
  const auto listing = run_command({"sha256sum", "--", "data/a b"}, {.captures = true});
  REQUIRE(listing);
  const auto differ = files_that_differ(*files, listing->out);
  REQUIRE(differ);
  REQUIRE(differ->size() == 1);
  CHECK(differ->front().there == "bin/train");
  std::filesystem::current_path(before);
}
