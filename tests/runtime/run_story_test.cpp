#include "watching/bounded_curve.hpp"
#include "watching/growing_file.hpp"
#include "watching/run_story.hpp"

#include <processes.hpp>
#include <scratch_directory.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using namespace troupe::runtime;
using nlohmann::json;
using troupe::testing::scratch_directory;
using troupe::testing::write_file;

namespace {

std::vector<std::string> lines_of(growing_file& file, int* forgotten = nullptr) {
  std::vector<std::string> result;
  file.read(
      [&] {
        result.clear();
        if (forgotten != nullptr)
          ++*forgotten;
      },
      [&](std::string_view line) { result.emplace_back(line); });
  return result;
}

} // namespace

TEST_CASE("a curve of any length stays small, and keeps sums and extremes") {
  bounded_curve curve;
  constexpr auto steps = std::uint64_t{1'000'000};
  for (std::uint64_t step = 1; step <= steps; ++step)
    curve.add(step, step == 777'777 ? -5.0 : static_cast<double>(step));
  REQUIRE(curve.buckets().size() <= bounded_curve::most_buckets);
  CHECK(curve.buckets().size() > bounded_curve::most_buckets / 4);
  auto count = std::uint64_t{0};
  auto sum = 0.0;
  auto least = 0.0;
  auto before = 0.0;
  for (const auto& [index, each] : curve.buckets()) {
    count += each.count;
    sum += each.sum;
    least = std::min(least, each.least);
    CHECK(each.mean_step() > before);
    before = each.mean_step();
  }
  CHECK(count == steps);
  CHECK(sum == 500'000'500'000.0 - 777'777.0 - 5.0);
  CHECK(least == -5.0);
}

TEST_CASE("a value that is not finite spoils no mean, and a step of such values alone is not a number") {
  bounded_curve curve;
  curve.add(1, std::numeric_limits<double>::quiet_NaN());
  curve.add(1, 4.0);
  curve.add(2, std::numeric_limits<double>::infinity());
  REQUIRE(curve.buckets().size() == 2);
  CHECK(curve.buckets().at(1).mean() == 4.0);
  CHECK(std::isnan(curve.buckets().at(2).mean()));
}

TEST_CASE("a growing file gives each line once, and waits for the end of a torn one") {
  scratch_directory here;
  const auto path = here.path() / "lines";
  growing_file file{path, 1U << 20};
  CHECK(lines_of(file).empty());
  write_file(path, "one\ntwo\nthr");
  CHECK(lines_of(file) == std::vector<std::string>{"one", "two"});
  CHECK(lines_of(file).empty());
  std::ofstream{path, std::ios::app} << "ee\n";
  CHECK(lines_of(file) == std::vector<std::string>{"three"});
}

TEST_CASE("a file that was cut and has grown again is read anew") {
  scratch_directory here;
  const auto path = here.path() / "lines";
  growing_file file{path, 1U << 20};
  write_file(path, "one\ntwo\n");
  CHECK(lines_of(file).size() == 2);
  auto forgotten = 0;
  std::filesystem::resize_file(path, 4);
  std::ofstream{path, std::ios::app} << "another\nand more\n";
  CHECK(lines_of(file, &forgotten) == std::vector<std::string>{"one", "another", "and more"});
  CHECK(forgotten == 1);
}

TEST_CASE("of a huge file a part is read, with all of its end") {
  scratch_directory here;
  const auto path = here.path() / "lines";
  {
    auto out = std::ofstream{path};
    for (auto i = 0; i < 400'000; ++i)
      out << "line " << i << '\n';
  }
  growing_file file{path, 1U << 20};
  const auto lines = lines_of(file);
  CHECK(file.is_sampled());
  REQUIRE(lines.size() > 1000);
  CHECK(lines.size() < 200'000);
  CHECK(lines.front() == "line 0");
  CHECK(lines.back() == "line 399999");
  for (const auto& each : lines)
    REQUIRE(each.starts_with("line "));
  std::ofstream{path, std::ios::app} << "next\n";
  CHECK(lines_of(file) == std::vector<std::string>{"next"});
}

TEST_CASE("metrics are those of rank 0, with the speed of the run first") {
  metric_story story;
  for (auto step = 1; step <= 10; ++step) {
    story.add({{"step", step}, {"rank", 0}, {"seconds", step * 0.5}, {"time", "x"}, {"loss", 10.0 / step}});
    story.add({{"step", step}, {"rank", 1}, {"seconds", step * 0.5}, {"loss", 1e9}});
  }
  story.add({{"step", 11}, {"rank", 0}, {"loss", nullptr}});
  story.add({{"step", "damaged"}, {"rank", -1}});
  const auto curves = story.curves();
  REQUIRE(curves.size() == 2);
  CHECK(curves[0].name == "steps/s");
  REQUIRE(curves[0].points.size() == 9);
  CHECK(curves[0].points[3].value == doctest::Approx(2.0));
  CHECK(curves[1].name == "loss");
  REQUIRE(curves[1].points.size() == 11);
  CHECK(curves[1].points[4].value == 2.0);
  CHECK(to_json(curves[1])["values"][10].is_null());
}

TEST_CASE("the rank that computes longest is late, and nobody is where all are alike") {
  time_story story;
  for (auto rank = 0; rank < 4; ++rank)
    story.add({{"rank", rank}, {"step", 10}, {"steps", 10}, {"compute", 1.0}, {"wait", 0.5}, {"barrier", 0.1}});
  CHECK(story.late().is_null());
  story.add({{"rank", 2}, {"step", 20}, {"steps", 10}, {"compute", 3.0}, {"wait", 0.0}, {"barrier", 0.1}});
  CHECK(story.late()["rank"] == 2);
  CHECK(story.late()["ratio"] == doctest::Approx(2.0));
  CHECK(story.ranks()[2]["compute_ms"] == doctest::Approx(200.0));
  CHECK(story.ranks()[2]["step"] == 20);
}

TEST_CASE("of a pause of many ranks the longest counts, and consequences are no failures of their own") {
  event_story story;
  story.add({{"event", "started"}, {"time", "t0"}, {"workers", {{{"rank", 0}, {"host", "a"}}}}});
  story.add({{"event", "failure"}, {"rank", 1}, {"cause", "killed"}, {"consequence", false}});
  story.add({{"event", "failure"}, {"rank", 2}, {"cause", "lost its peer"}, {"consequence", true}});
  story.add({{"event", "pause"}, {"generation", 2}, {"rank", 0}, {"seconds", 0.1}});
  story.add({{"event", "pause"}, {"generation", 2}, {"rank", 2}, {"seconds", 0.3}});
  story.add({{"event", "pause"}, {"generation", 3}, {"rank", 0}, {"seconds", 0.2}});
  story.add({{"event", "checkpoint"}, {"step", 5}, {"path", "p"}});
  CHECK(story.failures().size() == 1);
  CHECK(story.counts() == nlohmann::ordered_json(json{
                              {"checkpoint", 1}, {"consequence", 1}, {"failure", 1}, {"pause", 2}, {"started", 1}}));
  const auto events = story.events();
  REQUIRE(events.size() == 6);
  CHECK(events[3]["seconds"] == 0.3);
  CHECK(events[3]["ranks"] == 2);
  CHECK(story.members()[0]["host"] == "a");
  for (auto i = 0; i < 1000; ++i)
    story.add({{"event", "warning"}, {"text", std::string(100'000, 'x')}});
  CHECK(story.events().size() == event_story::most_events);
  CHECK(story.events().dump().size() < 2'000'000);
}

TEST_CASE("the accounts of several processes of a run are added up, and of each its last counts") {
  event_story story;
  CHECK(story.goodput().is_null());
  const auto account = [](double seconds, double productive) {
    return json{{"seconds", seconds}, {"productive", productive}, {"lost", {{"regroup", seconds - productive}}}};
  };
  story.add({{"event", "started"}});
  story.add({{"event", "goodput"}, {"goodput", account(5, 4)}});
  story.add({{"event", "goodput"}, {"goodput", account(10, 8)}});
  story.add({{"event", "started"}});
  story.add({{"event", "ended"}, {"goodput", account(10, 10)}});
  const auto sum = story.goodput();
  CHECK(sum["seconds"] == 20.0);
  CHECK(sum["ratio"] == doctest::Approx(0.9));
  CHECK(sum["lost"]["regroup"] == 2.0);
}

TEST_CASE("a run's directory without anything in it has an empty story, and a damaged one what can be read") {
  scratch_directory here;
  story_reader reader{here.path()};
  reader.read();
  auto story = reader.to_json();
  CHECK(story["curves"].empty());
  CHECK(story["goodput"].is_null());
  write_file(here.path() / "metrics.jsonl",
             "{\"step\":1,\"rank\":0,\"loss\":2}\ngarbage\n[1]\n{\"step\":2,\"rank\":0,\"loss\":1}\n");
  write_file(
      here.path() / "events.jsonl",
      "{\"event\":5}\n{\"event\":\"started\",\"workers\":7}\n{\"event\":\"goodput\",\"goodput\":{\"lost\":3}}\n");
  write_file(here.path() / "run.json", "[]");
  write_file(here.path() / "result.json", "{");
  reader.read();
  story = reader.to_json();
  CHECK(story["curves"]["loss"]["values"].size() == 2);
  CHECK(story["events"].size() == 1);
  CHECK(status_of_run(here.path())["state"] == "ended");
}
