#include "remote/remote_predictor.hpp"
#include "remote/replica_links.hpp"
#include "remote/replica_messages.hpp"
#include "remote/replica_nodes.hpp"
#include "remote/replica_port.hpp"
#include "remote/replica_process.hpp"
#include "remote/replica_run.hpp"
#include "running_server.hpp"

#include <troupe/messages/node.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/interchange/interchange.hpp>
#include <troupe/serialization/interchange/npy.hpp>

#include <doctest/doctest.h>
#include <scratch_directory.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <list>
#include <memory>
#include <optional>
#include <processes.hpp>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace troupe;
using namespace troupe::serving;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using uses = std::vector<link_use>;

/// A checkpoint of one number, which models add to each sum.
std::filesystem::path store(const std::filesystem::path& directory, const std::string& name, float offset,
                            std::uint64_t step = 1) {
  const auto array = directory / (name + ".npy");
  value_or_throw(serialization::write_npy(array, {{"offset", dtype::f32, {1}}, reinterpret_cast<std::byte*>(&offset)},
                                          serialization::existing_file::replace));
  serialization::import_options options;
  options.tensor = "offset";
  options.step = step_id{step};
  value_or_throw(serialization::import_checkpoint(array, directory / name, options));
  return directory / name;
}

/// Processes of replicas that are threads of this one, and what they share.
struct replica_scene {
  scratch_directory scratch;
  predictor_script script;
  std::shared_ptr<replica_links> links = std::make_shared<replica_links>(200ms, 60s);
  std::atomic<std::uint32_t> loads = 0;
  std::string secret = "a secret";

  /// One of them. Ends with this object.
  class process {
   public:
    process(replica_scene& scene, std::uint32_t replica)
        : scene_(scene),
          replica_(replica),
          port_(value_or_throw(replica_port::open(
              "127.0.0.1", std::nullopt, key_of(scene.secret),
              [&scene, replica](runtime::secure_stream stream) { scene.links->add(replica, std::move(stream)); }))),
          thread_([this](const std::stop_token& stop) {
            run_replica({port_->at(), scene_.secret, {{"name", "given"}}}, scene_.load_function(),
                        [&] { return stop.stop_requested(); });
          }) {}
    ~process() { scene_.links->drop(replica_); }

    [[nodiscard]] const endpoint& at() const { return port_->at(); }

   private:
    replica_scene& scene_;
    std::uint32_t replica_;
    std::unique_ptr<replica_port> port_;
    std::jthread thread_;
  };

  load_replica load_function() {
    return [this](const serialization::checkpoint& source, const nlohmann::json& options) -> expected<served_model> {
      ++loads;
      if (options.at("name") != "given")
        return fail(errc::user_error, "other options");
      float offset = 0;
      TROUPE_TRY(source.read_tensor("offset", std::as_writable_bytes(std::span{&offset, 1})));
      if (offset < 0)
        return fail(errc::unsatisfiable, "a negative model");
      script.offset = offset;
      return served_model{std::make_unique<sum_predictor>(script), {{"x", dtype::f32, {2}, {}}}};
    };
  }

  /// A server of a checkpoint with so many of them. A replica takes `max_rows` at once.
  std::unique_ptr<server> serve(const std::filesystem::path& checkpoint, std::uint32_t replicas,
                                std::uint64_t max_rows = batch_config{}.max_rows) {
    auto result = std::make_unique<server>(
        server_config{.listen = {.port = 0},
                      .batching = {.max_rows = max_rows},
                      .replicas = replicas,
                      .notice = [](std::string_view) {}},
        checkpoint_models{checkpoint, [this](const serialization::checkpoint& source) {
                            return load_remotely(*links, source.directory(), checkpoint_route::files);
                          }});
    value_or_throw(result->start());
    return result;
  }

  ~replica_scene() { links->close(); }
};

data::batch batch_of(const served_model& model, std::vector<float> numbers) {
  data::batch result;
  result.reset(model.inputs, numbers.size() / 2);
  std::ranges::copy(numbers, result.values<float>("x").begin());
  return result;
}

http_response ask(const server& where, const std::string& rows) {
  return http_exchange(where.port(), running_server::predict_request(rows));
}

double metric(const server& where, const std::string& name) {
  const auto text = http_exchange(where.port(), http_request("GET", "/metrics")).body;
  const auto found = text.find("\n" + name + " ");
  return found == std::string::npos ? -1 : std::stod(text.substr(found + name.size() + 2));
}

} // namespace

TEST_CASE("a model goes to a process that has no copy of it") {
  CHECK(choose_link(uses{}, "a", true) == std::nullopt);
  CHECK(choose_link(uses{{0, ""}}, "a", false) == 0);
  // Process 0 has one of this model, process 1 one of another.
  CHECK(choose_link(uses{{0, "a"}, {0, ""}, {1, "b"}, {1, ""}}, "a", false) == 3);
  // The one with the fewest models of any kind.
  CHECK(choose_link(uses{{0, "b"}, {0, ""}, {1, ""}}, "a", false) == 2);
}

TEST_CASE("without a process that has no copy, the one with the fewest takes another in the end") {
  const auto all = uses{{0, "a"}, {0, "a"}, {0, ""}, {1, "a"}, {1, "b"}, {1, ""}};
  CHECK(choose_link(all, "a", false) == std::nullopt);
  CHECK(choose_link(all, "a", true) == 5);
  CHECK(choose_link(uses{{0, "a"}}, "a", true) == std::nullopt);
}

TEST_CASE("replicas go to nodes that are available, have the labels, and have room for one") {
  std::vector<runtime::asked_node> nodes(3);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].address = "node" + std::to_string(i) + ":1";
    auto& what = *nodes[i].report;
    what.offered = {4, 0, 8, {{"licence", 1}}};
    what.labels = {{"kind", i == 0 ? "training" : "serving"}};
  }
  nodes[2].report->offered = {4, 1, 16, {}};
  const auto of = [&](const replica_needs& needs) { return nodes_for_replicas(nodes, needs); };
  using list = std::vector<std::string>;
  CHECK(of({}) == list{"node0:1", "node1:1", "node2:1"});
  CHECK(of({{{"kind", "serving"}}}) == list{"node1:1", "node2:1"});
  CHECK(of({{}, {4, 0, 9}}) == list{"node2:1"});
  CHECK(of({{}, {0, 0.5}}) == list{"node2:1"});
  CHECK(of({{}, {0, 0, 0, {{"licence", 1}}}}) == list{"node0:1", "node1:1"});
  CHECK(of({{{"kind", "mirror"}}}).error().message ==
        "no node has the labels kind=mirror: start one with caf-node --label");
  CHECK(of({{{"kind", "training"}}, {0, 1}}).error().message ==
        "no node with these labels has what a replica leases: lease less for each, or add nodes");
  nodes[0].report = fail(errc::unreachable, "nobody listens there");
  CHECK(of({}) == list{"node1:1", "node2:1"});
  for (auto* each : {&nodes[1], &nodes[2]})
    each->report->phase = node_phase::drained;
  CHECK(of({}).error().message ==
        "no node takes replicas\nnode0:1: nobody listens there\nnode1:1: drained\nnode2:1: drained");
}

TEST_CASE("the pause before another try grows to half a minute") {
  CHECK(pause_before(0) == 500ms);
  CHECK(pause_before(1) == 1s);
  CHECK(pause_before(5) == 16s);
  CHECK(pause_before(6) == 30s);
  CHECK(pause_before(1000) == 30s);
}

TEST_CASE("settings and models are read back as they were written") {
  const auto settings = replica_settings{{"10.0.0.7", 4711}, "secret", {{"library", "x.so"}}};
  const auto read = value_or_throw(parse_replica_settings(to_json(settings)));
  CHECK(read.server == settings.server);
  CHECK(read.secret == settings.secret);
  CHECK(read.options == settings.options);
  for (const auto* field : {"server", "secret", "options"}) {
    auto lacking = to_json(settings);
    lacking.erase(field);
    CHECK(parse_replica_settings(lacking).error().code == errc::invalid_argument);
  }
  CHECK(parse_replica_settings(nlohmann::json::array()).error().code == errc::invalid_argument);

  const auto kinds = std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"oak", "elm"});
  const auto face =
      remote_face{"ONNX 1", {{"x", dtype::f32, {28, 28}, {}}, {"kind", dtype::i64, {}, kinds}}, {"sum", "product"}};
  CHECK(value_or_throw(parse_remote_face(to_json(face))) == face);
  auto wrong = to_json(face);
  wrong["inputs"][0]["type"] = "f7";
  CHECK(parse_remote_face(wrong).error().code == errc::invalid_argument);
}

TEST_CASE_FIXTURE(replica_scene, "a model is loaded in another process, and predicts there") {
  const auto checkpoint = store(scratch.path(), "one", 0.5f);
  const auto there = process{*this, 0};
  for (const auto route : {checkpoint_route::files, checkpoint_route::path}) {
    auto model = value_or_throw(load_remotely(*links, checkpoint, route));
    CHECK(model.inputs == std::vector<data::column_spec>{{"x", dtype::f32, {2}, {}}});
    CHECK(model.predictor->outputs() == std::vector<std::string>{"sum", "product"});
    auto rows = batch_of(model, {1, 2, 3, 4});
    std::vector<float> out(4);
    REQUIRE(model.predictor->predict(rows, out));
    CHECK(out == std::vector<float>{3.5, 2, 7.5, 12});
    // Its errors are the model's, and it goes on.
    auto refused = batch_of(model, {-1, 2});
    const auto result = model.predictor->predict(refused, std::span{out}.first(2));
    CHECK(result.error() == error{errc::invalid_argument, "the first number is negative"});
    auto thrown = batch_of(model, {1, 1000});
    CHECK(model.predictor->predict(thrown, std::span{out}.first(2)).error() == error{errc::user_error, "a thousand"});
    CHECK(model.predictor->is_usable());
    REQUIRE(model.predictor->predict(rows, out));
  }
  // Each model ends with its connection.
  CHECK(becomes_true([&] { return script.alive == 0; }));
}

TEST_CASE_FIXTURE(replica_scene, "a model that cannot be loaded says why") {
  const auto there = process{*this, 0};
  const auto refused = load_remotely(*links, store(scratch.path(), "negative", -1), checkpoint_route::files);
  REQUIRE(!refused);
  CHECK(refused.error() == error{errc::unsatisfiable, "a negative model"});
  const auto checkpoint = store(scratch.path(), "damaged", 1);
  for (const auto& each : std::filesystem::directory_iterator{checkpoint})
    if (each.path().filename() != "manifest.bin" && each.is_regular_file()) {
      auto file = std::fstream{each.path(), std::ios::in | std::ios::out | std::ios::binary};
      file.put('x');
    }
  const auto damaged = load_remotely(*links, checkpoint, checkpoint_route::files);
  REQUIRE(!damaged);
  CHECK(damaged.error().code == errc::damaged);
  CHECK(load_remotely(*links, store(scratch.path(), "good", 1), checkpoint_route::files));
}

TEST_CASE_FIXTURE(replica_scene, "only who has the key is let in, whatever others do") {
  const auto there = process{*this, 0};
  auto stop = std::stop_source{};
  const auto other = key_of("another secret");
  const auto wrong =
      runtime::secure_stream::connect(there.at(), runtime::stream_key{other, session_name}, 2s, stop.get_token());
  REQUIRE(!wrong);
  CHECK(wrong.error().code == errc::not_authenticated);
  // Silent ones, more than are kept.
  std::list<http_client> silent;
  for (auto i = 0; i < 200; ++i)
    silent.emplace_back(there.at().port);
  http_client noisy{there.at().port};
  (void)noisy.send(std::string(100'000, 'x'));
  CHECK(load_remotely(*links, store(scratch.path(), "one", 1), checkpoint_route::files));
}

TEST_CASE_FIXTURE(replica_scene,
                  "a process that ends takes its models with it, and a load that it had goes elsewhere") {
  const auto checkpoint = store(scratch.path(), "one", 1);
  auto first = std::make_unique<process>(*this, 0);
  auto model = value_or_throw(load_remotely(*links, checkpoint, checkpoint_route::files));
  first.reset();
  auto rows = batch_of(model, {1, 2});
  std::vector<float> out(2);
  const auto result = model.predictor->predict(rows, out);
  REQUIRE(!result);
  CHECK(result.error().code == errc::worker_lost);
  CHECK(!model.predictor->is_usable());
  const auto second = process{*this, 0};
  CHECK(load_remotely(*links, checkpoint, checkpoint_route::files));
}

TEST_CASE_FIXTURE(replica_scene, "a model that finds no process is given up in the end") {
  links = std::make_shared<replica_links>(50ms, 200ms);
  CHECK(load_remotely(*links, scratch.path(), checkpoint_route::files).error().code == errc::unreachable);
}

TEST_CASE_FIXTURE(replica_scene, "whoever waits for a process is let go when all is closed") {
  auto waiting = std::thread{[&] {
    const auto result = load_remotely(*links, scratch.path(), checkpoint_route::files);
    CHECK(result.error().code == errc::stopped);
  }};
  std::this_thread::sleep_for(300ms);
  links->close();
  waiting.join();
}

TEST_CASE_FIXTURE(replica_scene, "requests of a lost process are answered by another, and it comes back") {
  const auto checkpoint = store(scratch.path(), "one", 1);
  auto first = std::make_unique<process>(*this, 0);
  const auto second = process{*this, 1};
  // No replica can take all requests, so both get some.
  const auto here = serve(checkpoint, 2, 3);
  CHECK(loads == 2);
  script.set_open(false);
  std::vector<std::thread> clients;
  std::vector<http_response> found(6);
  for (std::size_t i = 0; i < found.size(); ++i)
    clients.emplace_back([&, i] { found[i] = ask(*here, "[[" + std::to_string(i + 1) + ", 2]]"); });
  script.await_entered(2);
  links->drop(0);
  CHECK(becomes_true([&] { return metric(*here, "troupe_serving_lost_replicas_total") == 1; }));
  script.set_open(true);
  for (auto& each : clients)
    each.join();
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].status == 200);
    CHECK(outputs_of(found[i])[0][0] == static_cast<double>(i) + 4);
  }
  // The process itself is well: it connects again, and the model is loaded again.
  CHECK(becomes_true([&] { return loads == 3; }));
  CHECK(ask(*here, "[[1, 1]]").status == 200);
}

TEST_CASE_FIXTURE(replica_scene, "rows that end whatever predicts them fail alone, after two replicas") {
  const auto checkpoint = store(scratch.path(), "one", 1);
  const auto first = process{*this, 0};
  const auto second = process{*this, 1};
  script.on_row = [this](float number) {
    if (number == 4000) {
      links->drop(0);
      links->drop(1);
    }
  };
  const auto here = serve(checkpoint, 2);
  const auto fatal = ask(*here, "[[4000, 1]]");
  CHECK(fatal.status == 500);
  CHECK(message_of(fatal) == "the prediction failed: two replicas in a row ended while they predicted for these rows");
  CHECK(ask(*here, "[[1, 1]]").status == 200);
}

TEST_CASE_FIXTURE(replica_scene, "a newer model is loaded beside the served one, in the same processes") {
  std::filesystem::create_directories(scratch.path() / "run" / "checkpoints");
  const auto in_run = [&](std::uint64_t step, float offset) {
    store(scratch.path() / "run" / "checkpoints", serialization::checkpoint_name(step_id{step}), offset, step);
  };
  in_run(1, 1);
  const auto first = process{*this, 0};
  const auto second = process{*this, 1};
  const auto here = serve(scratch.path() / "run", 2);
  CHECK(outputs_of(ask(*here, "[[1, 1]]"))[0][0] == 3);
  in_run(2, 2);
  CHECK(value_or_throw(here->reload()).changed);
  CHECK(outputs_of(ask(*here, "[[1, 1]]"))[0][0] == 4);
  CHECK(becomes_true([&] { return script.alive == 2; }));
}

TEST_CASE_FIXTURE(replica_scene, "a model may outlive what it was loaded by") {
  const auto there = process{*this, 0};
  auto model = value_or_throw(load_remotely(*links, store(scratch.path(), "one", 1), checkpoint_route::files));
  links->close();
  links = std::make_shared<replica_links>(200ms, 60s);
  auto rows = batch_of(model, {1, 2});
  std::vector<float> out(2);
  CHECK(model.predictor->predict(rows, out).error().code == errc::worker_lost);
}
