#include <troupe/actors/decisions/log_extension.hpp>

#include <doctest/doctest.h>

#include <sstream>
#include <string>

using namespace troupe;
using namespace troupe::actors;

namespace {

bool extends(const std::string& ours, const std::string& theirs, std::optional<step_id> until = {}) {
  auto in_ours = std::istringstream{ours};
  auto in_theirs = std::istringstream{theirs};
  return extends_log(in_ours, in_theirs, until);
}

std::string row(int step, double loss) {
  return R"({"step":)" + std::to_string(step) + R"(,"loss":)" + std::to_string(loss) + "}\n";
}

} // namespace

TEST_CASE("a log extends another one if it has each of its lines") {
  CHECK(extends("", ""));
  CHECK(extends("a\n", ""));
  CHECK(extends("a\nb\n", "a\n"));
  // Logs that were merged have an order of their own.
  CHECK(extends("a\nb\nc\n", "c\na\n"));
  CHECK_FALSE(extends("", "a\n"));
  CHECK_FALSE(extends("a\nb\n", "a\nc\n"));
  // Who was killed has torn its last line, here or while it was copied.
  CHECK(extends("a\n", "a\nb"));
  CHECK_FALSE(extends("a\nb", "a\nb\n"));
}

TEST_CASE("what a run writes again need not be there, nor what is no row") {
  const auto ours = row(1, 0.5) + row(2, 0.25);
  CHECK(extends(ours, row(1, 0.5) + row(2, 0.25) + row(3, 0.125), step_id{2}));
  CHECK_FALSE(extends(ours, row(1, 0.5) + row(2, 0.25) + row(3, 0.125), step_id{3}));
  CHECK_FALSE(extends(ours, row(1, 0.5) + row(2, 0.26), step_id{2}));
  CHECK(extends("", row(1, 0.5), step_id{0}));
  CHECK_FALSE(extends("", row(1, 0.5), step_id{1}));
  CHECK(extends("", "{}\n[1]\n7\n\n{\"step\":\"1\"}\n{\"step\":", step_id{9}));
}
