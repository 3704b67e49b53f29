#include <troupe/config.hpp>
#include <troupe/node_names.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using namespace troupe;

namespace {

/// A change that invalidates a configuration, the field that the message must name, and a word of the remedy.
struct mistake {
  std::string what;
  std::function<void(trainer_config&)> make;
  std::string field;
  std::string remedy;
};

const std::vector<mistake>& mistakes() {
  using namespace std::chrono_literals;
  static const auto all = std::vector<mistake>{
      {"nodes for a run in the driver's process",
       [](auto& x) {
         x.scaling.num_workers = 0;
         x.cluster.nodes = {"127.0.0.1:4000"};
       },
       "scaling.num_workers is 0", "takes no cluster.nodes"},
      {"a host file for a run in the driver's process",
       [](auto& x) {
         x.scaling.num_workers = 0;
         x.cluster.discover = {node_source::kind::hosts_file, "hosts"};
       },
       "scaling.num_workers is 0", "cluster.discover"},
      {"nodes and a script that names nodes",
       [](auto& x) {
         x.cluster.nodes = {"127.0.0.1:4000"};
         x.cluster.discover = {node_source::kind::script, "nodes.sh"};
       },
       "cluster.nodes and cluster.discover", "where to ask"},
      {"a name that is empty",
       [](auto& x) {
         x.cluster.discover = {node_source::kind::dns_name, ""};
       },
       "cluster.discover", "no name"},
      {"a rank to debug that no worker has", [](auto& x) { x.run.debug_rank = 1; }, "run.debug_rank is 1",
       "scaling.num_workers"},
      {"a range from more to fewer",
       [](auto& x) {
         x.scaling.num_workers = {4, 2};
       },
       "scaling.num_workers is 4-2", "the smaller number first"},
      {"a range from none",
       [](auto& x) {
         x.scaling.num_workers = {0, 2};
       },
       "scaling.num_workers", "at least one"},
      {"a range that may outgrow its shards",
       [](auto& x) {
         x.scaling.num_workers = {2, 9};
       },
       "9 workers cannot share 8 shards", "ask for fewer workers"},
      {"less than no window", [](auto& x) { x.scaling.scale_up_wait = -1ms; }, "scaling.scale_up_wait", "negative"},
      {"no time to wait for workers", [](auto& x) { x.scaling.wait_for_workers = 0ms; }, "scaling.wait_for_workers",
       "positive"},
      {"a heartbeat timeout that beats cannot keep", [](auto& x) { x.failure.heartbeat_timeout = 499ms; },
       "failure.heartbeat_timeout", "at least 500 ms"},
      {"a hang that is told at once", [](auto& x) { x.failure.report_after = 0ms; }, "failure.report_after",
       "positive"},
      {"a hang that is replaced at once", [](auto& x) { x.failure.replace_after = 0ms; }, "failure.replace_after",
       "positive"},
      {"no shards", [](auto& x) { x.scaling.shards = 0; }, "scaling.shards", "at least one"},
      {"too many shards", [](auto& x) { x.scaling.shards = 65537; }, "scaling.shards", "at most 65536"},
      {"more workers than shards", [](auto& x) { x.scaling.num_workers = 9; }, "scaling.shards",
       "ask for fewer workers"},
      {"one and a half GPUs", [](auto& x) { x.scaling.resources_per_worker.gpus = 1.5; }, "resources_per_worker.gpus",
       "whole GPUs"},
      {"less than no GPU", [](auto& x) { x.scaling.resources_per_worker.gpus = -1; }, "resources_per_worker.gpus",
       "whole GPUs"},
      {"a crumb of a GPU", [](auto& x) { x.scaling.resources_per_worker.gpus = 0.001; }, "resources_per_worker.gpus",
       "down to 0.01"},
      {"no number of GPUs", [](auto& x) { x.scaling.resources_per_worker.gpus = std::nan(""); },
       "resources_per_worker.gpus", "whole GPUs"},
      {"NCCL without GPUs", [](auto& x) { x.run.transport = transport_mode::nccl; }, "run.transport",
       "set scaling.use_gpu"},
      {"the name of the link to the latest run", [](auto& x) { x.run.name = "latest"; }, "run.name", "another name"},
      {"a fresh directory that is to be resumed",
       [](auto& x) {
         x.run.name = "";
         x.run.resume = resume_mode::required;
       },
       "resume_mode::required", "set run.name (--name)"},
      {"a hidden name", [](auto& x) { x.run.name = ".hidden"; }, "run.name", "use letters"},
      {"a name that leaves the storage path", [](auto& x) { x.run.name = "a/b"; }, "run.name", "use letters"},
      {"a name with a zero byte", [](auto& x) { x.run.name = std::string("a\0b", 3); }, "run.name", "use letters"},
      {"a name that is no ASCII", [](auto& x) { x.run.name = "zürich"; }, "run.name", "use letters"},
      {"a name beyond all file systems", [](auto& x) { x.run.name = std::string(129, 'a'); }, "run.name",
       "at most 128"},
      {"no storage path", [](auto& x) { x.run.storage_path = ""; }, "run.storage_path", "name the directory"},
      {"no checkpoint to keep", [](auto& x) { x.checkpoint.num_to_keep = 0; }, "checkpoint.num_to_keep",
       "at least the latest"},
      {"no best checkpoint to keep", [](auto& x) { x.checkpoint.num_best_to_keep = 0; }, "checkpoint.num_best_to_keep",
       "at least 1"},
      // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): what a damaged configuration has
      {"a score that is ordered in no way", [](auto& x) { x.checkpoint.score_order = score_mode{0}; },
       "checkpoint.score_order", "score_mode::max"},
      {"an order without a score", [](auto& x) { x.checkpoint.score_order = score_mode::min; },
       "checkpoint.score_attribute", "name the metric"},
      {"more checkpoints in flight than there is memory for", [](auto& x) { x.checkpoint.max_in_flight = 65; },
       "checkpoint.max_in_flight", "at most 64"},
      {"no time to start", [](auto& x) { x.run.start_timeout = 0ms; }, "run.start_timeout", "positive"},
      {"less than no time", [](auto& x) { x.run.collective_timeout = -1ms; }, "run.collective_timeout", "positive"},
      {"no time to connect", [](auto& x) { x.cluster.connect_timeout = 0ms; }, "cluster.connect_timeout", "positive"},
      {"a configuration that is no object", [](auto& x) { x.config = nlohmann::json::array(); }, "config", "object"},
      {"options that are no object", [](auto& x) { x.options = 5; }, "options", "object"},
      {"a node without a port", [](auto& x) { x.cluster.nodes = {"host"}; }, "host", "HOST:PORT"},
      {"a node on port 0", [](auto& x) { x.cluster.nodes = {"host:0"}; }, "host:0", "caf-node printed"},
      {"a node named twice",
       [](auto& x) {
         x.cluster.nodes = {"a:1", "b:1", "a:1"};
       },
       "a:1", "more than once"},
      {"a range that begins with no port",
       [](auto& x) {
         x.cluster.ports = port_range{0, 10};
       },
       "cluster.ports", "0-10"},
      {"a range that ends before it begins",
       [](auto& x) {
         x.cluster.ports = port_range{28'401, 28'400};
       },
       "cluster.ports", "28401-28400"},
  };
  return all;
}

} // namespace

TEST_CASE("the defaults are valid") {
  CHECK(validate({}));
}

TEST_CASE("the limits of each range are valid") {
  trainer_config config;
  config.scaling.shards = 65536;
  config.scaling.num_workers = 65536;
  config.scaling.scale_up_wait = std::chrono::milliseconds{0};
  config.failure.max_failures = 0;
  config.failure.heartbeat_timeout = std::chrono::milliseconds{500};
  config.run.name = std::string(128, 'Z');
  config.checkpoint.num_to_keep = 1;
  config.checkpoint.score_attribute = "loss";
  config.checkpoint.score_order = score_mode::min;
  config.cluster.nodes = {"a:1", "a:2", "[::1]:65535"};
  config.scaling.use_gpu = true;
  config.scaling.resources_per_worker.gpus = 1;
  CHECK(validate(config));
  config.scaling.resources_per_worker.gpus = 0.25;
  config.run.transport = transport_mode::nccl;
  CHECK(validate(config));
}

TEST_CASE("a worker that uses a GPU takes one by default") {
  scaling_config scaling;
  CHECK(resources_of_worker(scaling).gpus == 0);
  scaling.use_gpu = true;
  CHECK(resources_of_worker(scaling) == resources{0, 1});
  scaling.resources_per_worker = {2, 0.5};
  CHECK(resources_of_worker(scaling) == resources{2, 0.5});
}

TEST_CASE("every mistake in a configuration is reported with its field and its remedy") {
  for (const auto& each : mistakes()) {
    CAPTURE(each.what);
    trainer_config config;
    each.make(config);
    auto result = validate(config);
    REQUIRE_FALSE(result);
    CHECK(result.error().code == errc::invalid_argument);
    CAPTURE(result.error().message);
    CHECK(result.error().message.find(each.field) != std::string::npos);
    CHECK(result.error().message.find(each.remedy) != std::string::npos);
  }
}

TEST_CASE("endpoints are parsed and formatted") {
  struct row {
    std::string text;
    endpoint value;
  };
  for (const auto& [text, value] : std::vector<row>{
           {"127.0.0.1:4000", {"127.0.0.1", 4000}},
           {"localhost:0", {"localhost", 0}},
           {"host.example.org:65535", {"host.example.org", 65535}},
           {"[::1]:4000", {"::1", 4000}},
           {"[fe80::1%eth0]:1", {"fe80::1%eth0", 1}},
           {"[2001:db8::7]:443", {"2001:db8::7", 443}},
       }) {
    CAPTURE(text);
    auto parsed = parse_endpoint(text);
    REQUIRE(parsed);
    CHECK(*parsed == value);
    CHECK(to_string(*parsed) == text);
  }
}

TEST_CASE("an invalid endpoint is refused with its text and an example") {
  for (const std::string text : {"",
                                 ":",
                                 ":4000",
                                 "host",
                                 "host:",
                                 "host:65536",
                                 "host:-1",
                                 "host:+1",
                                 "host:4000 ",
                                 "host: 4000",
                                 "host:4x",
                                 "host:0x10",
                                 "::1",
                                 "::1:4000",
                                 "[::1]",
                                 "[]:4000",
                                 "[::1:4000",
                                 "[::1]4000",
                                 "host:99999999999999999999",
                                 "a:b:1"}) {
    CAPTURE(text);
    auto parsed = parse_endpoint(text);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code == errc::invalid_argument);
    CHECK(parsed.error().message.find("'" + text + "'") != std::string::npos);
    CHECK(parsed.error().message.find("127.0.0.1:4000") != std::string::npos);
  }
}

TEST_CASE("a number of workers is one number or a range, and is written as it is read") {
  struct row {
    std::string text;
    worker_range value;
    std::string written;
  };
  for (const auto& [text, value, written] : std::vector<row>{{"0", {0, 0}, "0"},
                                                             {"1", {1, 1}, "1"},
                                                             {"4", {4, 4}, "4"},
                                                             {"2-8", {2, 8}, "2-8"},
                                                             {"2:8", {2, 8}, "2-8"},
                                                             {"3-3", {3, 3}, "3"},
                                                             {"4294967295", {4294967295, 4294967295}, "4294967295"}}) {
    CAPTURE(text);
    auto parsed = parse_worker_range(text);
    REQUIRE(parsed);
    CHECK(*parsed == value);
    CHECK(parsed->is_elastic() == (value.min != value.max));
    CHECK(to_string(*parsed) == written);
  }
}

TEST_CASE("an invalid number of workers is refused with its text and an example") {
  for (const std::string text :
       {"",   "-0", "0-4", "4-2",  "-",  "-4",  "4-",  ":4",   "4:",         "2-4-8",       "2:4:8",
        " 4", "4 ", "+4",  "four", "4x", "0x4", "4.0", "2..8", "4294967296", "2-4294967296"}) {
    CAPTURE(text);
    auto parsed = parse_worker_range(text);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code == errc::invalid_argument);
    CHECK(parsed.error().message.find("'" + text + "'") != std::string::npos);
    CHECK(parsed.error().message.find("2-8") != std::string::npos);
  }
}

TEST_CASE("times are read with their units") {
  using std::chrono::milliseconds;
  for (const auto& [text, value] :
       std::vector<std::pair<std::string, milliseconds>>{{"0", milliseconds{0}},
                                                         {"90", milliseconds{90'000}},
                                                         {"90s", milliseconds{90'000}},
                                                         {"1.5s", milliseconds{1'500}},
                                                         {"30m", milliseconds{1'800'000}},
                                                         {"2h", milliseconds{7'200'000}},
                                                         {"1d", milliseconds{86'400'000}},
                                                         {"1h30m", milliseconds{5'400'000}}}) {
    CAPTURE(text);
    const auto parsed = parse_duration(text);
    REQUIRE(parsed);
    CHECK(*parsed == value);
  }
  for (const std::string text :
       {"", "-1", "1x", "h", "1h30", "1 h", "1..5s", "1e3", "99999d", "2hours", "nan", "inf"}) {
    CAPTURE(text);
    const auto parsed = parse_duration(text);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().message.find("'" + text + "'") != std::string::npos);
  }
}

TEST_CASE("a host file names nodes, with slots or without") {
  const auto read =
      parse_hosts("hosts", "# a comment\n\n  10.0.0.7 slots=4 # four\r\nnode-b:5000\nnode-c\tslots=1\n[::1]:4000");
  CHECK(read == std::vector<named_node>{{"10.0.0.7:4000", 4}, {"node-b:5000"}, {"node-c:4000", 1}, {"[::1]:4000"}});
}

TEST_CASE("users name nodes in one word: a list, or a name of DNS") {
  cluster_config cluster;
  cluster.nodes = {"old:1"};
  REQUIRE(name_nodes(cluster, "dns:nodes.example"));
  CHECK(cluster.nodes.empty());
  CHECK(cluster.discover == node_source{node_source::kind::dns_name, "nodes.example"});
  REQUIRE(name_nodes(cluster, "a:4000,b:4001,"));
  CHECK(cluster.nodes == std::vector<std::string>{"a:4000", "b:4001"});
  CHECK_FALSE(cluster.discover.is_set());
  for (const auto* wrong : {"", ",", "a", "a:b", "dns:", "dns:a,b:1"}) {
    CAPTURE(wrong);
    CHECK(name_nodes(cluster, wrong).error().code == errc::invalid_argument);
  }
}

TEST_CASE("a line of a host file that says something else is named") {
  const auto refusal = [](const std::string& text) {
    auto taken = parse_hosts("my.hosts", text);
    REQUIRE_FALSE(taken);
    CHECK(taken.error().code == errc::invalid_argument);
    return taken.error().message;
  };
  for (const auto* rest :
       {"slots", "slots=", "slots=0", "slots=-1", "slots=2x", "slots=99999999999", "max-slots=2", "4"}) {
    const auto text = refusal(std::string{"a:1\n\nb "} + rest + "\n");
    INFO(text);
    CHECK(text.starts_with("my.hosts:3: "));
    CHECK(text.find("slots=N") != std::string::npos);
  }
  CHECK(refusal("a:b").starts_with("my.hosts:1: "));
  CHECK(refusal("::1 slots=2").starts_with("my.hosts:1: "));
  CHECK(refusal("a\na:4000\n").find("my.hosts:2: node 'a:4000' is listed more than once") == 0);
  for (const auto* nothing : {"", "\n\n", "# nobody\n"})
    CHECK(refusal(nothing).find("names no host") != std::string::npos);
}
