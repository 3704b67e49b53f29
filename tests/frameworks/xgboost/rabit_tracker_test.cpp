#include "rabit_links.hpp"
#include "rabit_tracker.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <arpa/inet.h>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <netinet/in.h>
#include <optional>
#include <set>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

using namespace troupe;
using namespace troupe::xgboost;
using namespace std::chrono_literals;

TEST_CASE("links are symmetric, the tree reaches all from rank 0, and the ring follows the ranks") {
  for (std::int32_t n : std::vector<std::int32_t>{1, 2, 3, 4, 5, 8, 17}) {
    CAPTURE(n);
    for (std::int32_t rank = 0; rank < n; ++rank) {
      auto mine = links_of(rank, n);
      CHECK((mine.parent == -1) == (rank == 0));
      CHECK(mine.parent < rank);
      if (n > 1) {
        CHECK(mine.next == (rank + 1) % n);
        CHECK((mine.previous + 1) % n == rank);
      } else {
        CHECK(mine.all.empty());
      }
      CHECK(std::set<std::int32_t>(mine.all.begin(), mine.all.end()).size() == mine.all.size());
      for (auto other : mine.all) {
        CHECK(other != rank);
        auto theirs = links_of(other, n).all;
        CHECK(std::ranges::find(theirs, rank) != theirs.end());
      }
      for (auto child : mine.tree)
        if (child != mine.parent)
          CHECK(links_of(child, n).parent == rank);
    }
  }
}

namespace {

/// A connection to a tracker, as XGBoost's workers make it.
class visitor {
 public:
  explicit visitor(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto where = sockaddr_in{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&where), sizeof where) == 0);
  }

  void write(std::int32_t value) { (void)::send(socket_.get(), &value, sizeof value, MSG_NOSIGNAL); }
  void write(const std::string& text) {
    write(static_cast<std::int32_t>(text.size()));
    (void)::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }

  void introduce(const std::string& task, std::int32_t magic = 0xff99) {
    write(magic);
    write(-1);
    write(-1);
    write(task);
    write("start");
  }

  /// A word; `nullopt` if the connection is closed.
  std::optional<std::int32_t> read() {
    std::int32_t value = 0;
    return ::recv(socket_.get(), &value, sizeof value, MSG_WAITALL) == sizeof value ? std::optional{value}
                                                                                    : std::nullopt;
  }

 private:
  collectives::unique_fd socket_;
};

} // namespace

TEST_CASE("a tracker assigns ranks by task id, and admits no worker without the secret") {
  auto tracker = value_or_throw(rabit_tracker::start("127.0.0.1", 2, "secret", 60s));
  auto stranger = visitor{tracker->port()};
  stranger.introduce("1-guess");
  auto noise = visitor{tracker->port()};
  noise.write(12345);
  CHECK(!noise.read());
  // In reverse order: ranks follow the task ids.
  auto one = visitor{tracker->port()};
  one.introduce(rabit_tracker::task_id(1, "secret"));
  auto zero = visitor{tracker->port()};
  zero.introduce(rabit_tracker::task_id(0, "secret"));

  CHECK(stranger.read() == 0xff99);
  CHECK(!stranger.read());

  // Rank, parent, size, one tree neighbour, previous and next; no peer to connect to yet, one to wait for.
  for (auto word : {0xff99, 0, -1, 2, 1, 1, 1, 1})
    CHECK(zero.read() == word);
  zero.write(0); // no links yet
  CHECK(zero.read() == 0);
  CHECK(zero.read() == 1);
  zero.write(0); // all of them reached
  zero.write(4711);

  for (auto word : {0xff99, 1, 0, 2, 1, 0, 0, 0})
    CHECK(one.read() == word);
  one.write(0);
  CHECK(one.read() == 1);
  CHECK(one.read() == 0);
  CHECK(one.read() == 9);
  std::int32_t address[2] = {one.read().value_or(0), one.read().value_or(0)};
  CHECK(std::memcmp(address, "127.0.0.", 8) == 0);
  tracker.reset();
}

TEST_CASE("a waiting tracker ends at its deadline, and when it is destroyed") {
  {
    auto tracker = value_or_throw(rabit_tracker::start("127.0.0.1", 2, "secret", 100ms));
    auto zero = visitor{tracker->port()};
    zero.introduce(rabit_tracker::task_id(0, "secret"));
    CHECK(zero.read() == 0xff99);
    CHECK(!zero.read());
    CHECK(tracker->reason().code == errc::timed_out);
    CHECK(tracker->reason().message.find("1 of 2 workers") != std::string::npos);
  }
  auto waiting = value_or_throw(rabit_tracker::start("127.0.0.1", 2, "secret", 1h));
  waiting.reset();
  CHECK(!rabit_tracker::start("no-address", 2, "secret", 1s));
}
