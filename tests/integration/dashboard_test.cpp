#include "scratch_runs.hpp"

#include <browser.hpp>

#include <cstdio>
#include <doctest/doctest.h>
#include <httplib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace troupe::testing;
using nlohmann::json;

namespace {

const auto endless = std::string{"100000000"};
const auto own_header = httplib::Headers{{"X-Troupe-Request", "1"}};

[[nodiscard]] std::optional<std::string> chromium_or_skip() {
  auto result = find_chromium();
  if (!result)
    std::puts("SKIP: there is no chromium (apt install chromium)");
  return result;
}

/// A dashboard of the runs of one test.
struct served_runs {
  scratch_runs here;
  std::optional<child_process> server;
  std::string url;

  served_runs() { std::filesystem::create_directories(here.path("runs")); }

  void serve(std::vector<std::string> more = {}) {
    std::vector<std::string> argv{troupe_program(), "dashboard", here.path("runs").string(), "--listen", "127.0.0.1:0"};
    argv.insert(argv.end(), more.begin(), more.end());
    server.emplace(here.start(std::move(argv)));
    REQUIRE(becomes_true([&] { return server->out().find('\n') != std::string::npos || !server->running(); }));
    INFO(server->err());
    const auto line = server->out();
    const auto begin = line.find("http");
    REQUIRE(begin != std::string::npos);
    url = line.substr(begin, line.find(' ', begin) - begin - 1);
  }

  [[nodiscard]] json get(const std::string& path) const {
    const auto answer = httplib::Client{url}.Get(path);
    REQUIRE(answer);
    return json::parse(answer->body, nullptr, false);
  }

  [[nodiscard]] int status_of(const std::string& path, const httplib::Headers& headers = {}) const {
    const auto answer = httplib::Client{url}.Get(path, headers);
    REQUIRE(answer);
    return answer->status;
  }

  [[nodiscard]] int post(const std::string& path, const httplib::Headers& headers, const std::string& body = {}) const {
    const auto answer = httplib::Client{url}.Post(path, headers, body, "text/plain");
    REQUIRE(answer);
    return answer->status;
  }
};

/// Pictures for people go where this variable says.
void take_picture(browser& page, const std::string& name) {
  if (const auto* directory = std::getenv("TROUPE_SCREENSHOTS"))
    page.take_picture(std::filesystem::path{directory} / (name + ".png"));
}

/// Waits for an expression of the page to hold.
bool shows(browser& page, const std::string& expression) {
  return becomes_true([&] { return page.value_of(expression) == true; });
}

std::string text_has(const std::string& text) {
  return "document.body.innerText.includes(" + json(text).dump() + ")";
}

} // namespace

TEST_CASE("a dashboard lists runs, tells their story, and has their drivers pause, go on and stop") {
  served_runs t;
  t.serve();
  CHECK(t.get("/api/runs")["runs"].empty());
  auto driver = t.here.start(t.here.charlm("run", {"--workers", "2", "--steps", endless}));
  t.here.await_step(driver, "run", 50);
  const auto page = httplib::Client{t.url}.Get("/");
  REQUIRE(page);
  CHECK(page->status == 200);
  CHECK(contains(page->get_header_value("Content-Security-Policy"), "default-src 'none'"));
  CHECK(contains(page->get_header_value("Content-Security-Policy"), "frame-ancestors 'none'"));
  scratch_runs::await(driver, [&] { return t.get("/api/runs")["runs"].size() == 1; });
  CHECK(t.get("/api/runs")["runs"][0]["name"] == "run");
  scratch_runs::await(driver, [&] { return t.get("/api/run?name=run")["curves"].contains("loss"); });
  const auto story = t.get("/api/run?name=run");
  CHECK(story["status"]["state"] == "running");
  CHECK(story["members"].size() == 2);
  CHECK(t.post("/api/steer?run=run&do=pause", own_header) == 200);
  scratch_runs::await(driver, [&] { return t.get("/api/run?name=run")["status"]["state"] == "paused"; });
  CHECK(t.post("/api/steer?run=run&do=resume", own_header) == 200);
  CHECK(t.post("/api/steer?run=run&do=explode", own_header) == 409);
  CHECK(t.post("/api/steer?run=run&do=stop", own_header) == 200);
  CHECK(driver.wait() == exit_status{0, {}});
  CHECK(t.here.result("run")["status"] == "stopped");
  CHECK(t.post("/api/steer?run=run&do=stop", own_header) == 503);
  CHECK(becomes_true([&] { return t.get("/api/run?name=run")["status"]["state"] == "stopped"; }));
  const auto plotted = t.here.run({troupe_program(), "plot", t.here.run_directory("run").string()});
  CHECK(plotted.status == exit_status{0, {}});
  CHECK(contains(plotted.out, "loss"));
  CHECK(contains(plotted.out, "⠁") + contains(plotted.out, "⡀") + contains(plotted.out, "─") > 0);
  const auto missing = t.here.run({troupe_program(), "plot", t.here.run_directory("run").string(), "lost"});
  CHECK(missing.status == exit_status{2, {}});
  CHECK(contains(missing.err, "loss"));
}

TEST_CASE("requests by another name, of other sites and outside the storage directory are refused") {
  served_runs t;
  auto driver = t.here.start(t.here.charlm("run", {"--workers", "1", "--steps", endless}));
  t.here.await_step(driver, "run", 1);
  write_file(t.here.path("secret"), "secret");
  t.serve();
  for (const auto* path : {"/", "/api/runs", "/api/run?name=run", "/api/events"})
    CHECK(t.status_of(path, {{"Host", "evil.example"}}) == 421);
  CHECK(t.status_of("/", {{"Host", "localhost:1"}}) == 200);
  const auto stop = std::string{"/api/steer?run=run&do=stop-now"};
  CHECK(t.status_of(stop) == 404);
  CHECK(t.post(stop, {}) == 403);
  CHECK(t.post(stop, {{"X-Troupe-Request", "1"}, {"Origin", "http://evil.example"}}) == 403);
  CHECK(t.post(stop, {{"X-Troupe-Request", "1"}, {"Sec-Fetch-Site", "cross-site"}}) == 403);
  CHECK(t.post(stop, {{"X-Troupe-Request", "1"}, {"Sec-Fetch-Site", "same-site"}}) == 403);
  CHECK(t.post(stop, {{"X-Troupe-Request", "1"}, {"Host", "evil.example"}}) == 421);
  CHECK(t.post(stop, own_header, std::string(100'000, 'x')) == 413);
  for (const auto* name : {"..", "../run", ".", "", "run/", "%2e%2e", "nothing"})
    CHECK(t.status_of(std::string{"/api/run?name="} + name) == 404);
  for (const auto* worker : {"../../secret", "-1", "", "99999999999"})
    CHECK(t.status_of(std::string{"/api/log?run=run&worker="} + worker) == 400);
  CHECK(driver.running());
  const auto far = t.here.run({troupe_program(), "dashboard", t.here.path("runs").string(), "--listen", "0.0.0.0:0"});
  CHECK(far.status == exit_status{2, {}});
  CHECK(contains(far.err, "--token-file"));
}

TEST_CASE("with a token only who knows it sees anything") {
  served_runs t;
  const auto token = std::string{"0123456789abcdef0123"};
  write_file(t.here.path("token"), token + "\n");
  const auto open = t.here.run({troupe_program(), "dashboard", t.here.path("runs").string(), "--listen", "127.0.0.1:0",
                                "--token-file", t.here.path("token").string()});
  CHECK(open.status == exit_status{2, {}});
  CHECK(contains(open.err, "chmod"));
  std::filesystem::permissions(t.here.path("token"), std::filesystem::perms::owner_read);
  t.serve({"--token-file", t.here.path("token").string()});
  CHECK(t.status_of("/") == 401);
  CHECK(t.status_of("/api/runs") == 401);
  CHECK(t.status_of("/api/runs", {{"Authorization", "Bearer 0123456789abcdef0124"}}) == 401);
  CHECK(t.status_of("/api/runs", {{"Authorization", "Bearer " + token}}) == 200);
  CHECK(t.post("/login", own_header, "wrong") == 401);
  CHECK(t.post("/login", {}, token) == 403);
  const auto answer = httplib::Client{t.url}.Post("/login", own_header, token, "text/plain");
  REQUIRE(answer);
  const auto cookie = answer->get_header_value("Set-Cookie");
  CHECK(contains(cookie, "HttpOnly; SameSite=Strict"));
  CHECK(t.status_of("/api/runs", {{"Cookie", "a=b; " + cookie.substr(0, cookie.find(';'))}}) == 200);
}

TEST_CASE("in a browser a chart moves, a killed worker appears in the timeline, and the stop button stops the run") {
  const auto chromium = chromium_or_skip();
  if (!chromium)
    return;
  served_runs t;
  t.serve();
  browser page{*chromium, t.here.path("profile")};
  page.resize(1280, 900);
  page.open(t.url + "/");
  CHECK(shows(page, text_has("No runs yet")));
  take_picture(page, "empty");
  auto driver =
      t.here.start(t.here.charlm("first", {"--workers", "3", "--steps", endless, "--checkpoint-every", "2000"}));
  t.here.await_step(driver, "first", 100);
  CHECK(shows(page, text_has("first")));
  take_picture(page, "runs");
  page.open(t.url + "/#run=first");
  const auto curve = std::string{"document.querySelector('#curves polyline').getAttribute('points')"};
  REQUIRE(shows(page, "!!document.querySelector('#curves polyline')"));
  const auto before = page.value_of(curve);
  CHECK(shows(page, curve + " !== " + before.dump()));
  CHECK(shows(page, text_has("● live")));
  // Who is late is known once workers have told their times.
  CHECK(shows(page, "document.querySelectorAll('.rank').length === 3"));
  take_picture(page, "running");

  const auto victim = t.here.worker_of_rank(1);
  REQUIRE(victim != 0);
  send_signal(victim, SIGKILL);
  CHECK(shows(page, "document.getElementById('events')?.innerText.includes('SIGKILL')"));
  CHECK(shows(page, "document.getElementById('events')?.innerText.includes('joins')"));
  take_picture(page, "killed");
  page.set_dark(true);
  take_picture(page, "killed-dark");
  page.resize(360, 740);
  CHECK(page.value_of("document.documentElement.scrollWidth <= 360") == true);
  take_picture(page, "phone");
  page.set_dark(false);
  page.resize(1280, 900);

  // Nothing happens before the confirmation.
  page.value_of("document.getElementById('stop').click()");
  CHECK(shows(page, "document.getElementById('ask').open"));
  CHECK(page.value_of("document.activeElement.id") == "ask-no");
  take_picture(page, "confirm");
  CHECK(driver.running());
  page.value_of("document.getElementById('ask-yes').click()");
  CHECK(driver.wait() == exit_status{0, {}});
  CHECK(t.here.result("first")["status"] == "stopped");
  CHECK(shows(page, "document.querySelector('.state').innerText.includes('stopped')"));
  take_picture(page, "stopped");

  const auto other = t.here.run(t.here.charlm("second", {"--workers", "2", "--seed", "7", "--steps", "900"}));
  CHECK(other.status == exit_status{0, {}});
  page.open(t.url + "/#run=first&run=second");
  CHECK(shows(page, "document.querySelectorAll('main polyline').length >= 4"));
  CHECK(shows(page, text_has("Configurations that differ") + " && " + text_has("seed")));
  take_picture(page, "comparison");
  CHECK(page.complaints() == "");

  const auto report = t.here.path("report.html");
  const auto made =
      t.here.run({troupe_program(), "report", t.here.run_directory("first").string(), "-o", report.string()});
  CHECK(made.status == exit_status{0, {}});
  page.open("file://" + report.string());
  CHECK(shows(page, text_has("SIGKILL") + " && !!document.querySelector('#curves polyline')"));
  CHECK(page.value_of("document.querySelectorAll('[src], link[href^=http]').length") == 0);
  take_picture(page, "report");
}

TEST_CASE("curves are written as SVG and as PNG") {
  scratch_runs here;
  REQUIRE(here.run(here.charlm("run")).status == exit_status{0, {}});
  const auto png = here.path("curves.png");
  const auto drawn = here.run({troupe_program(), "plot", here.run_directory("run").string(), "--svg",
                               here.path("curves.svg").string(), "--png", png.string()});
  CHECK(contains(read_file(here.path("curves.svg")), "<polyline"));
  if (std::system("command -v rsvg-convert >/dev/null") != 0) {
    CHECK(drawn.status == exit_status{2, {}});
    CHECK(contains(drawn.err, "apt install librsvg2-bin"));
    return;
  }
  CHECK(drawn.status == exit_status{0, {}});
  const auto picture = read_file(png);
  REQUIRE(picture.size() > 1'000);
  CHECK(picture.starts_with("\x89PNG\r\n"));
  // The width, of four bytes, most significant first: twice that of the SVG.
  CHECK(static_cast<unsigned char>(picture[18]) * 256 + static_cast<unsigned char>(picture[19]) == 1600);
  const auto nowhere = here.run({troupe_program(), "plot", here.run_directory("run").string(), "--png",
                                 here.path("nowhere/curves.png").string()});
  CHECK(nowhere.status == exit_status{2, {}});
  CHECK(contains(nowhere.err, "nowhere/curves.png"));
}

TEST_CASE("a failed run shows its cause first, and text of a run is never markup") {
  const auto chromium = chromium_or_skip();
  if (!chromium)
    return;
  served_runs t;
  const auto run = t.here.path("runs") / "<img src=x onerror=document.title='hacked'>";
  std::filesystem::create_directories(run);
  write_file(run / "run.json",
             R"({"name":"<b>bold</b>","config":{"</script><script>":"<script>document.title='hacked'</script>"}})");
  write_file(
      run / "result.json",
      R"({"status":"failed","steps":3,"error":{"code":"user_error","message":"<i>no such file</i>: data.txt"},"failures":[{"consequence":false,"last_lines":["<u>last words</u>"]}]})");
  write_file(run / "metrics.jsonl", "{\"step\":1,\"rank\":0,\"seconds\":1,\"<s>loss</"
                                    "s>\":1}\n{\"step\":2,\"rank\":0,\"seconds\":2,\"<s>loss</s>\":2}\n");
  write_file(run / "events.jsonl", "{\"event\":\"warning\",\"time\":\"2026-11-26T00:30:12.649Z\",\"text\":\"</li><img "
                                   "src=x onerror=document.title='hacked'>\"}\n");
  t.serve();
  browser page{*chromium, t.here.path("profile")};
  page.resize(1280, 900);
  page.open(t.url + "/");
  REQUIRE(shows(page, "document.querySelectorAll('#runs a').length === 1"));
  page.value_of("document.querySelector('#runs a').click()");
  CHECK(shows(page, "document.querySelector('main > *')?.innerText.includes('<i>no such file</i>: data.txt')"));
  CHECK(shows(page, text_has("<u>last words</u>")));
  CHECK(page.value_of(
            "document.querySelectorAll('main img, main b, main i:not(.legend i), main s, main script').length") == 0);
  CHECK_FALSE(contains(page.value_of("document.title").dump(), "hacked'\""));
  take_picture(page, "failed");
  CHECK(page.complaints() == "");
}
