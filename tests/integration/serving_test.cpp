#include "serving_scene.hpp"

#include <doctest/doctest.h>
#include <http_client.hpp>

#include <cstdlib>
#include <fmt/format.h>
#include <map>
#include <random>
#include <string>
#include <sys/socket.h>
#include <utility>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Resident memory in KiB.
std::uint64_t memory_of(pid_t pid) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/status");
  return std::strtoull(text.c_str() + text.find("VmRSS:") + 6, nullptr, 10);
}

/// A request that is wrong in some way, or only looks so.
std::string malformed_request(std::mt19937& random, const text_rows& rows) {
  const auto valid = [&] {
    const auto body = random() % 2 == 0 ? rows.json(0, 1 + random() % 3) : rows.npy(0, 1 + random() % 3);
    if (random() % 2 == 0)
      return http_request("POST", "/v1/predict", body);
    std::string chunks;
    for (std::size_t at = 0; at < body.size();) {
      const auto size = std::min<std::size_t>(1 + random() % 64, body.size() - at);
      chunks += fmt::format("{:x}\r\n{}\r\n", size, body.substr(at, size));
      at += size;
    }
    return "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + "0\r\n\r\n";
  };
  const auto noise = [&](std::size_t size) {
    std::string result(size, ' ');
    for (auto& each : result)
      each = static_cast<char>(random());
    return result;
  };
  switch (random() % 10) {
  case 0:
    return noise(random() % 300);
  case 1:
    return http_request("POST", "/v1/predict", noise(random() % 300));
  case 2:
    return "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + noise(random() % 100);
  case 3:
    return http_request("POST", "/v1/predict", "{}", {{"Content-Length", std::to_string(random())}});
  case 4:
    return http_request("GET", "/" + std::string(random() % 9000, 'x'));
  case 5:
    return http_request("GET", "/v1/model", {}, {{"X", std::string(random() % 9000, 'y')}});
  case 6:
    return http_request("POST", "/v1/predict", std::string(random() % 3000, "[{\"0,"[random() % 5]));
  default:
    break;
  }
  auto result = valid();
  for (auto changes = 1 + random() % 5; changes > 0 && !result.empty(); --changes) {
    const auto at = random() % result.size();
    switch (random() % 4) {
    case 0:
      result[at] = static_cast<char>(random());
      break;
    case 1:
      result.erase(at, random() % 20);
      break;
    case 2:
      result.insert(at, result.substr(random() % result.size(), random() % 40));
      break;
    default:
      result.resize(at);
    }
  }
  return result;
}

/// Sends malformed requests, each over a connection of its own, and leaves at any point. Returns how many got an
/// answer.
std::uint64_t send_malformed(std::uint16_t port, const text_rows& rows, unsigned seed, std::uint64_t count) {
  auto random = std::mt19937{seed};
  std::uint64_t answers = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto client = http_client{port};
    if (!client.is_connected())
      throw std::runtime_error{"the server does not accept connections any more"};
    (void)client.send(malformed_request(random, rows));
    // Most say that nothing more comes, so that the server need not wait for it.
    if (random() % 8 != 0) {
      client.end_sending();
      answers += client.receive() ? 1 : 0;
    }
    // Closed with a reset, so that no port stays in use.
    const linger at_once{1, 0};
    ::setsockopt(client.socket(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  return answers;
}

} // namespace

TEST_CASE("predictions over HTTP are those of the program predict, bit for bit, in any batch") {
  serving_scene here;
  here.train("12");
  const auto rows = here.rows();
  const std::map expected{std::pair{std::uint64_t{12}, here.predictions(12)}};
  REQUIRE(expected.at(12).size() == rows.size() * outputs);
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--replicas", "2", "--max-batch", "7"}, {"--max-batch", "64", "--max-delay", "1"}}) {
    auto server = here.serve(options);
    auto clients = load{port_of(server), rows, expected, 6};
    CHECK(becomes_true([&] { return clients.now().right > 600 || clients.now().wrong > 0; }));
    const auto found = clients.finish();
    CHECK_MESSAGE(found.wrong == 0, found.first_wrong);
    CHECK(found.cut + found.refused == 0);
    server.signal(SIGTERM);
    CHECK(server.wait() == exit_status{0, {}});
  }
}

TEST_CASE("a newer checkpoint is served without a lost request, and a damaged one is not") {
  serving_scene here;
  here.train("12");
  const auto rows = here.rows();
  auto server = here.serve({"--poll", "0.05", "--replicas", "2"});
  const auto port = port_of(server);
  // Later steps are predicted before they are served: in a copy of the run.
  std::map<std::uint64_t, std::vector<float>> expected{{12, here.predictions(12)}};
  {
    serving_scene ahead;
    ahead.train("12");
    ahead.train("24");
    expected[24] = ahead.predictions(24);
  }
  auto clients = load{port, rows, expected, 4};
  CHECK(becomes_true([&] { return clients.now().right > 100; }));
  here.train("24");
  CHECK(becomes_true([&] { return clients.now().last_step == 24; }));

  const auto damaged = here.checkpoint(36);
  const auto hidden = here.path("step-00000036");
  std::filesystem::copy(here.checkpoint(24), hidden, std::filesystem::copy_options::recursive);
  for (const auto& each : std::filesystem::recursive_directory_iterator{hidden})
    if (each.path().extension() == ".part" || each.file_size() > 50'000) {
      auto bytes = read_file(each.path());
      bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
      write_file(each.path(), bytes);
    }
  std::filesystem::rename(hidden, damaged);
  CHECK(becomes_true([&] { return contains(server.err(), "step-00000036 cannot be served"); }));
  CHECK(contains(server.err(), "step 24 stays"));
  const auto asked = http_exchange(port, http_request("POST", "/v1/reload"));
  CHECK(asked.status == 409);
  CHECK(contains(asked.body, "the newest checkpoint cannot be served"));
  const auto before = clients.now().right;
  CHECK(becomes_true([&] { return clients.now().right > before + 100; }));

  const auto found = clients.finish();
  CHECK_MESSAGE(found.wrong == 0, found.first_wrong);
  CHECK(found.cut + found.refused == 0);
  CHECK(found.steps_back == 0);
  // On request the newest usable one is served, even if it is older.
  std::filesystem::remove_all(damaged);
  std::filesystem::remove_all(here.checkpoint(24));
  server.signal(SIGHUP);
  CHECK(becomes_true(
      [&] { return step_of(http_exchange(port, http_request("POST", "/v1/predict", rows.npy(0, 1)))) == 12; }));
}

TEST_CASE("SIGTERM under load: what was received is answered in whole, and nothing is left behind") {
  serving_scene here;
  here.train("12");
  const auto rows = here.rows();
  auto server = here.serve({"--replicas", "2"});
  auto clients = load{port_of(server), rows, {{12, here.predictions(12)}}, 6};
  CHECK(becomes_true([&] { return clients.now().right > 200; }));
  clients.expect_end();
  server.signal(SIGTERM);
  CHECK(server.wait() == exit_status{0, {}});
  const auto found = clients.finish();
  CHECK_MESSAGE(found.wrong == 0, found.first_wrong);
  CHECK(found.cut == 0);
  CHECK(here.processes().empty());
}

TEST_CASE("malformed requests and clients that leave: no crash, flat memory, and others are served") {
  const auto* const seconds = std::getenv("TROUPE_LONG_TESTS");
  const std::uint64_t count = seconds == nullptr ? 3'000 : 100'000;
  const auto* const given = std::getenv("TROUPE_SEED");
  const auto seed = given == nullptr ? 1u : static_cast<unsigned>(std::strtoul(given, nullptr, 10));
  MESSAGE("TROUPE_SEED=" << seed);
  serving_scene here;
  here.train("12");
  const auto rows = here.rows();
  auto server = here.serve({"--receive-timeout", "1"});
  const auto port = port_of(server);
  auto clients = load{port, rows, {{12, here.predictions(12)}}, 1};
  CHECK(send_malformed(port, rows, seed, 1'000) > 500);
  const auto pid = server.pid();
  const auto before = memory_of(pid);
  CHECK(send_malformed(port, rows, seed + 1, count) > count / 2);
  const auto after = memory_of(pid);
  const auto found = clients.finish();
  CHECK(server.running());
  CHECK(found.right > 0);
  CHECK_MESSAGE(found.wrong == 0, found.first_wrong);
  CHECK(found.cut + found.refused == 0);
  MESSAGE(count << " malformed requests: " << before << " KiB before, " << after << " KiB after");
  // Sanitizers keep what is freed.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(after < before + 8'192);
#endif
  CHECK(becomes_true([&] {
    return contains(http_exchange(port, http_request("GET", "/metrics")).body, "\ntroupe_serving_connections 1\n");
  }));
}

TEST_CASE("a run's first checkpoint is waited for, and usage errors are told") {
  serving_scene here;
  auto server = here.serve({"--wait", "--poll", "0.05"});
  const auto port = port_of(server);
  CHECK(http_exchange(port, http_request("GET", "/healthz")).status == 200);
  CHECK(http_exchange(port, http_request("GET", "/readyz")).status == 503);
  CHECK(http_exchange(port, http_request("POST", "/v1/predict", "{}")).status == 503);
  here.train("12");
  CHECK(becomes_true([&] { return http_exchange(port, http_request("GET", "/readyz")).status == 200; }));

  const auto serve = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {troupe_program(), "serve"});
    return here.run(std::move(arguments));
  };
  const auto model = here.run_directory("model").string();
  auto missing = serve({here.path("nothing").string()});
  CHECK(missing.status == exit_status{2, {}});
  CHECK(contains(missing.err, "nothing does not exist: name a checkpoint"));
  auto open = serve({model, "--host", "0.0.0.0"});
  CHECK(open.status == exit_status{2, {}});
  CHECK(contains(open.err, "set a token"));
  auto taken = serve({model, "--port", std::to_string(port)});
  CHECK(taken.status == exit_status{1, {}});
  CHECK(contains(taken.err, "choose another port"));
  auto many = serve({model, "--request-rows", "5000"});
  CHECK(many.status == exit_status{2, {}});
  CHECK(contains(many.err, "--queue-rows must be at least --request-rows"));
  auto unknown = serve({model, "--replica", "2"});
  CHECK(unknown.status == exit_status{2, {}});
  CHECK(contains(unknown.err, "did you mean '--replicas'?"));
  CHECK(serve({"--help"}).status == exit_status{0, {}});
  write_file(here.path("token"), "0123456789abcdef0\n");
  auto readable = serve({model, "--token-file", here.path("token").string()});
  CHECK(contains(readable.err, "chmod 600"));
  std::filesystem::permissions(here.path("token"), std::filesystem::perms::owner_all);
  auto guarded = here.serve({"--token-file", here.path("token").string()});
  CHECK(http_exchange(port_of(guarded), http_request("GET", "/v1/model")).status == 401);
  CHECK(http_exchange(port_of(guarded),
                      http_request("GET", "/v1/model", {}, {{"Authorization", "Bearer 0123456789abcdef0"}}))
            .status == 200);
}

TEST_CASE("a signal stops a server whose model takes long to load, and leaves nothing behind") {
  serving_scene here;
  write_file(here.path("model.onnx"), "a model that is never read");
  std::filesystem::create_directory(here.path("temporary"));
  auto server = here.start({troupe_program(), "serve", here.path("model.onnx").string(), "--port", "0",
                            "--onnxruntime-library", built("lib/libslow_library.so")},
                           {{"TMPDIR", here.path("temporary").string()}});
  REQUIRE(becomes_true([&] { return contains(server.err(), "the library is being loaded") || !server.running(); }));
  server.signal(SIGHUP);
  server.signal(SIGTERM);
  CHECK(server.wait() == exit_status{0, {}});
  CHECK(std::filesystem::is_empty(here.path("temporary")));
}

TEST_CASE("many signals for a reload are taken at once, and the server stops after them") {
  serving_scene here;
  here.train("12");
  auto server = here.serve();
  const auto port = port_of(server);
  for (auto i = 0; i < 100; ++i)
    server.signal(SIGHUP);
  CHECK(becomes_true([&] { return contains(server.err(), "there is nothing newer than step 12"); }));
  CHECK(http_exchange(port, http_request("GET", "/readyz")).status == 200);
  server.signal(SIGTERM);
  CHECK(server.wait() == exit_status{0, {}});
}

#ifdef TROUPE_WITH_MNIST
TEST_CASE("a run of LibTorch is waited for, too") {
  serving_scene here;
  auto server = here.serve({"--wait", "--poll", "0.05"});
  const auto port = port_of(server);
  CHECK(http_exchange(port, http_request("GET", "/readyz")).status == 503);
  constexpr std::size_t images = 64;
  write_file(here.path("images"),
             std::string{"\0\0\x08\x03\0\0\0\x40\0\0\0\x1c\0\0\0\x1c", 16} + std::string(images * 28 * 28, '\x7f'));
  write_file(here.path("labels"), std::string{"\0\0\x08\x01\0\0\0\x40", 8} + std::string(images, '\1'));
  const auto done = here.run({built("bin/mnist"), "--images", here.path("images").string(), "--labels",
                              here.path("labels").string(), "--held-out", "8", "--batch", "8", "--steps", "2",
                              "--workers", "1", "--storage", here.path("runs").string(), "--name", "model"});
  INFO(done.err);
  REQUIRE(done.status == exit_status{0, {}});
  CHECK(becomes_true([&] { return http_exchange(port, http_request("GET", "/readyz")).status == 200; }));
  const auto row = std::string{R"({"inputs": [[1)"} + [] {
    std::string rest;
    for (auto i = 1; i < 28 * 28; ++i)
      rest += ",1";
    return rest;
  }() + "]]}";
  CHECK(http_exchange(port, http_request("POST", "/v1/predict", row)).status == 200);
  // Also where a library has started threads of its own before the program began.
  server.signal(SIGTERM);
  CHECK(server.wait() == exit_status{0, {}});
}
#endif
