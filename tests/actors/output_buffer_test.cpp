#include <troupe/actors/decisions/output_buffer.hpp>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

using namespace troupe;
using namespace troupe::actors;

namespace {

worker_output lines_of(std::uint32_t worker, std::vector<std::string> lines) {
  return {{"r"}, {worker}, 0, std::move(lines)};
}

worker_output batch(std::uint32_t worker, std::uint64_t number, std::vector<std::string> lines) {
  return {{"r"}, {worker}, number, std::move(lines)};
}

} // namespace

TEST_CASE("lines are taken in order, numbered by worker, of each worker in turn") {
  output_buffer buffer;
  CHECK(buffer.empty());
  CHECK(buffer.add(lines_of(1, {"a"})));
  CHECK_FALSE(buffer.add(lines_of(2, {"x"})));
  CHECK_FALSE(buffer.add(lines_of(1, {"b"})));
  CHECK(buffer.take() == batch(1, 1, {"a", "b"}));
  CHECK_FALSE(buffer.add(lines_of(1, {"c"})));
  CHECK(buffer.take() == batch(2, 1, {"x"}));
  CHECK(buffer.take() == batch(1, 2, {"c"}));
  CHECK(buffer.empty());
  CHECK_FALSE(buffer.take());
  CHECK(buffer.add(lines_of(1, {"d"})));
}

TEST_CASE("a batch is small, and a worker that prints much lets others come in between") {
  output_buffer buffer;
  for (auto i = 0; i < 100; ++i)
    buffer.add(lines_of(1, {std::string(4096, 'a')}));
  buffer.add(lines_of(2, {"x"}));
  const auto first = buffer.take();
  REQUIRE(first);
  CHECK(first->worker == worker_id{1});
  CHECK(first->lines.size() < 20);
  CHECK(buffer.take() == batch(2, 1, {"x"}));
  CHECK(buffer.take()->number == 2);
}

TEST_CASE("beyond a limit lines are dropped, and a line says where and how many; one worker's cost no other's") {
  output_buffer buffer;
  for (auto i = 0; i < 3000; ++i)
    buffer.add(lines_of(1, {std::to_string(i) + std::string(1000, '.')}));
  buffer.add(lines_of(2, {"x"}));
  std::vector<std::string> mine;
  std::vector<std::string> others;
  while (const auto next = buffer.take()) {
    auto& into = next->worker == worker_id{1} ? mine : others;
    into.insert(into.end(), next->lines.begin(), next->lines.end());
  }
  CHECK(others == std::vector<std::string>{"x"});
  REQUIRE(mine.size() > 500);
  REQUIRE(mine.size() < 1100);
  for (std::size_t i = 0; i + 1 < mine.size(); ++i)
    CHECK(mine[i].starts_with(std::to_string(i) + "."));
  CHECK(mine.back().starts_with(fmt::format("({} lines are dropped here", 3000 - (mine.size() - 1))));
  // From here on there is room again.
  CHECK(buffer.add(lines_of(1, {"again"})));
  CHECK(buffer.take()->lines == std::vector<std::string>{"again"});
}

TEST_CASE("after a gap nothing is kept before the gap is told") {
  output_buffer buffer;
  for (auto i = 0; i < 2000; ++i)
    buffer.add(lines_of(1, {std::string(1000, '.')}));
  // There is room for this one, but it comes after those that are lost.
  CHECK(buffer.take());
  buffer.add(lines_of(1, {"late"}));
  std::vector<std::string> rest;
  while (const auto next = buffer.take())
    rest.insert(rest.end(), next->lines.begin(), next->lines.end());
  CHECK(std::ranges::find(rest, "late") == rest.end());
  CHECK(rest.back().find("dropped") != std::string::npos);
}
