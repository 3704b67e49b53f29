#include "dashboard/page.hpp"
#include "dashboard/peer_owner.hpp"
#include "dashboard/request_guard.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

using namespace troupe::runtime;

namespace {

using palette = std::map<std::string, std::string>;

/// The variables of the page's style from `mark` to the end of the block.
palette colours_after(const std::string& page, const std::string& mark) {
  palette result;
  const auto begin = page.find(mark);
  REQUIRE(begin != std::string::npos);
  const auto block = page.substr(begin, page.find('}', begin) - begin);
  static const auto pattern = std::regex{R"(--([a-z0-9-]+): #([0-9a-f]{6});)"};
  for (auto each = std::sregex_iterator{block.begin(), block.end(), pattern}; each != std::sregex_iterator{}; ++each)
    result[(*each)[1]] = (*each)[2];
  return result;
}

/// As WCAG 2.1 defines it.
double luminance(const std::string& colour) {
  constexpr std::array<double, 3> weights{0.2126, 0.7152, 0.0722};
  auto result = 0.0;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto part = std::stoi(colour.substr(2 * i, 2), nullptr, 16) / 255.0;
    result += weights[i] * (part <= 0.03928 ? part / 12.92 : std::pow((part + 0.055) / 1.055, 2.4));
  }
  return result;
}

double contrast(const std::string& a, const std::string& b) {
  const auto [dark, light] = std::minmax({luminance(a), luminance(b)});
  return (light + 0.05) / (dark + 0.05);
}

request_facts get(std::string_view host) {
  request_facts result;
  result.method = "GET";
  result.host = host;
  return result;
}

} // namespace

TEST_CASE("texts and curves have the contrast of WCAG AA, in light and dark") {
  const auto& page = page_template();
  for (const auto& mark : std::vector<std::string>{":root {", "@media (prefers-color-scheme: dark)"}) {
    auto colours = colours_after(page, mark);
    CAPTURE(mark);
    REQUIRE(colours.size() == 17);
    for (const auto* text : {"text", "quiet", "link", "good", "bad", "warn"})
      for (const auto* ground : {"page", "card"}) {
        CAPTURE(text);
        CHECK(contrast(colours[text], colours[ground]) >= 4.5);
      }
    CHECK(contrast(colours["text"], colours["bad-card"]) >= 4.5);
    CHECK(contrast(colours["bad"], colours["bad-card"]) >= 4.5);
    CHECK(contrast(colours["quiet"], colours["bad-card"]) >= 4.5);
    // Parts of pictures, and what shows the focus.
    for (const auto* part : {"c0", "c1", "c2", "c3", "c4", "c5", "focus"}) {
      CAPTURE(part);
      CHECK(contrast(colours[part], colours["card"]) >= 3.0);
    }
  }
}

TEST_CASE("the page has nothing from elsewhere, and sets no markup from data") {
  const auto& page = page_template();
  for (const auto* word : {"http://", "https://", "innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(",
                           "new Function", "@import", "url("})
    CHECK((page.find(word) == std::string::npos || std::string{word} == "http://"));
  // The namespace of SVG is a name, not an address.
  auto found = 0;
  for (auto at = page.find("http://"); at != std::string::npos; at = page.find("http://", at + 1)) {
    CHECK(page.substr(at).starts_with("http://www.w3.org/2000/svg"));
    ++found;
  }
  CHECK(found == 1);
}

TEST_CASE("only names of this machine and addresses are answered") {
  const auto guard = request_guard{"127.0.0.1", 8265, ""};
  for (const auto* host : {"127.0.0.1:8265", "localhost:8265", "LOCALHOST", "[::1]:8265", "10.0.0.7"})
    CHECK(guard.judge(get(host)) == verdict::allowed);
  for (const auto* host : {"", "evil.example", "evil.example:8265", "localhost.evil.example", "127.0.0.1.evil.example",
                           "[evil]", "localhost:8265:1", "1"})
    CHECK(guard.judge(get(host)) == verdict::wrong_host);
  CHECK(request_guard{"gpu-7", 1, ""}.judge(get("gpu-7:1")) == verdict::allowed);
}

TEST_CASE("what changes something comes from the page itself, or from a script that says so") {
  const auto guard = request_guard{"127.0.0.1", 8265, ""};
  auto facts = get("127.0.0.1:8265");
  facts.method = "POST";
  CHECK(guard.judge(facts) == verdict::cross_site);
  facts.own_header = "1";
  CHECK(guard.judge(facts) == verdict::allowed);
  facts.origin = "http://127.0.0.1:8265";
  facts.fetch_site = "same-origin";
  CHECK(guard.judge(facts) == verdict::allowed);
  for (const auto* origin : {"null", "http://127.0.0.1:8266", "http://evil.example", "https://127.0.0.1"}) {
    facts.origin = origin;
    CHECK(guard.judge(facts) == verdict::cross_site);
  }
  facts.origin = {};
  for (const auto* site : {"cross-site", "same-site", "none"}) {
    facts.fetch_site = site;
    CHECK(guard.judge(facts) == verdict::cross_site);
  }
  facts.method = "DELETE";
  CHECK(guard.judge(facts) == verdict::cross_site);
}

TEST_CASE("a token comes in its header or cookie, whole") {
  const auto guard = request_guard{"127.0.0.1", 8265, "0123456789abcdef"};
  auto facts = get("127.0.0.1");
  CHECK(guard.judge(facts) == verdict::no_token);
  for (const auto* given : {"Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "0123456789abcdef",
                            "Basic 0123456789abcdef"}) {
    facts.authorization = given;
    CHECK(guard.judge(facts) == verdict::no_token);
  }
  facts.authorization = "Bearer 0123456789abcdef";
  CHECK(guard.judge(facts) == verdict::allowed);
  facts.authorization = {};
  facts.cookie = "a=1; troupe-dashboard-8265=0123456789abcdef; b=2";
  CHECK(guard.judge(facts) == verdict::allowed);
  facts.cookie = "xtroupe-dashboard-8265=0123456789abcdef;troupe-dashboard-8266=0123456789abcdef;;=";
  CHECK(guard.judge(facts) == verdict::no_token);
}

TEST_CASE("the owner of the other end of a connection is read from the system's table") {
  auto table = std::istringstream{
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
      "   0: 0100007F:2049 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 1 1 0 100 0 0 10 0\n"
      "   1: 0100007F:2049 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1001        0 2 1 0 20 4 30 10 -1\n"
      "   2: 0100007F:C350 0100007F:2049 01 00000000:00000000 00:00000000 00000000  1002        0 3 1 0 20 4 30 10 -1\n"
      "   3: 0100000A:C351 0100007F:2049 01 00000000:00000000 00:00000000 00000000  1003        0 3 1 0 20 4 30 10 -1\n"
      "garbage\n"};
  CHECK(find_loopback_owner(table, 0xC350, 0x2049) == 1002);
  table.clear();
  table.seekg(0);
  CHECK_FALSE(find_loopback_owner(table, 0xC351, 0x2049));
}
