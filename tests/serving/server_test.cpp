#include "running_server.hpp"

#include <troupe/runtime/keys.hpp>
#include <troupe/serving/server.hpp>

#include <doctest/doctest.h>
#include <http_client.hpp>
#include <nlohmann/json.hpp>
#include <processes.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <openssl/ssl.h>
#include <string>
#include <thread>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("a server answers predictions, describes the model, and tells its state") {
  const running_server here;
  const auto found = here.predict("[[1, 2], [3, 4.5]]");
  CHECK(found.status == 200);
  CHECK(found.headers.at("content-type") == "application/json");
  CHECK(outputs_of(found).dump() == "[[3.0,2.0],[7.5,13.5]]");
  CHECK(outputs_of(here.predict("[]")).empty());
  const auto model = nlohmann::json::parse(here.get("/v1/model").body);
  CHECK(model["outputs"] == nlohmann::json{"sum", "product"});
  CHECK(model["inputs"][0].dump() == R"({"name":"x","shape":[2],"type":"f32"})");
  CHECK(here.get("/healthz").status == 200);
  CHECK(here.get("/readyz").status == 200);
  CHECK(here.metric("troupe_serving_rows_total") == 2);
  CHECK(here.metric("troupe_serving_ready") == 1);
  CHECK(here.metric("troupe_serving_responses_total{code=\"200\"}") >= 6);
  CHECK(http_exchange(here.server.port(), http_request("HEAD", "/healthz"), false).status == 200);
}

TEST_CASE("a connection carries many requests, also such that are sent ahead") {
  const running_server here;
  auto client = http_client{here.server.port()};
  for (auto i = 0; i < 20; ++i)
    REQUIRE(client.exchange(running_server::predict_request("[[1, 2]]"))->status == 200);
  auto ahead = std::string{};
  for (auto i = 0; i < 20; ++i)
    ahead += running_server::predict_request("[[" + std::to_string(i) + ", 1]]");
  REQUIRE(client.send(ahead));
  for (auto i = 0; i < 20; ++i)
    CHECK(outputs_of(*client.receive())[0][0] == i + 1);
}

TEST_CASE("requests that wait for a replica become one batch, and each gets its own rows") {
  running_server here{{.batching = {.max_rows = 8}}};
  here.script.set_open(false);
  std::vector<std::thread> clients;
  std::vector<nlohmann::json> found(7);
  const auto send = [&](std::size_t i, const std::string& rows) {
    clients.emplace_back([&here, &found, i, rows] { found[i] = outputs_of(here.predict(rows)); });
  };
  send(0, "[[1, 100]]");
  here.script.await_entered(1);
  for (std::size_t i = 1; i < 7; ++i)
    send(i, "[[" + std::to_string(i) + ", 1], [" + std::to_string(i) + ", 2]]");
  CHECK(becomes_true([&] { return here.metric("troupe_serving_queued_rows") == 12; }));
  here.script.set_open(true);
  for (auto& each : clients)
    each.join();
  CHECK(found[0].dump() == "[[101.0,100.0]]");
  for (std::size_t i = 1; i < 7; ++i) {
    CHECK(found[i][0][0] == i + 1);
    CHECK(found[i][1][1] == 2 * i);
  }
  CHECK(here.script.batches == std::vector<std::uint64_t>{1, 8, 4});
}

TEST_CASE("a request larger than a batch is predicted in parts") {
  running_server here{{.batching = {.max_rows = 2}}};
  CHECK(outputs_of(here.predict("[[1, 1], [2, 1], [3, 1], [4, 1], [5, 1]]")).dump() ==
        "[[2.0,1.0],[3.0,2.0],[4.0,3.0],[5.0,4.0],[6.0,5.0]]");
  CHECK(here.script.batches == std::vector<std::uint64_t>{2, 2, 1});
}

TEST_CASE("rows that the model refuses fail their own request, not the batch") {
  running_server here;
  here.script.set_open(false);
  std::vector<std::thread> clients;
  std::vector<http_response> found(4);
  const std::vector<std::string> rows{"[[1, 1]]", "[[-1, 1]]", "[[2, 1]]", "[[1, 1000]]"};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    clients.emplace_back([&, i] { found[i] = here.predict(rows[i]); });
    if (i == 0)
      here.script.await_entered(1);
  }
  CHECK(becomes_true([&] { return here.metric("troupe_serving_queued_requests") == 3; }));
  here.script.set_open(true);
  for (auto& each : clients)
    each.join();
  CHECK(found[0].status == 200);
  CHECK(found[1].status == 422);
  CHECK(message_of(found[1]) == "the model cannot predict for these rows: the first number is negative");
  CHECK(found[2].status == 200);
  CHECK(outputs_of(found[2]).dump() == "[[3.0,2.0]]");
  CHECK(found[3].status == 500);
  CHECK(message_of(found[3]) == "the prediction failed: a thousand");
}

TEST_CASE("what waits is bounded: a full queue gives 503, a late prediction 504") {
  running_server here{{.batching = {.max_rows = 1, .max_queued_rows = 2},
                       .limits = {.max_request_rows = 2, .predict_timeout = std::chrono::milliseconds{500}}}};
  here.script.set_open(false);
  std::thread first{[&] { CHECK(here.predict("[[1, 1]]").status == 504); }};
  here.script.await_entered(1);
  std::thread second{[&] { CHECK(here.predict("[[1, 1], [1, 1]]").status == 504); }};
  CHECK(becomes_true([&] { return here.metric("troupe_serving_queued_rows") == 2; }));
  const auto refused = here.predict("[[1, 1]]");
  // Unless this machine was slower than the requests that wait.
  CHECK((refused.status == 503 || refused.status == 504));
  if (refused.status == 503)
    CHECK(refused.headers.at("retry-after") == "1");
  first.join();
  second.join();
  CHECK(here.metric("troupe_serving_queued_rows") == 0);
  here.script.set_open(true);
  CHECK(here.predict("[[1, 1]]").status == 200);
}

TEST_CASE("what is wrong with a request is said in JSON, with a code that fits") {
  const running_server here{{.limits = {.max_body_bytes = 1000, .max_request_rows = 3}}};
  const auto check = [&](int status, const std::string& text, const std::string& request) {
    const auto found = http_exchange(here.server.port(), request);
    CHECK_MESSAGE(found.status == status, request);
    CHECK_MESSAGE(message_of(found).find(text) != std::string::npos, message_of(found));
    CHECK(found.headers.at("content-type") == "application/json");
  };
  const auto post = [](const std::string& body, const std::map<std::string, std::string>& headers = {}) {
    return http_request("POST", "/v1/predict", body, headers);
  };
  check(400, "row 0, input 'x': an array of 1, expected 2", post(R"({"inputs": [[1]]})"));
  check(400, "not valid JSON at byte 1", post("hello"));
  check(400, "NPY", post("\x93NUMPY"));
  check(413, "more than 3 rows", post(R"({"inputs": [[1, 1], [1, 1], [1, 1], [1, 1]]})"));
  check(413, "the body has 1001 bytes", post(std::string(1001, ' ')));
  check(413, "more than 1000 bytes",
        "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" +
            std::string(0x800, ' ') + "\r\n0\r\n\r\n");
  check(404, "there is nothing here", http_request("GET", "/v2/predict"));
  check(405, "use POST", http_request("GET", "/v1/predict"));
  check(405, "use GET", http_request("POST", "/v1/model"));
  check(405, "use POST", http_request("DELETE", "/v1/predict"));
  check(411, "Content-Length", "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n\r\n");
  check(400, "not a number", "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n");
  check(400, "send one",
        "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}");
  check(400, "send one",
        "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}");
  check(501, "chunked", "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n{}");
  check(415, "compressed", post("{}", {{"Content-Encoding", "gzip"}}));
  check(415, "application/json", post("{}", {{"Content-Type", "text/html"}}));
  check(415, "application/json", post("{}", {{"Content-Type", "multipart/form-data; boundary=x"}}));
  check(403, "names of this machine", http_request("GET", "/v1/model", {}, {{"Host", "example.org"}}));
  check(400, "HTTP/1.1", "hello\r\n\r\n");
  check(505, "HTTP/1.1", "GET /healthz HTTP/3.0\r\n\r\n");
  check(
      431, "32 KiB", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + [] {
        std::string headers;
        for (auto i = 0; i < 1000; ++i)
          headers += "X-Header-" + std::to_string(i) + ": " + std::string(40, 'x') + "\r\n";
        return headers;
      }() + "\r\n");
  CHECK(here.get("/healthz").status == 200);
}

TEST_CASE("a request that is refused before its body leaves no bytes for another request") {
  const running_server here;
  auto client = http_client{here.server.port()};
  const auto hidden = http_request("POST", "/v1/reload");
  REQUIRE(client.send(http_request("POST", "/v1/nothing", hidden) + http_request("GET", "/healthz")));
  const auto refused = client.receive();
  REQUIRE(refused);
  CHECK(refused->status == 404);
  CHECK(refused->headers.at("connection") == "close");
  CHECK(client.is_closed_by_peer());
}

TEST_CASE("a client may wait for permission to send its body") {
  const running_server here{{.limits = {.max_body_bytes = 1000}}};
  auto client = http_client{here.server.port()};
  const std::string body = R"({"inputs": [[1, 2]]})";
  auto request = http_request("POST", "/v1/predict", body, {{"Expect", "100-continue"}});
  request.resize(request.size() - body.size());
  REQUIRE(client.send(request));
  CHECK(client.receive()->status == 100);
  CHECK(client.exchange(body)->status == 200);
  auto large = http_client{here.server.port()};
  REQUIRE(large.send(
      "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000\r\nExpect: 100-continue\r\n\r\n"));
  CHECK(large.receive()->status == 413);
}

TEST_CASE("a client that is too slow is answered, and one that leaves harms nobody") {
  const running_server here{{.limits = {.receive_timeout = std::chrono::milliseconds{100}}}};
  auto slow = http_client{here.server.port()};
  REQUIRE(slow.send("POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{"));
  const auto found = slow.receive();
  REQUIRE(found);
  CHECK(found->status == 408);
  CHECK(slow.is_closed_by_peer());
  for (auto cut : {5, 30, 60, 90}) {
    const auto request = running_server::predict_request("[[1, 2]]");
    const auto client = http_client{here.server.port()};
    REQUIRE(client.send(request.substr(0, static_cast<std::size_t>(cut))));
  }
  CHECK(here.predict("[[1, 2]]").status == 200);
  CHECK(becomes_true([&] { return here.metric("troupe_serving_connections") == 1; }));
}

TEST_CASE("a connection without a request makes room for one that waits") {
  const running_server here{{.limits = {.max_connections = 2}}};
  std::vector<std::unique_ptr<http_client>> idle;
  for (auto i = 0; i < 2; ++i) {
    idle.push_back(std::make_unique<http_client>(here.server.port()));
    REQUIRE(idle.back()->exchange(http_request("GET", "/healthz"))->status == 200);
  }
  CHECK(here.predict("[[1, 2]]").status == 200);
}

TEST_CASE("a token is asked for where there is one, except by probes of health") {
  const running_server here{{.listen = {.token = "0123456789abcdef"}}};
  const auto with = [&](const std::string& path, const std::string& authorization) {
    return http_exchange(here.server.port(), http_request("GET", path, {}, {{"Authorization", authorization}})).status;
  };
  CHECK(here.get("/healthz").status == 200);
  CHECK(here.get("/readyz").status == 200);
  CHECK(here.get("/metrics").status == 401);
  CHECK(here.get("/v1/model").status == 401);
  CHECK(here.predict("[[1, 2]]").status == 401);
  CHECK(here.get("/v1/model").headers.at("www-authenticate") == "Bearer");
  CHECK(with("/v1/model", "Bearer 0123456789abcdeF") == 401);
  CHECK(with("/v1/model", "Bearer 0123456789abcdef") == 200);
  CHECK(with("/metrics", "Bearer 0123456789abcdef") == 200);
}

TEST_CASE("a source that sends more than its rate gets 429, and is told when to try again") {
  const running_server here{{.limits = {.requests_per_second = 0.001, .burst = 3}}};
  for (auto i = 0; i < 3; ++i)
    CHECK(here.predict("[[1, 2]]").status == 200);
  const auto refused = here.predict("[[1, 2]]");
  CHECK(refused.status == 429);
  CHECK(std::stod(refused.headers.at("retry-after")) > 900);
  CHECK(here.get("/healthz").status == 200);
}

TEST_CASE("configurations that cannot be are refused") {
  predictor_script script;
  const auto start = [&](serving::server_config config) {
    config.notice = [](std::string_view) {};
    auto made = serving::server{
        config, serving::program_model{[&]() -> expected<serving::served_model> {
          return serving::served_model{std::make_unique<sum_predictor>(script), {{"x", dtype::f32, {2}, {}}}};
        }}};
    auto started = made.start();
    return started ? "started" : started.error().message;
  };
  CHECK(start({.listen = {.host = "0.0.0.0", .port = 0}}) ==
        "0.0.0.0 can be reached from other hosts: set a token, or listen at 127.0.0.1");
  CHECK(start({.listen = {.port = 0, .token = "short"}}) == "the token is shorter than 16 characters");
  CHECK(start({.listen = {.port = 0, .token = "0123456789abcdef%20"}}).find("characters that clients cannot send") !=
        std::string::npos);
  CHECK(start({.listen = {.port = 0, .key = "key.pem"}}) == "a certificate and its key are needed, or neither");
  CHECK(start({.listen = {.port = 0}, .replicas = 0}) == "replicas must be 1 to 256");
  CHECK(start({.listen = {.port = 0}, .batching = {.max_queued_rows = 10}}) ==
        "batching.max_queued_rows must be at least limits.max_request_rows");
  const running_server here;
  CHECK(start({.listen = {.port = here.server.port()}}).find("choose another port") != std::string::npos);
  CHECK(start({.listen = {.host = "no such host", .port = 0, .token = "0123456789abcdef"}})
            .find("cannot listen at 'no such host'") == 0);
}

TEST_CASE("a model that cannot predict is not served") {
  const auto start = [](const std::function<expected<serving::served_model>()>& make) {
    auto made = serving::server{{.listen = {.port = 0}, .replicas = 3, .notice = [](std::string_view) {}},
                                serving::program_model{make}};
    auto started = made.start();
    return started ? "started" : started.error().message;
  };
  predictor_script script;
  CHECK(start([]() -> expected<serving::served_model> { return fail(errc::damaged, "no weights"); }) == "no weights");
  CHECK(start([]() -> expected<serving::served_model> { throw exception{errc::damaged, "bad"}; }) == "bad");
  CHECK(start([]() -> expected<serving::served_model> { throw 3; }).find("not a std::exception") != std::string::npos);
  CHECK(start([&]() -> expected<serving::served_model> {
          return serving::served_model{std::make_unique<sum_predictor>(script), {{"y", dtype::f32, {2}, {}}}};
        }).find("the model cannot predict a row of zeros: no column 'x'") == 0);
  CHECK(start([&]() -> expected<serving::served_model> {
          return serving::served_model{std::make_unique<sum_predictor>(script), {{"x", dtype::f16, {2}, {}}}};
        }).find("input 'x' of the model is f16[2]") == 0);
  CHECK(script.alive == 0);
}

TEST_CASE("a reload switches between two batches, and nothing is lost") {
  running_server here{{.batching = {.max_rows = 4}, .replicas = 2}};
  std::atomic<bool> is_over = false;
  std::atomic<std::uint64_t> answers = 0;
  std::atomic<std::uint64_t> wrong = 0;
  std::vector<std::thread> clients;
  for (auto i = 0; i < 4; ++i)
    clients.emplace_back([&] {
      auto client = http_client{here.server.port()};
      auto last = 0.0;
      while (!is_over) {
        const auto found = client.exchange(running_server::predict_request("[[1, 2], [1, 2]]"));
        if (!found || found->status != 200) {
          ++wrong;
          return;
        }
        const auto outputs = outputs_of(*found);
        // Both rows by one model, and never by one before.
        const auto sum = outputs[0][0].get<double>();
        if (outputs[1][0] != sum || sum < last)
          ++wrong;
        last = sum;
        ++answers;
      }
    });
  for (auto i = 1; i <= 20; ++i) {
    here.script.offset = static_cast<float>(i);
    const auto before = answers.load();
    CHECK(value_or_throw(here.server.reload()).changed);
    CHECK(becomes_true([&] { return answers > before + 8 || wrong > 0; }));
  }
  CHECK(here.script.alive == 2);
  is_over = true;
  for (auto& each : clients)
    each.join();
  CHECK(wrong == 0);
  CHECK(outputs_of(here.predict("[[1, 2]]"))[0][0] == 23);
  CHECK(here.metric("troupe_serving_reloads_total") == 20);
}

TEST_CASE("a stop answers what has been received, and accepts nothing more") {
  auto here = std::make_unique<running_server>();
  here->script.set_open(false);
  const auto port = here->server.port();
  std::vector<std::thread> clients;
  std::atomic<int> answered = 0;
  for (auto i = 0; i < 5; ++i) {
    clients.emplace_back([&] {
      auto client = http_client{port};
      const auto found = client.exchange(running_server::predict_request("[[1, 2]]"));
      if (found && found->status == 200 && found->headers.at("connection") == "close")
        ++answered;
    });
    if (i == 0)
      here->script.await_entered(1);
  }
  CHECK(becomes_true([&] { return here->metric("troupe_serving_queued_requests") == 4; }));
  // Open, and without a request.
  auto idle = http_client{port};
  REQUIRE(idle.exchange(http_request("GET", "/healthz")));
  std::thread stopping{[&] { CHECK(here->server.stop(std::chrono::milliseconds{60'000})); }};
  CHECK(becomes_true([&] { return !http_client{port}.is_connected(); }));
  CHECK(idle.is_closed_by_peer());
  here->script.set_open(true);
  stopping.join();
  for (auto& each : clients)
    each.join();
  CHECK(answered == 5);
  CHECK(here->server.stop(std::chrono::milliseconds{0}));
}

TEST_CASE("a stop whose grace is over ends the requests that are left, and waits for no prediction") {
  auto here = std::make_unique<running_server>();
  here->script.set_open(false);
  const auto port = here->server.port();
  std::vector<std::thread> clients;
  for (auto i = 0; i < 3; ++i) {
    clients.emplace_back([&] {
      auto client = http_client{port};
      (void)client.exchange(running_server::predict_request("[[1, 2]]"));
    });
    if (i == 0)
      here->script.await_entered(1);
  }
  CHECK(becomes_true([&] { return here->metric("troupe_serving_queued_requests") == 2; }));
  CHECK_FALSE(here->server.stop(std::chrono::milliseconds{10}));
  // Those that wait are answered or cut off, and the one that is being predicted is cut off.
  for (auto& each : clients)
    each.join();
  // A predictor cannot be interrupted.
  here->script.set_open(true);
}

TEST_CASE("a stop waits for no reload, and those who asked for one are answered") {
  auto here = std::make_unique<running_server>();
  here->script.set_loading(false);
  const auto port = here->server.port();
  std::vector<std::thread> clients;
  std::atomic<int> answered = 0;
  for (auto i = 0; i < 6; ++i)
    clients.emplace_back([&] {
      auto client = http_client{port};
      const auto found = client.exchange(http_request("POST", "/v1/reload"));
      if (found && found->status == 503)
        ++answered;
    });
  CHECK(becomes_true([&] { return here->script.loads == 2 && here->metric("troupe_serving_connections") == 7; }));
  CHECK(here->server.stop(std::chrono::minutes{30}));
  for (auto& each : clients)
    each.join();
  CHECK(answered == 6);
  CHECK(here->server.reload().error().code == errc::stopped);
  here->script.set_loading(true);
}

TEST_CASE("reloads that come while one is under way share the next") {
  running_server here;
  here.script.set_loading(false);
  std::vector<std::thread> clients;
  std::atomic<int> changed = 0;
  std::atomic<int> refused = 0;
  for (auto i = 0; i < 12; ++i)
    clients.emplace_back([&] {
      const auto found = http_exchange(here.server.port(), http_request("POST", "/v1/reload"));
      changed += found.status == 200 ? 1 : 0;
      refused += found.status == 503 ? 1 : 0;
    });
  // Of the threads for connections, eight wait.
  CHECK(becomes_true([&] { return refused == 4 && here.script.loads == 2; }));
  CHECK(here.predict("[[1, 2]]").status == 200);
  here.script.set_loading(true);
  for (auto& each : clients)
    each.join();
  CHECK(changed == 8);
  CHECK(here.script.loads <= 3);
}

TEST_CASE("a server that is stopped while it loads its first model does not start") {
  predictor_script script;
  script.loads_freely = false;
  auto server = serving::server{{.listen = {.port = 0}, .notice = [](std::string_view) {}},
                                serving::program_model{[&]() -> expected<serving::served_model> {
                                  script.load();
                                  return fail(errc::damaged, "no weights");
                                }}};
  std::thread starting{[&] {
    const auto started = server.start();
    REQUIRE_FALSE(started);
    CHECK(started.error().code == errc::stopped);
  }};
  CHECK(becomes_true([&] { return script.loads == 1; }));
  CHECK(server.stop(std::chrono::minutes{30}));
  starting.join();
  CHECK(server.start().error().code == errc::invalid_argument);
  script.set_loading(true);
}

TEST_CASE("a reload that fails says whether the checkpoint is at fault") {
  predictor_script script;
  auto reason = errc::none;
  auto server = serving::server{
      {.listen = {.port = 0}, .notice = [](std::string_view) {}},
      serving::program_model{[&]() -> expected<serving::served_model> {
        if (reason != errc::none)
          return fail(reason, "for a reason");
        return serving::served_model{std::make_unique<sum_predictor>(script), {{"x", dtype::f32, {2}, {}}}};
      }}};
  value_or_throw(server.start());
  const auto reload = [&] { return http_exchange(server.port(), http_request("POST", "/v1/reload")).status; };
  CHECK(reload() == 200);
  reason = errc::damaged;
  CHECK(reload() == 409);
  reason = errc::io_error;
  CHECK(reload() == 500);
}

TEST_CASE("a free replica does not sleep while a full batch waits") {
  running_server here{{.batching = {.max_rows = 4, .max_delay = std::chrono::minutes{30}}, .replicas = 2}};
  here.script.set_open(false);
  // One replica waits for the first to be joined; the second does not fit, and is full by itself.
  std::thread first{[&] { CHECK(here.predict("[[1, 1]]").status == 200); }};
  CHECK(becomes_true([&] { return here.metric("troupe_serving_queued_rows") == 1; }));
  std::thread second{[&] { CHECK(here.predict("[[1, 1], [1, 1], [1, 1], [1, 1]]").status == 200); }};
  CHECK(becomes_true([&] {
    const auto lock = std::lock_guard{here.script.mutex};
    return here.script.entered == 2;
  }));
  here.script.set_open(true);
  first.join();
  second.join();
}

TEST_CASE("a request alone waits for others as long as it may") {
  running_server here{{.batching = {.max_rows = 4, .max_delay = std::chrono::milliseconds{20}}}};
  const auto begin = std::chrono::steady_clock::now();
  CHECK(here.predict("[[1, 1]]").status == 200);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds{20});
}

TEST_CASE("whatever a predictor throws, its replica goes on") {
  running_server here;
  CHECK(message_of(here.predict("[[1, 2000]]")) == "the prediction failed: no memory on the device");
  CHECK(here.predict("[[1, 2000]]").status == 500);
  CHECK(here.predict("[[1, 3000]]").status == 500);
  CHECK(here.predict("[[1, 2]]").status == 200);
}

TEST_CASE("with a certificate the server speaks TLS, and nothing else") {
  const scratch_directory scratch;
  value_or_throw(runtime::init_cluster_ca(scratch.path()));
  const auto files = value_or_throw(runtime::issue_certificate(scratch.path(), {.host = "localhost"}));
  const running_server here{{.listen = {.certificate = files.certificate, .key = files.key}}};
  CHECK(here.server.url().starts_with("https://127.0.0.1:"));

  auto* context = SSL_CTX_new(TLS_client_method());
  REQUIRE(SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr) == 1);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  {
    const auto socket = http_client{here.server.port()};
    auto* session = SSL_new(context);
    SSL_set_fd(session, socket.socket());
    REQUIRE(SSL_connect(session) == 1);
    const auto request = running_server::predict_request("[[1, 2]]");
    for (auto i = 0; i < 3; ++i) {
      REQUIRE(SSL_write(session, request.data(), static_cast<int>(request.size())) > 0);
      std::string text;
      while (text.find("outputs") == std::string::npos) {
        char bytes[4096];
        const auto count = SSL_read(session, bytes, sizeof bytes);
        REQUIRE(count > 0);
        text.append(bytes, static_cast<std::size_t>(count));
      }
      CHECK(text.starts_with("HTTP/1.1 200 "));
    }
    SSL_free(session);
  }
  SSL_CTX_free(context);
  // Clear text, noise, and a client that leaves in the middle of the handshake.
  auto plain = http_client{here.server.port()};
  CHECK_FALSE(plain.exchange(http_request("GET", "/healthz")));
  CHECK(http_client{here.server.port()}.send("\x16\x03\x01"));
  CHECK(becomes_true([&] { return http_client{here.server.port()}.is_connected(); }));

  // A key with a password, which nobody is asked for.
  const auto guarded = scratch.path() / "guarded.pem";
  REQUIRE(std::system(("openssl pkey -in " + files.key.string() + " -aes256 -passout pass:secret -out " +
                       guarded.string() + " && chmod 600 " + guarded.string())
                          .c_str()) == 0);
  auto closed = serving::server{{.listen = {.port = 0, .certificate = files.certificate, .key = guarded}},
                                serving::program_model{}};
  const auto without_password = closed.start();
  REQUIRE_FALSE(without_password);
  CHECK(without_password.error().message.find("without a password") != std::string::npos);

  std::filesystem::permissions(files.key, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  predictor_script script;
  auto open = serving::server{{.listen = {.port = 0, .certificate = files.certificate, .key = files.key}},
                              serving::program_model{}};
  const auto refused = open.start();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("may be used by other users: chmod 600") != std::string::npos);
}
