#include "run/over_ssh.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace troupe::tool;

using words = std::vector<std::string>;

TEST_CASE("the command for another host is this one without --host") {
  CHECK(without_host({"status", "a", "--host", "u@h", "--json"}) == words{"status", "a", "--json"});
  CHECK(without_host({"--host=u@h", "status", "a"}) == words{"status", "a"});
  CHECK(without_host({"status", "--hostname"}) == words{"status", "--hostname"});
  CHECK(without_host({"status", "--", "--host", "a"}) == words{"status", "--", "--host", "a"});
}
