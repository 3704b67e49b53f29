#include <troupe/runtime/nodes.hpp>

#include "nodes/dns_records.hpp"
#include "process/program_runner.hpp"

#include "../serialization/scratch.hpp"

#include <troupe/runtime/program.hpp>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

using namespace troupe;
using namespace troupe::serialization;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

/// A name server on loopback, which answers every question with these SRV records, or that there is no such name.
class name_server {
 public:
  explicit name_server(std::vector<std::pair<std::string, std::uint16_t>> services) : services_(std::move(services)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    socklen_t size = sizeof(address);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    where = {"127.0.0.1", ntohs(address.sin_port)};
    thread_ = std::jthread{[this] { work(); }};
  }
  ~name_server() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_ = {};
    ::close(socket_);
  }

  endpoint where;

 private:
  static void put16(std::string& out, std::size_t value) {
    out += static_cast<char>(value >> 8);
    out += static_cast<char>(value & 0xff);
  }

  static std::string wire_name(const std::string& name) {
    std::string result;
    for (std::size_t begin = 0; begin < name.size();) {
      const auto end = std::min(name.find('.', begin), name.size());
      result += static_cast<char>(end - begin);
      result += name.substr(begin, end - begin);
      begin = end + 1;
    }
    return result + '\0';
  }

  /// A question's answer: RFC 1035.
  std::string answer(const std::string& question) const {
    auto result = question.substr(0, 2);
    put16(result, services_.empty() ? 0x8183 : 0x8180);
    put16(result, 1);
    put16(result, services_.size());
    put16(result, 0);
    put16(result, 0);
    const auto name_end = question.find('\0', 12);
    result += question.substr(12, name_end + 5 - 12);
    for (const auto& [host, port] : services_) {
      put16(result, 0xc00c);
      put16(result, 33);
      put16(result, 1);
      put16(result, 0);
      put16(result, 5);
      const auto name = wire_name(host);
      put16(result, 6 + name.size());
      put16(result, 10);
      put16(result, 20);
      put16(result, port);
      result += name;
    }
    return result;
  }

  void work() const {
    std::array<char, 2048> buffer;
    for (;;) {
      sockaddr_in from{};
      socklen_t size = sizeof(from);
      const auto got = ::recvfrom(socket_, buffer.data(), buffer.size(), 0, reinterpret_cast<sockaddr*>(&from), &size);
      if (got <= 0)
        return;
      const auto text = answer({buffer.data(), static_cast<std::size_t>(got)});
      ::sendto(socket_, text.data(), text.size(), 0, reinterpret_cast<const sockaddr*>(&from), size);
    }
  }

  std::vector<std::pair<std::string, std::uint16_t>> services_;
  int socket_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  std::jthread thread_;
};

/// A program of the shell.
fs::path write_script(const fs::path& path, const std::string& lines) {
  overwrite_file(path, "#!/bin/sh\n" + lines + "\n");
  fs::permissions(path, fs::perms::owner_all);
  return path;
}

} // namespace

TEST_CASE("a name's SRV records name nodes, each with a port of its own") {
  const auto server = name_server{{{"node-1.example", 4001}, {"node-0.example", 4000}, {"node-0.example", 4000}}};
  const auto found = runtime::find_services("nodes.example.", server.where);
  REQUIRE_MESSAGE(found, found.error().message);
  CHECK(*found == std::vector<endpoint>{{"node-0.example", 4000}, {"node-1.example", 4001}});
}

TEST_CASE("a name without records, and a server that is not there, are told apart") {
  const auto server = name_server{{}};
  const auto none = runtime::find_services("nodes.example.", server.where);
  REQUIRE_FALSE(none);
  CHECK(none.error().code == errc::not_found);
  CHECK(none.error().message == "the name nodes.example. has no SRV records");
  const auto silent = runtime::find_services("nodes.example.", endpoint{"127.0.0.1", 9});
  REQUIRE_FALSE(silent);
  CHECK(silent.error().code == errc::unreachable);
}

TEST_CASE("with a port behind it a name means the addresses that it has") {
  const auto found = runtime::find_nodes({node_source::kind::dns_name, "localhost:4711"});
  REQUIRE_MESSAGE(found, found.error().message);
  CHECK(std::ranges::find(*found, named_node{"127.0.0.1:4711"}) != found->end());
  CHECK(runtime::find_nodes({node_source::kind::dns_name, "no-such-host.invalid:1"}).error().code == errc::not_found);
}

TEST_CASE("a host file is read anew each time, and a script is run") {
  scratch_directory scratch;
  const auto hosts = node_source{node_source::kind::hosts_file, scratch.path() / "hosts"};
  CHECK(runtime::find_nodes(hosts).error().code == errc::io_error);
  overwrite_file(hosts.where, "a slots=2\n");
  CHECK(runtime::find_nodes(hosts) == std::vector<named_node>{{"a:4000", 2}});
  overwrite_file(hosts.where, "b:1\n");
  CHECK(runtime::find_nodes(hosts) == std::vector<named_node>{{"b:1"}});

  const auto script = [&](const std::string& lines) {
    return node_source{node_source::kind::script, write_script(scratch.path() / "no des", lines)};
  };
  CHECK(runtime::find_nodes(script("echo a:1; echo 'b slots=3'")) == std::vector<named_node>{{"a:1"}, {"b:4000", 3}});
  const auto failed = runtime::find_nodes(script("echo a:1; echo no quota >&2; exit 3"));
  REQUIRE_FALSE(failed);
  CHECK(failed.error().message.find("exit code 3: no quota") != std::string::npos);
  CHECK(runtime::find_nodes(script(":")).error().code == errc::invalid_argument);
  CHECK(runtime::find_nodes(script("echo nonsense here")).error().message.find("slots=N") != std::string::npos);
}

TEST_CASE("a program that does not end in time is ended, and what it started with it") {
  scratch_directory scratch;
  const auto path =
      write_script(scratch.path() / "slow",
                   "sleep 1000 & echo $! > " + (scratch.path() / "pid").string() + "; trap '' TERM; sleep 1000");
  auto shell = value_or_throw(runtime::program_file::open("/bin/sh"));
  auto runner = value_or_throw(runtime::program_runner::make());
  runtime::process_spec spec;
  spec.program_fd = shell.fd();
  spec.program = "slow";
  spec.argv = {"sh", path.string()};
  spec.env = {"PATH=/usr/bin:/bin"};
  const auto ran = runner.run(spec, {}, 500ms);
  REQUIRE_FALSE(ran);
  CHECK(ran.error().code == errc::timed_out);
  const auto pid = std::stoi(read_file(scratch.path() / "pid"));
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (::kill(pid, 0) == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(10ms);
  CHECK(::kill(pid, 0) != 0);
}

TEST_CASE("the environment names nodes where a program names none") {
  const auto completed = [](const char* variable, const char* value, cluster_config cluster = {}) {
    ::setenv(variable, value, 1);
    auto done = runtime::complete_nodes(cluster);
    ::unsetenv(variable);
    return done ? expected<cluster_config>{cluster} : fail(done.error());
  };
  CHECK(completed("TROUPE_NODES", "a:1,b:2")->nodes == std::vector<std::string>{"a:1", "b:2"});
  CHECK(completed("TROUPE_NODES", "dns:x.example")->discover.what == node_source::kind::dns_name);
  CHECK(completed("TROUPE_HOSTS", "/etc/my.hosts")->discover ==
        node_source{node_source::kind::hosts_file, "/etc/my.hosts"});
  cluster_config own;
  own.nodes = {"c:3"};
  CHECK(completed("TROUPE_NODES", "a:1", own)->nodes == own.nodes);
  CHECK(completed("TROUPE_NODES", "a").error().message.starts_with("TROUPE_NODES: "));
  CHECK(completed("TROUPE_CLUSTER", "a:1").error().message.find("TROUPE_NODES") != std::string::npos);
}
