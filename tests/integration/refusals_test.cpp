#include "memory_file_system.hpp"
#include "scratch_runs.hpp"

#include <troupe/collectives/device.hpp>
#include <troupe/runtime/program.hpp>

#include <arpa/inet.h>
#include <array>
#include <cstdio>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

using namespace troupe::testing;

namespace {

/// Impossible requests, which the driver reports before it starts any worker.
void refused(scratch_runs& here, const std::vector<std::string>& argv, const std::vector<std::string>& parts,
             int code = 1) {
  auto ran = here.run(argv);
  INFO(ran.out << ran.err);
  CHECK(ran.status == exit_status{code, {}});
  for (const auto& part : parts)
    CHECK_MESSAGE(contains(ran.err, part), "the message lacks: " << part);
  CHECK(!contains(ran.err, "[rank "));
  CHECK(here.workers().empty());
}

/// A port of this machine without a listener: bound, so that no other process gets it.
class closed_port {
 public:
  closed_port() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto size = static_cast<socklen_t>(sizeof(where));
    REQUIRE(::bind(fd_, reinterpret_cast<const sockaddr*>(&where), size) == 0);
    REQUIRE(::getsockname(fd_, reinterpret_cast<sockaddr*>(&where), &size) == 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(where.sin_port));
  }
  closed_port(const closed_port&) = delete;
  closed_port& operator=(const closed_port&) = delete;
  ~closed_port() { ::close(fd_); }

  [[nodiscard]] const std::string& address() const noexcept { return address_; }

 private:
  int fd_;
  std::string address_;
};

} // namespace

TEST_CASE("the help shows an option's name, and not how its flag is stored") {
  scratch_runs here;
  const auto shown = here.run({charlm_program(), "--help"});
  INFO(shown.out);
  CHECK(shown.status == exit_status{0, {}});
  CHECK(contains(shown.out, "--no-replace "));
  CHECK(!contains(shown.out, "{false}"));
  CHECK(!contains(shown.out, "{true}"));
  // It means what it says.
  const auto off = here.run(here.charlm("run", {"--no-replace", "--workers", "1"}));
  INFO(off.err);
  CHECK(off.status == exit_status{0, {}});
}

TEST_CASE("a missing, empty or too short text is rejected") {
  scratch_runs here;
  refused(here, here.charlm("text", {"--text", here.path("absent.txt").string()}), {"absent.txt"});
  write_file(here.path("empty.txt"), "");
  refused(here, here.charlm("text", {"--text", here.path("empty.txt").string()}), {"empty.txt"});
  write_file(here.path("short.txt"), "ten bytes.");
  refused(here, here.charlm("text", {"--text", here.path("short.txt").string()}), {"short.txt", "10"});
  std::filesystem::create_directory(here.path("no-texts"));
  refused(here, here.charlm("text", {"--text", here.path("no-texts").string()}), {"no-texts"});
}

TEST_CASE("an unreachable node is named") {
  scratch_runs here;
  closed_port port;
  refused(here, here.charlm("run", {"--nodes", port.address()}), {port.address(), "caf-node"});
  auto node = here.start_node();
  refused(here, here.charlm("run", {"--nodes", node.address + "," + port.address()}), {port.address(), "caf-node"});
  refused(here, here.charlm("run", {"--nodes", "no-such-host.invalid:4000", "--insecure"}), {"no-such-host.invalid"});
  refused(here, here.charlm("run", {"--nodes", "127.0.0.1"}), {"127.0.0.1", "HOST:PORT"}, 2);
  refused(here, here.charlm("run", {"--nodes", node.address + "," + node.address}),
          {node.address, "listed more than once"});
  // None of these prevents a new run.
  auto ran = here.run(here.charlm("run", {"--nodes", node.address, "--resume", "never"}));
  INFO(ran.err);
  CHECK(ran.status == exit_status{0, {}});
}

TEST_CASE("a storage path without write permission is rejected") {
  scratch_runs here;
  SUBCASE("a file") {
    write_file(here.path("a-file"), "no directory");
    refused(here, here.charlm("run", {"--storage", here.path("a-file").string()}), {"a-file", "storage"});
  }
  SUBCASE("read-only") {
    memory_file_system files{here.path("read-only"), "size=64k"};
    if (!files.mounted() || !files.make_read_only()) {
      std::puts("SKIP: no right to mount a file system here (read-only storage)");
      return;
    }
    refused(here, here.charlm("run", {"--storage", here.path("read-only").string()}),
            {"read-only", "Read-only file system", "storage"});
  }
  SUBCASE("full") {
    memory_file_system files{here.path("full"), "size=64k"};
    if (!files.mounted()) {
      std::puts("SKIP: no right to mount a file system here (full storage)");
      return;
    }
    write_file(here.path("full") / "filler", std::string(65536, 'x'));
    refused(here, here.charlm("run", {"--storage", here.path("full").string()}),
            {"full", "No space left on device", "storage"});
  }
}

TEST_CASE(
    "a storage that becomes full during a run does not stop the training, but without its last checkpoint the run "
    "has failed") {
  scratch_runs here;
  // Room for logs and metrics, but not for the state of this model.
  memory_file_system files{here.path("small"), "size=256k"};
  if (!files.mounted()) {
    std::puts("SKIP: no right to mount a file system here (storage that fills up)");
    return;
  }
  auto ran = here.run(here.charlm("run", {"--storage", here.path("small").string(), "--hidden", "128", "--workers", "2",
                                          "--checkpoint-every", "5"}));
  INFO(ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "checkpoint of step 5"));
  CHECK(contains(ran.err, "No space left on device"));
  auto result = nlohmann::json::parse(read_file(here.path("small") / "run" / "result.json"));
  CHECK(result["status"] == "failed");
  CHECK(result["error"]["code"] == "io_error");
  CHECK(contains(result["error"]["message"], "the last checkpoint, of step 12, could not be taken"));
  CHECK(result["steps"] == 12);
  CHECK(result["latest_checkpoint"] == "");
  CHECK(result["state_sha256"].get<std::string>().size() == 64);
}

TEST_CASE("a request that cannot be satisfied is reported with what is missing") {
  scratch_runs here;
  refused(here, here.charlm("a/b"), {"a/b", "name"});
  refused(here, here.charlm("run", {"--workers", "9"}), {"9 workers", "8 shards"});
  refused(here, here.charlm("run", {"--workers", "0-2"}), {"'0-2'", "2-8"}, 2);
  auto one = here.start_node({"--cpus", "2"});
  auto two = here.start_node({"--cpus", "3"});
  refused(here,
          here.charlm("run", {"--nodes", one.address + "," + two.address, "--workers", "3", "--cpus-per-worker", "2"}),
          {"3 workers", "2 CPUs", "6 CPUs", "offer 5 CPUs", "for 2 workers"});
  // A run that did not start does not prevent a new one.
  CHECK(!std::filesystem::exists(here.run_directory("run")));
}

TEST_CASE("an unknown option is a usage error that names the nearest one, and --help is not") {
  scratch_runs here;
  refused(here, {charlm_program(), "--wokers", "2"}, {"--wokers", "--workers", "--help"}, 2);
  refused(here, {caf_node_program(), "--lisen", "127.0.0.1:0"}, {"--lisen", "--listen", "--help"}, 2);
  refused(here, {charlm_program(), "--workers", "many"}, {"--workers", "many"}, 2);
  refused(here, {charlm_program(), "--resume", "perhaps"}, {"--resume", "perhaps"}, 2);
  refused(here, {charlm_program(), "stray"}, {"stray"}, 2);
  refused(here, {caf_node_program(), "--listen", "everywhere"}, {"--listen", "everywhere", "HOST:PORT"}, 2);
  for (const auto& program : {charlm_program(), caf_node_program()}) {
    auto ran = here.run({program, "--help"});
    CHECK(ran.status == exit_status{0, {}});
    CHECK(contains(ran.out, "--keys"));
    CHECK(ran.err == "");
  }
}

TEST_CASE("a port in use is reported with its address") {
  scratch_runs here;
  auto node = here.start_node();
  refused(here, {caf_node_program(), "--listen", node.address}, {node.address});
}

TEST_CASE("a node refuses a directory of programs that bounds nothing") {
  scratch_runs here;
  const auto programs = here.path("programs");
  refused(here, {caf_node_program(), "--program-dir", built("bin")}, {"it has caf-node", "a directory of their own"});
  std::filesystem::create_directory(programs);
  std::filesystem::permissions(programs, std::filesystem::perms::all);
  refused(here, {caf_node_program(), "--program-dir", programs.string()},
          {programs.string(), "another user could put"});
  // The same of a program.
  std::filesystem::permissions(programs, std::filesystem::perms::owner_all);
  std::filesystem::copy_file(charlm_program(), programs / "charlm");
  std::filesystem::permissions(programs / "charlm", std::filesystem::perms::all);
  auto node = here.start_node({"--program-dir", programs.string()});
  refused(here, here.charlm("open", {"--nodes", node.address}), {node.address, "another user could change"});
}

TEST_CASE("a node with another build of the program, or without it, is rejected") {
  scratch_runs here;
  auto programs = here.path("programs");
  std::filesystem::create_directory(programs);
  auto node = here.start_node({"--program-dir", programs.string()});
  refused(here, here.charlm("absent", {"--nodes", node.address}),
          {node.address, (programs / "charlm").string(), "--program-dir"});

  auto own = troupe::runtime::program_file::open(charlm_program());
  REQUIRE(own.has_value());
  auto build_id = own->identity().build_id;
  auto bytes = read_file(charlm_program());
  // A text of the program.
  auto place = bytes.find("held out");
  REQUIRE(place != std::string::npos);
  bytes[place] = 'H';
  write_file(programs / "charlm", bytes);
  std::filesystem::permissions(programs / "charlm", std::filesystem::perms::owner_all);
  auto other = troupe::runtime::program_file::open((programs / "charlm").string());
  REQUIRE(other.has_value());
  REQUIRE(other->identity().build_id != build_id);
  refused(here, here.charlm("other", {"--nodes", node.address}),
          {node.address, (programs / "charlm").string(), build_id, other->identity().build_id, "same build"});

  // The same build at another path counts as the same program.
  std::filesystem::remove(programs / "charlm");
  std::filesystem::copy_file(charlm_program(), programs / "charlm");
  auto ran = here.run(here.charlm("same", {"--nodes", node.address, "--workers", "2"}));
  INFO(ran.err);
  CHECK(ran.status == exit_status{0, {}});
}

TEST_CASE("a run that needs GPUs fails at once on nodes without them, and reports request and offer") {
  scratch_runs here;
  // Independent of this machine's GPUs.
  auto ran = here.run(here.charlm("gpus", {"--use-gpu", "--workers", "4"}), {{"CUDA_VISIBLE_DEVICES", ""}});
  INFO(ran.out << ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "4 workers with 1 GPU each need 4 GPUs; the nodes offer"));
  CHECK(contains(ran.err, "0 GPUs"));
  CHECK_FALSE(std::filesystem::exists(here.run_directory("gpus")));
}

TEST_CASE("options that are not numbers above 0 are reported by name") {
  scratch_runs here;
  for (const auto* value : {"0", "-1", "nan", "inf", "half"}) {
    auto ran = here.run(here.charlm("fraction", {"--use-gpu", "--gpus-per-worker", value}));
    INFO(ran.err);
    CHECK(ran.status == exit_status{2, {}});
    CHECK(contains(ran.err, "--gpus-per-worker: " + std::string{value} + " is not a number above 0; see "));
  }
}

TEST_CASE("a worker without the GPU that its node offered reports it, and the run ends") {
  scratch_runs here;
  auto node = here.start_node({"--gpus", "1"});
  auto argv = here.charlm("promised", {"--use-gpu", "--workers", "1", "--nodes", node.address});
  // Workers inherit the node's environment.
  auto devices = troupe::collectives::find_devices();
  if (devices && !devices->empty())
    return;
  auto ran = here.run(argv);
  INFO(ran.out << ran.err);
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, devices ? "no GPU" : devices.error().message));
}
