#include "net/parts/part_stream.hpp"

#include <troupe/collectives/listener.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/part_writer.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <doctest/doctest.h>
#include <processes.hpp>
#include <scratch_directory.hpp>

#include <arpa/inet.h>
#include <atomic>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;
using collectives::unique_fd;
using testing::becomes_true;

const auto this_run = run_id{"0123456789abcdef0123456789abcdef"};
const auto secret = std::string(64, 'a');

/// The tensors that all ranks share.
struct sample {
  std::vector<float> weights = std::vector<float>(700'001);
  std::vector<double> momentum = std::vector<double>(30'003);
  std::vector<std::int64_t> none;

  sample() {
    std::iota(weights.begin(), weights.end(), 0.5f);
    std::iota(momentum.begin(), momentum.end(), -7.0);
  }

  void track(tracked_state& state) {
    state.track("weights", weights);
    state.track("none", none);
    state.track("momentum", momentum);
    state.values()["note"] = 17;
  }
};

/// A copy of a rank's share.
struct copy {
  copy(const tracked_state& state, std::uint32_t rank, std::uint32_t world_size) {
    head.run = this_run;
    head.generation = {1};
    head.step = {5};
    head.attempt = 1;
    head.rank = {rank};
    head.world_size = world_size;
    head.tensors = state.specs();
    head.values_json = state.values().dump();
    plan = serialization::plan_chunks(head.tensors, world_size);
    for (const auto& chunk : plan.chunks_of(rank)) {
      auto* first = state.tensors()[chunk.tensor].data + chunk.tensor_offset_bytes;
      bytes.insert(bytes.end(), first, first + chunk.length_bytes);
    }
  }

  [[nodiscard]] staged_part staged() const { return {head, plan, bytes}; }

  checkpoint_part head;
  serialization::chunk_plan plan;
  std::vector<std::byte> bytes;
};

/// A driver's directory and its receiver.
class place {
 public:
  explicit place(bool encrypted = true) : is_encrypted(encrypted) {
    fs::create_directory(checkpoints());
    receiver = value_or_throw(open_part_receiver({this_run, secret, is_encrypted}, checkpoints(), std::nullopt));
  }

  [[nodiscard]] fs::path checkpoints() const { return scratch_.path() / "checkpoints"; }
  [[nodiscard]] endpoint where() const {
    return value_or_throw(parse_endpoint(value_or_throw(receiver->address_towards("127.0.0.1"))));
  }

  [[nodiscard]] std::shared_ptr<part_stream> stream(std::uint32_t worker, const std::string& known = secret) const {
    return std::make_shared<part_stream>(part_stream_secret{this_run, known, is_encrypted}, worker_id{worker}, where());
  }

  /// Makes a checkpoint of the received parts.
  fs::path commit(const tracked_state& state, const std::vector<serialization::part_report>& reports) const {
    serialization::manifest content;
    content.run = this_run;
    content.step = {5};
    content.generation = {1};
    content.world_size = static_cast<std::uint32_t>(reports.size());
    content.values_json = state.values().dump();
    auto plan = serialization::plan_chunks(state.specs(), content.world_size);
    value_or_throw(serialization::add_parts(content, state.specs(), plan, reports));
    return value_or_throw(serialization::commit_checkpoint(
        checkpoints(), checkpoints() / serialization::temporary_name({content.run, {5}, {1}, 1}), content));
  }

  [[nodiscard]] bool is_empty() const { return fs::is_empty(checkpoints()); }

  bool is_encrypted;
  std::unique_ptr<actors::part_receiver> receiver;

 private:
  testing::scratch_directory scratch_;
};

/// Forwards data between two ends, and flips a bit of the byte at `position` from the client.
class spoiling_proxy {
 public:
  spoiling_proxy(endpoint target, std::uint64_t position) : target_(std::move(target)), position_(position) {
    listener_ = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    auto address = sockaddr_in{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_.get(), 1) == 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread{[this] { run(); }};
  }
  ~spoiling_proxy() { thread_.join(); }

  [[nodiscard]] endpoint where() const { return {"127.0.0.1", port_}; }

 private:
  void run() {
    auto client = unique_fd{::accept(listener_.get(), nullptr, nullptr)};
    auto server = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    auto address = sockaddr_in{};
    address.sin_family = AF_INET;
    address.sin_port = htons(target_.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    for (std::uint64_t seen = 0;;) {
      pollfd both[] = {{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
      ::poll(both, 2, -1);
      for (auto i : {0, 1}) {
        if (both[i].revents == 0)
          continue;
        char bytes[65536];
        auto count = ::recv(both[i].fd, bytes, sizeof(bytes), 0);
        if (count <= 0)
          return;
        if (i == 0) {
          if (position_ >= seen && position_ < seen + static_cast<std::uint64_t>(count))
            bytes[position_ - seen] ^= 4;
          seen += static_cast<std::uint64_t>(count);
        }
        for (decltype(count) sent = 0; sent < count;)
          sent += ::send(both[1 - i].fd, bytes + sent, static_cast<std::size_t>(count - sent), MSG_NOSIGNAL);
      }
    }
  }

  endpoint target_;
  std::uint64_t position_;
  unique_fd listener_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

} // namespace

TEST_CASE("streamed parts make the same checkpoint as written ones and can be read back on any number of workers") {
  for (auto encrypted : {true, false})
    for (std::uint32_t world_size : {1u, 3u, 4u}) {
      CAPTURE(encrypted);
      CAPTURE(world_size);
      place there{encrypted};
      sample values;
      tracked_state state;
      values.track(state);
      std::vector<serialization::part_report> reports(world_size);
      std::vector<std::thread> ranks;
      for (std::uint32_t rank = 0; rank < world_size; ++rank)
        ranks.emplace_back([&, rank] {
          auto part = copy{state, rank, world_size};
          auto report = there.stream(rank)->put(part.staged(), {});
          CHECK_MESSAGE(report, report.error().message);
          reports[rank] = report.value_or(serialization::part_report{});
        });
      for (auto& each : ranks)
        each.join();
      auto path = there.commit(state, reports);
      auto stored = value_or_throw(serialization::checkpoint::open(path));
      CHECK(stored.verify());
      CHECK(value_or_throw(serialization::state_sha256(stored)) == state.sha256());

      there.receiver->lend(path);
      auto source = there.stream(9)->open_source();
      REQUIRE_MESSAGE(source, source.error().message);
      CHECK((*source)->content() == stored.content());
      sample restored;
      std::ranges::fill(restored.weights, 0.0f);
      std::ranges::fill(restored.momentum, 0.0);
      tracked_state again;
      again.restore_from(*source);
      restored.track(again);
      again.check_restored();
      CHECK(again.sha256() == state.sha256());
    }
}

TEST_CASE("several parts use one stream, and a rejected one does not affect the next") {
  place there;
  sample values;
  tracked_state state;
  values.track(state);
  auto stream = there.stream(0);
  auto part = copy{state, 0, 2};
  REQUIRE(stream->put(part.staged(), {}));
  // The part exists already.
  auto twice = stream->put(part.staged(), {});
  REQUIRE_FALSE(twice);
  CHECK(twice.error().code == errc::already_exists);
  part.head.step = {6};
  CHECK(stream->put(part.staged(), {}));
}

TEST_CASE("a worker that is lost in mid-stream leaves nothing behind") {
  place there;
  sample values;
  tracked_state state;
  values.track(state);
  auto part = copy{state, 0, 1};
  // Announces the bytes but sends only half of them.
  part.plan = serialization::plan_chunks(part.head.tensors, 2);
  std::stop_source stop;
  std::atomic<bool> done{false};
  auto thread = std::thread{[&] {
    auto result = there.stream(0)->put(part.staged(), stop.get_token());
    CHECK_FALSE(result);
    done = true;
  }};
  CHECK(becomes_true([&] { return done || !there.is_empty(); }));
  stop.request_stop();
  thread.join();
  CHECK(becomes_true([&] { return there.is_empty(); }));
}

TEST_CASE("a peer without the run's secret, of another run, or without encryption cannot write anything") {
  for (auto encrypted : {true, false}) {
    CAPTURE(encrypted);
    place there{encrypted};
    sample values;
    tracked_state state;
    values.track(state);
    auto part = copy{state, 0, 1};
    auto stranger = there.stream(0, std::string(64, 'b'))->put(part.staged(), {});
    REQUIRE_FALSE(stranger);
    CHECK(stranger.error().code == (encrypted ? errc::not_authenticated : errc::wrong_secret));
    auto other_run = part_stream{{run_id{"another"}, secret, encrypted}, worker_id{0}, there.where()};
    CHECK_FALSE(other_run.put(part.staged(), {}));
    auto other_mode = part_stream{{this_run, secret, !encrypted}, worker_id{0}, there.where()};
    CHECK_FALSE(other_mode.put(part.staged(), {}));
    CHECK(there.is_empty());
  }
}

TEST_CASE("a byte damaged in transit is reported, in either direction") {
  place there{false};
  sample values;
  tracked_state state;
  values.track(state);
  auto part = copy{state, 0, 1};
  {
    auto proxy = spoiling_proxy{there.where(), 1'000'000};
    auto stream = part_stream{{this_run, secret, false}, worker_id{0}, proxy.where()};
    auto result = stream.put(part.staged(), {});
    REQUIRE_FALSE(result);
    CHECK(result.error().code == errc::damaged);
  }
  CHECK(becomes_true([&] { return there.is_empty(); }));

  auto path = there.commit(state, {value_or_throw(there.stream(0)->put(part.staged(), {}))});
  there.receiver->lend(path);
  auto source = value_or_throw(there.stream(1)->open_source());
  auto file = path / serialization::part_file_name(0);
  auto bytes = testing::read_file(file);
  bytes[5000] = static_cast<char>(bytes[5000] ^ 1);
  testing::write_file(file, bytes);
  sample restored;
  tracked_state again;
  again.restore_from(source);
  auto code = errc::none;
  try {
    restored.track(again);
  } catch (const exception& x) {
    code = x.code();
  }
  CHECK(code == errc::damaged);
}

TEST_CASE("a checkpoint that is not lent cannot be read, nor can other files") {
  place there;
  CHECK(there.stream(0)->open_source().error().code == errc::not_found);
  sample values;
  tracked_state state;
  values.track(state);
  auto part = copy{state, 0, 1};
  auto path = there.commit(state, {value_or_throw(there.stream(0)->put(part.staged(), {}))});
  there.receiver->lend(path);
  std::vector<std::byte> bytes(10);
  CHECK(there.stream(0)->get("part-0000.bin", 0, bytes));
  CHECK(there.stream(0)->get("../../keys/loopback/key.pem", 0, bytes).error().code == errc::not_found);
  CHECK(there.stream(0)->get("part-0000.bin", 1u << 30, bytes).error().code == errc::damaged);
}

TEST_CASE("a range of ports that is used up is named, with the number of ports that a host needs") {
  testing::scratch_directory scratch;
  const auto own = value_or_throw(collectives::tcp::resolve_own_host("127.0.0.1"));
  const auto other = value_or_throw(collectives::tcp::listen_at(own, std::nullopt));
  const auto ports = port_range{other.at.port(), other.at.port()};
  const auto receiver = value_or_throw(open_part_receiver({this_run, secret, false}, scratch.path(), ports));
  const auto address = receiver->address_towards("127.0.0.1");
  REQUIRE(!address);
  CHECK(address.error().code == errc::unreachable);
  CHECK(address.error().message.find(to_string(ports)) != std::string::npos);
  CHECK(address.error().message.find("two for each of its workers") != std::string::npos);
}

} // namespace troupe::runtime
