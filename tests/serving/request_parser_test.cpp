#include "decisions/request_parser.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

using namespace troupe::serving;

namespace {

constexpr std::uint64_t most = 1000;

/// What a parser made of some bytes, event by event: "POST /v1/predict", "[body]", "400".
std::vector<std::string> events(std::string_view input, std::size_t part = ~std::size_t{0}) {
  auto parser = request_parser{most};
  std::vector<std::string> result;
  while (!input.empty()) {
    auto now = input.substr(0, part);
    input.remove_prefix(now.size());
    for (;;) {
      const auto event = parser.take(now);
      if (std::holds_alternative<request_parser::need_more>(event))
        break;
      if (const auto* head = std::get_if<request_parser::head>(&event))
        result.push_back(head->fields.method + " " + head->fields.path);
      else if (const auto* body = std::get_if<request_parser::body>(&event))
        result.push_back("[" + body->bytes + "]");
      else if (const auto* refused = std::get_if<request_parser::refusal>(&event)) {
        result.push_back(std::to_string(refused->status));
        return result;
      }
      if (now.empty() && std::holds_alternative<request_parser::body>(event))
        break;
    }
  }
  return result;
}

using list = std::vector<std::string>;

const std::string host = "Host: localhost\r\n";

std::string post(const std::string& fields, const std::string& body) {
  return "POST /p HTTP/1.1\r\n" + host + fields + "\r\n" + body;
}

std::string chunked(const std::string& body) {
  return post("Transfer-Encoding: chunked\r\n", body);
}

request_parser::head head_of(const std::string& request) {
  auto parser = request_parser{most};
  auto input = std::string_view{request};
  return std::get<request_parser::head>(parser.take(input));
}

} // namespace

TEST_CASE("requests are read one after the other, wherever their bytes are divided") {
  const auto input = "GET /a?b=c HTTP/1.1\r\n" + host + "\r\n" + post("Content-Length: 5\r\n", "hello") + "\r\n" +
                     chunked("3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\nX: y\r\n\r\n") +
                     post("Content-Length: 0\r\n", "") + "HEAD / HTTP/1.0\r\n\r\n";
  const list expected{"GET /a",          "[]",      "POST /p", "[hello]", "POST /p",
                      "[abc0123456789]", "POST /p", "[]",      "HEAD /",  "[]"};
  CHECK(events(input) == expected);
  for (std::size_t part = 1; part < 40; ++part)
    CHECK(events(input, part) == expected);
}

TEST_CASE("a head says what the server looks at") {
  const auto head =
      head_of("POST /p HTTP/1.1\r\nHOST:  here:1 \r\nAuthorization:\tBearer a%41b\r\naccept: a\r\nAccept: "
              "b\r\nContent-Length: 7\r\nExpect: 100-Continue\r\nOrigin: null\r\nX: \xff\r\nConnection: "
              "keep-alive, Close\r\n\r\n");
  CHECK(head.fields.host == "here:1");
  CHECK(head.fields.authorization == "Bearer a%41b");
  CHECK(head.fields.accept == "a, b");
  CHECK(head.fields.origin == "null");
  CHECK(head.body_bytes == 7);
  CHECK(head.expects_permission);
  CHECK(head.is_last);
  CHECK_FALSE(head_of("GET / HTTP/1.1\r\n" + host + "\r\n").is_last);
  CHECK(head_of("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").is_last);
}

TEST_CASE("what two readers could understand differently is refused") {
  const auto get = [](const std::string& fields) { return events("GET / HTTP/1.1\r\n" + host + fields + "\r\n"); };
  for (const auto* fields : {"Content-Length : 5\r\n",
                             "A: b\n",
                             " A: b\r\n",
                             "A: b\r\n c\r\n",
                             "A\r\n",
                             ": b\r\n",
                             "A b: c\r\n",
                             "A: b\rc\r\n",
                             "A: \x01\r\n",
                             "A: \x7f\r\n",
                             "Host: other\r\n",
                             "A\x80: b\r\n",
                             "Content-Length: 1\r\nContent-Length: 1\r\n",
                             "Content-Length: 1, 1\r\n",
                             "Content-Length: +1\r\n",
                             "Content-Length: -1\r\n",
                             "Content-Length: 0x1\r\n",
                             "Content-Length: 1 1\r\n",
                             "Content-Length:\r\n",
                             "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
                             "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"})
    CHECK_MESSAGE(get(fields) == list{"400"}, fields);
  CHECK(get(std::string{"A: \0\r\n", 6}) == list{"400"});
  CHECK(get("Transfer-Encoding: gzip, chunked\r\n") == list{"501"});
  CHECK(get("Transfer-Encoding: \r\n") == list{"501"});
  CHECK(get("Expect: more\r\n") == list{"417"});
  CHECK(get("Content-Length: 99999999999999999999999\r\n") == list{"413"});
  CHECK(get("Content-Length: 1001\r\n") == list{"413"});
  CHECK(events("POST / HTTP/1.1\r\n" + host + "\r\n") == list{"411"});
  CHECK(events("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n") == list{"400"});
  CHECK(events("GET / HTTP/1.1\r\n\r\n") == list{"400"});
  CHECK(events("GET / HTTP/1.1\n") == list{"400"});
  CHECK(events("GET / HTTP/2.0\r\n") == list{"505"});
  for (const auto* line : {"GET /\r\n", "GET  / HTTP/1.1\r\n", "GET /a b HTTP/1.1\r\n", " GET / HTTP/1.1\r\n",
                           "G\tT / HTTP/1.1\r\n", "GET http://a/ HTTP/1.1\r\n", "GET * HTTP/1.1\r\n",
                           "GET /\t HTTP/1.1\r\n", "GET /\xff HTTP/1.1\r\n", "hello\r\n", "\r\n\r\n", "\x16\x03\x01"})
    CHECK_MESSAGE(events(line) == list{"400"}, line);
  CHECK(events("GET / HTTP/1.1 \r\n") == list{"505"});
}

TEST_CASE("a chunk ends where its size says, or the request is refused") {
  const list refused{"POST /p", "400"};
  for (const auto* body :
       {"3\r\nabcd\r\n0\r\n\r\n", "3\r\nabcGET / HTTP/1.1\r\n", "3\r\nab\r\n0\r\n\r\n", "3\nabc\r\n", "-5\r\n",
        "0x10\r\n", "+3\r\n", " 3\r\n", "3 \r\n", "\r\n", ";x\r\n", "g\r\n", "00000000000000003\r\n",
        "3\r\nabc\n0\r\n\r\n", "3\r\nabc\r\r\n", "0\r\nno header\r\n\r\n", "0\r\n: x\r\n\r\n"})
    CHECK_MESSAGE(events(chunked(body)) == refused, body);
  CHECK(events(chunked("FFFFFFFFFFFFFFFF\r\n")) == list{"POST /p", "413"});
  CHECK(events(chunked("1f4\r\n" + std::string(500, 'x') + "\r\n1f5\r\n")) == list{"POST /p", "413"});
  CHECK(events(chunked("1;" + std::string(300, 'x'))) == list{"POST /p", "400"});
}

TEST_CASE("lines are bounded, with and without an end") {
  CHECK(events("GET /" + std::string(9'000, 'x')) == list{"414"});
  CHECK(events("GET / HTTP/1.1\r\n" + host + "X: " + std::string(33'000, 'x')) == list{"431"});
  std::string many;
  for (auto i = 0; i < 9'000; ++i)
    many += "a:b\r\n";
  CHECK(events("GET / HTTP/1.1\r\n" + host + many) == list{"431"});
  CHECK(events(chunked("0\r\n" + many)) == list{"POST /p", "431"});
}

TEST_CASE("any bytes, however divided, are read alike") {
  auto random = std::mt19937{5};
  const auto valid = "GET /a HTTP/1.1\r\n" + host + "\r\n" + post("Content-Length: 5\r\n", "hello") +
                     chunked("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  for (auto i = 0; i < 20'000; ++i) {
    auto input = valid;
    for (auto changes = random() % 4; changes > 0; --changes) {
      const auto at = random() % input.size();
      switch (random() % 3) {
      case 0:
        input[at] = "\r\n: 0aG\x01"[random() % 8];
        break;
      case 1:
        input.erase(at, random() % 8);
        break;
      default:
        input.insert(at, input.substr(random() % input.size(), random() % 8));
      }
    }
    REQUIRE(events(input) == events(input, 1 + random() % 20));
  }
}
