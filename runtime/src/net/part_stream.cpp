#include "net/part_stream.hpp"

#include <troupe/actors/decisions/join_handshake.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/part_writer.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <list>
#include <mutex>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using collectives::unique_fd;
using nlohmann::json;

constexpr auto connect_limit = 10s;
/// What moves between looks at the stop token and the device.
constexpr std::size_t piece_bytes = std::size_t{1} << 20;
/// Before a peer has shown that it knows the secret, and after.
constexpr std::size_t greeting_limit_bytes = 4096;
constexpr std::size_t text_limit_bytes = std::size_t{64} << 20;

json describe(const error& reason) {
  return {{"code", static_cast<int>(reason.code)}, {"message", reason.message}};
}

/// The error that a text says, if it says one.
std::optional<error> error_in(const json& text) {
  if (!text.contains("code"))
    return std::nullopt;
  return error{static_cast<errc>(text.value("code", static_cast<int>(errc::internal))), text.value("message", "")};
}

expected<json> read_answer(secure_stream& stream) {
  auto text = stream.read_text(text_limit_bytes);
  if (!text)
    return text;
  if (auto reason = error_in(*text))
    return fail(std::move(*reason));
  return text;
}

json describe(const serialization::part_report& report) {
  auto chunks = json::array();
  for (const auto& each : report.chunks)
    chunks.push_back({each.tensor, each.chunk, each.xxh3});
  return {{"part", report.part}, {"file", report.file}, {"size", report.size_bytes}, {"chunks", std::move(chunks)}};
}

serialization::part_report parse_report(const json& text) {
  serialization::part_report result{text.at("part"), text.at("file"), text.at("size"), {}};
  for (const auto& each : text.at("chunks"))
    result.chunks.push_back({each.at(0), each.at(1), each.at(2)});
  return result;
}

json describe(const std::vector<tensor_spec>& tensors) {
  auto result = json::array();
  for (const auto& each : tensors)
    result.push_back({each.name, to_string(each.type), each.shape});
  return result;
}

std::vector<tensor_spec> parse_tensors(const json& text) {
  std::vector<tensor_spec> result;
  for (const auto& each : text) {
    auto type = parse_dtype(each.at(1).get<std::string>());
    if (!type)
      throw exception{errc::invalid_argument, "no such dtype: " + each.at(1).get<std::string>()};
    result.push_back({each.at(0), *type, each.at(2)});
  }
  return result;
}

// -- the driver's end -------------------------------------------------------------------------------------------------

/// One connection of a worker's.
class part_session {
 public:
  part_session(secure_stream stream, const part_stream_secret& secret, const std::filesystem::path& checkpoints,
               std::function<std::shared_ptr<const serialization::checkpoint>()> lent)
      : stream_(std::move(stream)), secret_(secret), checkpoints_(checkpoints), lent_(std::move(lent)) {}

  /// Until the worker goes, or says what cannot be meant.
  void run() {
    if (!greet())
      return;
    for (;;) {
      auto request = stream_.read_text(text_limit_bytes);
      if (!request)
        return;
      auto done = expected<void>{};
      try {
        done = answer(*request);
      } catch (const std::exception& x) {
        done = fail(errc::invalid_argument, std::string{"a request that cannot be read: "} + x.what());
      }
      if (!done) {
        (void)stream_.write_text(describe(done.error()));
        return;
      }
    }
  }

 private:
  bool greet() {
    auto hello = stream_.read_text(greeting_limit_bytes);
    if (!hello)
      return false;
    join_request request{run_id{hello->value("run", "")}, worker_id{hello->value("worker", 0u)},
                         hello->value("nonce", "")};
    if (request.run != secret_.run)
      return false;
    auto handshake = actors::join_handshake{secret_.secret};
    auto challenge = handshake.challenge(request, serialization::random_hex(16));
    if (!stream_.write_text({{"nonce", challenge.nonce}, {"proof", challenge.proof}}))
      return false;
    auto proof = stream_.read_text(greeting_limit_bytes);
    return proof && handshake.verify({request.run, request.worker, proof->value("proof", "")}).has_value();
  }

  expected<void> answer(const json& request) {
    if (request.contains("put"))
      return take(request.at("put"));
    if (request.contains("get"))
      return give(request.at("get"));
    return fail(errc::invalid_argument, "neither put nor get");
  }

  expected<void> take(const json& head) {
    auto rank = head.at("rank").get<std::uint32_t>();
    auto world_size = head.at("world_size").get<std::uint32_t>();
    if (world_size == 0 || rank >= world_size)
      return fail(errc::invalid_argument, "rank " + std::to_string(rank) + " of " + std::to_string(world_size));
    auto plan = serialization::plan_chunks(parse_tensors(head.at("tensors")), world_size);
    auto directory =
        checkpoints_ / serialization::temporary_name(step_id{head.at("step")}, generation_id{head.at("generation")},
                                                     head.at("attempt"));
    auto writer = serialization::part_writer::create(directory, rank, plan);
    if (!writer)
      return fail(std::move(writer.error()));
    auto report = receive(*writer);
    if (!report) {
      // Nobody will ask for it.
      auto ignored = std::error_code{};
      std::filesystem::remove(directory / serialization::part_file_name(rank), ignored);
      std::filesystem::remove(directory, ignored);
      return fail(std::move(report.error()));
    }
    return stream_.write_text({{"report", describe(*report)}});
  }

  expected<serialization::part_report> receive(serialization::part_writer& writer) {
    if (auto told = stream_.write_text(json::object()); !told)
      return fail(std::move(told.error()));
    buffer_.resize(piece_bytes);
    auto written = expected<void>{};
    for (auto left = writer.missing_bytes(); left > 0;) {
      auto piece = std::span{buffer_}.first(std::min<std::uint64_t>(left, buffer_.size()));
      if (auto got = stream_.read(piece); !got)
        return fail(std::move(got.error()));
      left -= piece.size();
      // The worker hears of it when it has sent all.
      if (written)
        written = writer.write(piece);
    }
    auto sums = stream_.read_text(text_limit_bytes);
    if (!sums)
      return fail(std::move(sums.error()));
    if (!written)
      return fail(std::move(written.error()));
    auto report = writer.finish();
    if (!report)
      return report;
    const auto& theirs = sums->at("chunks");
    for (std::size_t i = 0; i < report->chunks.size(); ++i)
      if (i >= theirs.size() || theirs[i].get<std::uint64_t>() != report->chunks[i].xxh3)
        return fail(errc::damaged, "chunk " + std::to_string(i) + " of " + report->file +
                                       " has other bytes than were sent: it was damaged on the way");
    return report;
  }

  expected<void> give(const json& head) {
    auto source = lent_();
    if (!source)
      return fail(errc::not_found, "the driver lends no checkpoint");
    auto name = head.at("file").get<std::string>();
    const auto& parts = source->content().parts;
    auto is_part = std::ranges::any_of(parts, [&](const auto& x) { return x.name == name; });
    if (!is_part && name != serialization::manifest_file_name)
      return fail(errc::not_found, "the checkpoint has no file " + name);
    auto path = source->directory() / name;
    auto file = unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    struct stat info {};
    if (!file || ::fstat(file.get(), &info) != 0)
      return fail(errc::io_error, "opening " + path.string() + ": " + std::strerror(errno));
    auto offset = head.at("offset").get<std::uint64_t>();
    auto size = head.at("size").get<std::uint64_t>();
    auto there = static_cast<std::uint64_t>(info.st_size);
    if (size == 0 && offset == 0)
      size = there;
    if (offset > there || size > there - offset)
      return fail(errc::damaged, path.string() + " has " + std::to_string(there) + " bytes, too few");
    if (auto told = stream_.write_text({{"size", size}}); !told)
      return told;
    buffer_.resize(piece_bytes);
    while (size > 0) {
      auto piece = std::span{buffer_}.first(std::min<std::uint64_t>(size, buffer_.size()));
      auto taken = ::pread(file.get(), piece.data(), piece.size(), static_cast<off_t>(offset));
      if (taken <= 0)
        // The worker misses the rest, and takes the end of the connection for what it is.
        return fail(errc::io_error, "reading " + path.string() + ": " + std::strerror(errno));
      if (auto sent = stream_.write(piece.first(static_cast<std::size_t>(taken))); !sent)
        return sent;
      offset += static_cast<std::uint64_t>(taken);
      size -= static_cast<std::uint64_t>(taken);
    }
    return {};
  }

  secure_stream stream_;
  const part_stream_secret& secret_;
  const std::filesystem::path& checkpoints_;
  std::function<std::shared_ptr<const serialization::checkpoint>()> lent_;
  std::vector<std::byte> buffer_;
};

std::uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

/// The socket of a server on a port of the system's choice: on all addresses, of both families where there are two.
unique_fd listen_anywhere(bool loopback) {
  if (!loopback) {
    auto result = unique_fd{::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    auto off = 0;
    auto address = sockaddr_in6{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    if (result && ::setsockopt(result.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0 &&
        ::bind(result.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
        ::listen(result.get(), SOMAXCONN) == 0)
      return result;
  }
  auto result = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  auto address = sockaddr_in{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  if (result && ::bind(result.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      ::listen(result.get(), SOMAXCONN) == 0)
    return result;
  return {};
}

/// The address of this machine on the way to `host`; nothing is sent.
std::string address_on_the_way_to(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &list) != 0)
    return {};
  auto addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>{list, ::freeaddrinfo};
  for (auto* each = list; each != nullptr; each = each->ai_next) {
    auto socket = unique_fd{::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0)};
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    char text[NI_MAXHOST] = {};
    if (socket && ::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
      return text;
  }
  return {};
}

class receiver : public actors::part_receiver {
 public:
  receiver(part_stream_secret secret, std::shared_ptr<const tls_context> context, std::filesystem::path checkpoints,
           unique_fd socket)
      : secret_(std::move(secret)),
        context_(std::move(context)),
        checkpoints_(std::move(checkpoints)),
        socket_(std::move(socket)),
        port_(port_of(socket_.get())) {
    acceptor_ = std::thread{[this] { accept(); }};
  }

  ~receiver() override {
    stop_.request_stop();
    acceptor_.join();
    for (auto& each : sessions_)
      each.thread.join();
  }

  std::string address_towards(const std::string& host) const override {
    auto mine = address_on_the_way_to(host);
    return mine.empty() ? std::string{} : to_string(endpoint{mine, port_});
  }

  void lend(const std::filesystem::path& checkpoint) override {
    auto opened = serialization::checkpoint::open(checkpoint);
    auto lock = std::lock_guard{mutex_};
    lent_ = opened ? std::make_shared<const serialization::checkpoint>(std::move(*opened)) : nullptr;
  }

 private:
  struct session {
    std::thread thread;
    std::atomic<bool> over{false};
  };

  void accept() {
    while (!stop_.stop_requested()) {
      auto what = pollfd{socket_.get(), POLLIN, 0};
      auto ready = ::poll(&what, 1, 100) > 0;
      std::erase_if(sessions_, [](session& x) {
        // Read once: it may become true in between.
        const auto over = x.over.load();
        if (over)
          x.thread.join();
        return over;
      });
      if (!ready)
        continue;
      auto peer = unique_fd{::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
      if (!peer) {
        // Out of descriptors: it stays ready.
        std::this_thread::sleep_for(std::chrono::milliseconds{100});
        continue;
      }
      auto& next = sessions_.emplace_back();
      try {
        next.thread = std::thread{[this, &next, peer = std::move(peer)]() mutable {
          serve(std::move(peer));
          next.over = true;
        }};
      } catch (const std::system_error&) {
        // No thread for it: the worker finds its connection closed, and tries again.
        sessions_.pop_back();
      }
    }
  }

  /// Nothing that a peer says ends the driver.
  void serve(unique_fd peer) {
    try {
      serve_or_throw(std::move(peer));
    } catch (const std::exception&) {
      // Its connection ends with this.
    }
  }

  void serve_or_throw(unique_fd peer) {
    // As the threads of workers that write: training goes first.
    ::setpriority(PRIO_PROCESS, 0, 10);
    auto stream = secure_stream::accept(std::move(peer), context_, connect_limit, stop_.get_token());
    if (!stream)
      return;
    part_session{std::move(*stream), secret_, checkpoints_,
                 [this] {
                   auto lock = std::lock_guard{mutex_};
                   return lent_;
                 }}
        .run();
  }

  part_stream_secret secret_;
  std::shared_ptr<const tls_context> context_;
  std::filesystem::path checkpoints_;
  unique_fd socket_;
  std::uint16_t port_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::shared_ptr<const serialization::checkpoint> lent_;
  /// The acceptor's, until it has ended.
  std::list<session> sessions_;
  std::thread acceptor_;
};

expected<std::shared_ptr<const tls_context>> context_of(const part_stream_secret& secret) {
  if (!secret.keys)
    return nullptr;
  return tls_context::make(*secret.keys);
}

// -- a worker's end ---------------------------------------------------------------------------------------------------

class streamed_state : public state_source {
 public:
  streamed_state(std::shared_ptr<part_stream> stream, serialization::manifest content, std::string name)
      : stream_(std::move(stream)), content_(std::move(content)), name_(std::move(name)) {}

  const serialization::manifest& content() const override { return content_; }
  std::string name() const override { return name_; }

  expected<void> read_tensor(std::size_t index, std::span<std::byte> target) const override {
    const auto& tensor = content_.tensors.at(index);
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      const auto& place = tensor.chunks[i];
      const auto& file = content_.parts.at(place.part).name;
      auto piece = target.first(place.length_bytes);
      if (auto got = stream_->get(file, place.offset_bytes, piece); !got)
        return got;
      if (serialization::xxh3(piece) != place.xxh3)
        return fail(errc::damaged, "tensor \"" + tensor.spec.name + "\", chunk " + std::to_string(i) + " of " + name_ +
                                       " (" + file +
                                       ") has not the bytes that were written: damaged there or on the "
                                       "way");
      target = target.subspan(place.length_bytes);
    }
    return {};
  }

 private:
  std::shared_ptr<part_stream> stream_;
  serialization::manifest content_;
  std::string name_;
};

} // namespace

expected<std::unique_ptr<actors::part_receiver>> open_part_receiver(part_stream_secret secret,
                                                                    std::filesystem::path checkpoints, bool loopback) {
  auto context = context_of(secret);
  if (!context)
    return fail(std::move(context.error()));
  auto socket = listen_anywhere(loopback);
  if (!socket)
    return fail(errc::unreachable, std::string{"no port to take parts of checkpoints at: "} + std::strerror(errno));
  return std::make_unique<receiver>(std::move(secret), std::move(*context), std::move(checkpoints), std::move(socket));
}

part_stream::part_stream(part_stream_secret secret, worker_id worker, endpoint where)
    : secret_(std::move(secret)), worker_(worker), where_(std::move(where)) {}

expected<void> part_stream::connect(const std::stop_token& stop) {
  if (stream_) {
    stream_->stop_with(stop);
    return {};
  }
  if (!context_) {
    auto made = context_of(secret_);
    if (!made)
      return fail(std::move(made.error()));
    context_ = std::move(*made);
  }
  auto stream = secure_stream::connect(where_, context_, connect_limit, stop);
  if (!stream)
    return fail(stream.error().code,
                "parts of checkpoints cannot be streamed to the driver: " + stream.error().message +
                    " (its host must be reachable from here; or give all hosts a storage path that they share)");
  join_request request{secret_.run, worker_, serialization::random_hex(16)};
  if (auto sent =
          stream->write_text({{"run", request.run.value}, {"worker", request.worker.value}, {"nonce", request.nonce}});
      !sent)
    return sent;
  auto challenge = stream->read_text(greeting_limit_bytes);
  if (!challenge)
    return fail(std::move(challenge.error()));
  auto nonce = challenge->value("nonce", "");
  if (auto known = actors::verify_node(secret_.secret, request, {nonce, challenge->value("proof", "")}); !known)
    return known;
  auto proof = actors::make_proof(secret_.secret, actors::join_role::worker, secret_.run, worker_, nonce);
  if (auto sent = stream->write_text({{"proof", proof}}); !sent)
    return sent;
  stream_.emplace(std::move(*stream));
  return {};
}

/// After a failure nobody knows what is still to come over this connection.
template <class Call>
auto part_stream::attempt(const std::stop_token& stop, Call call) -> decltype(call()) {
  for (;;) {
    const auto is_fresh = !stream_.has_value();
    if (auto connected = connect(stop); !connected)
      return fail(std::move(connected.error()));
    auto result = call();
    if (result)
      return result;
    stream_.reset();
    // One that has been idle for long may have died unnoticed.
    if (is_fresh || result.error().code != errc::unreachable || stop.stop_requested())
      return result;
  }
}

expected<serialization::part_report> part_stream::put(const staged_part& part, const std::stop_token& stop) {
  return attempt(stop, [&]() -> expected<serialization::part_report> {
    const auto& head = part.head;
    auto asked = stream_->write_text({{"put",
                                       {{"step", head.step.value},
                                        {"generation", head.generation.value},
                                        {"attempt", head.attempt},
                                        {"rank", head.rank.value},
                                        {"world_size", head.world_size},
                                        {"tensors", describe(head.tensors)}}}});
    if (!asked)
      return fail(std::move(asked.error()));
    if (auto ready = read_answer(*stream_); !ready)
      return fail(std::move(ready.error()));
    auto sums = json::array();
    auto rest = part.bytes;
    for (const auto& chunk : part.plan.chunks_of(head.rank.value)) {
      auto bytes = rest.first(chunk.length_bytes);
      rest = rest.subspan(chunk.length_bytes);
      sums.push_back(serialization::xxh3(bytes));
      if (auto sent = stream_->write(bytes); !sent)
        return fail(std::move(sent.error()));
    }
    if (auto sent = stream_->write_text({{"chunks", std::move(sums)}}); !sent)
      return fail(std::move(sent.error()));
    auto answer = read_answer(*stream_);
    if (!answer)
      return fail(std::move(answer.error()));
    try {
      return parse_report(answer->at("report"));
    } catch (const json::exception& x) {
      return fail(errc::invalid_argument, std::string{"the driver's report cannot be read: "} + x.what());
    }
  });
}

expected<void> part_stream::get(const std::string& file, std::uint64_t offset_bytes, std::span<std::byte> target) {
  if (target.empty())
    return {};
  return attempt({}, [&]() -> expected<void> {
    if (auto asked =
            stream_->write_text({{"get", {{"file", file}, {"offset", offset_bytes}, {"size", target.size()}}}});
        !asked)
      return asked;
    if (auto answer = read_answer(*stream_); !answer)
      return fail(std::move(answer.error()));
    return stream_->read(target);
  });
}

expected<std::shared_ptr<const state_source>> part_stream::open_source() {
  auto bytes = attempt({}, [&]() -> expected<std::vector<std::byte>> {
    if (auto asked =
            stream_->write_text({{"get", {{"file", serialization::manifest_file_name}, {"offset", 0}, {"size", 0}}}});
        !asked)
      return fail(std::move(asked.error()));
    auto answer = read_answer(*stream_);
    if (!answer)
      return fail(std::move(answer.error()));
    auto size = answer->value("size", std::uint64_t{0});
    if (size > text_limit_bytes)
      return fail(errc::damaged, "the driver's checkpoint has a manifest of " + std::to_string(size) + " bytes");
    auto result = std::vector<std::byte>(size);
    if (auto got = stream_->read(result); !got)
      return fail(std::move(got.error()));
    return result;
  });
  if (!bytes)
    return fail(std::move(bytes.error()));
  auto content = serialization::parse_manifest(*bytes, "the manifest that the driver has sent");
  if (!content)
    return fail(std::move(content.error()));
  return std::make_shared<streamed_state>(shared_from_this(), std::move(*content),
                                          "of the driver's, read from " + to_string(where_));
}

} // namespace troupe::runtime
