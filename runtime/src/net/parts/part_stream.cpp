#include "net/parts/part_stream.hpp"

#include "net/parts/part_messages.hpp"

#include <troupe/actors/decisions/join_handshake.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto connect_limit = 10s;

/// The driver's checkpoint, read over a part stream.
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
      TROUPE_TRY(stream_->get(file, place.offset_bytes, piece));
      if (serialization::xxh3(piece) != place.xxh3)
        return fail(
            errc::damaged,
            fmt::format(
                "tensor \"{}\", chunk {} of {} ({}) does not match its checksum: it was damaged on the driver's "
                "disk or in transit",
                tensor.spec.name, i, name_, file));
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

std::optional<stream_key> part_stream_secret::key() const {
  if (!is_encrypted)
    return std::nullopt;
  // A derived key, not the run's secret itself, so that one protocol reveals nothing of use in another.
  const auto label = "troupe part streams of run " + run.value;
  return stream_key{serialization::hmac_sha256(serialization::bytes_of(secret), serialization::bytes_of(label)),
                    "troupe part stream"};
}

part_stream::part_stream(part_stream_secret secret, worker_id worker, endpoint where)
    : secret_(std::move(secret)), worker_(worker), where_(std::move(where)) {}

expected<void> part_stream::connect(const std::stop_token& stop) {
  if (stream_) {
    stream_->stop_with(stop);
    return {};
  }
  auto stream = secure_stream::connect(where_, secret_.key(), connect_limit, stop);
  if (!stream)
    return fail(
        stream.error().code,
        fmt::format("cannot stream parts of checkpoints to the driver: {} (make the driver's host reachable from "
                    "here, or use a storage path that all hosts share)",
                    stream.error().message));
  const auto nonce = serialization::random_hex(16);
  TROUPE_TRY(stream->write_text({{"run", secret_.run.value}, {"worker", worker_.value}, {"nonce", nonce}}));
  TROUPE_TRY(auto challenge, stream->read_text(greeting_limit_bytes));
  // A proof that was made for another session would not fit this one.
  const auto& binding = stream->binding();
  const auto theirs = challenge.value("nonce", "") + binding;
  TROUPE_TRY(actors::verify_node(secret_.secret, {secret_.run, worker_, nonce + binding},
                                 {theirs, challenge.value("proof", "")}));
  auto proof = actors::make_proof(secret_.secret, actors::join_role::worker, secret_.run, worker_, theirs);
  TROUPE_TRY(stream->write_text({{"proof", proof}}));
  stream_.emplace(std::move(*stream));
  return {};
}

/// Closes the connection after a failure, because the position in its stream is unknown then.
template <class Call>
auto part_stream::attempt(const std::stop_token& stop, Call call) -> decltype(call()) {
  for (;;) {
    const auto is_fresh = !stream_.has_value();
    TROUPE_TRY(connect(stop));
    auto result = call();
    if (result)
      return result;
    stream_.reset();
    // A connection that was idle for long may have died unnoticed: try once with a new one.
    if (is_fresh || result.error().code != errc::unreachable || stop.stop_requested())
      return result;
  }
}

expected<serialization::part_report> part_stream::put(const staged_part& part, const std::stop_token& stop) {
  return attempt(stop, [&]() -> expected<serialization::part_report> {
    const auto& head = part.head;
    TROUPE_TRY(stream_->write_text({{"put",
                                     {{"step", head.step.value},
                                      {"generation", head.generation.value},
                                      {"attempt", head.attempt},
                                      {"rank", head.rank.value},
                                      {"world_size", head.world_size},
                                      {"tensors", describe(head.tensors)}}}}));
    TROUPE_TRY(read_answer(*stream_));
    auto sums = json::array();
    auto rest = part.bytes;
    for (const auto& chunk : part.plan.chunks_of(head.rank.value)) {
      auto bytes = rest.first(chunk.length_bytes);
      rest = rest.subspan(chunk.length_bytes);
      sums.push_back(serialization::xxh3(bytes));
      TROUPE_TRY(stream_->write(bytes));
    }
    TROUPE_TRY(stream_->write_text({{"chunks", std::move(sums)}}));
    TROUPE_TRY(auto answer, read_answer(*stream_));
    try {
      return parse_report(answer.at("report"));
    } catch (const json::exception& x) {
      return fail(errc::invalid_argument, fmt::format("cannot parse the driver's report: {}", x.what()));
    }
  });
}

expected<void> part_stream::get(const std::string& file, std::uint64_t offset_bytes, std::span<std::byte> target) {
  if (target.empty())
    return {};
  return attempt({}, [&]() -> expected<void> {
    TROUPE_TRY(stream_->write_text({{"get", {{"file", file}, {"offset", offset_bytes}, {"size", target.size()}}}}));
    TROUPE_TRY(read_answer(*stream_));
    return stream_->read(target);
  });
}

expected<std::shared_ptr<const state_source>> part_stream::open_source() {
  auto bytes = attempt({}, [&]() -> expected<std::vector<std::byte>> {
    TROUPE_TRY(
        stream_->write_text({{"get", {{"file", serialization::manifest_file_name}, {"offset", 0}, {"size", 0}}}}));
    TROUPE_TRY(auto answer, read_answer(*stream_));
    auto size = answer.value("size", std::uint64_t{0});
    if (size > text_limit_bytes)
      return fail(errc::damaged,
                  fmt::format("the driver's checkpoint has a manifest of {} bytes; at most {} are accepted", size,
                              text_limit_bytes));
    auto result = std::vector<std::byte>(size);
    TROUPE_TRY(stream_->read(result));
    return result;
  });
  if (!bytes)
    return fail(std::move(bytes.error()));
  TROUPE_TRY(auto content, serialization::parse_manifest(*bytes, "the manifest sent by the driver"));
  return std::make_shared<streamed_state>(shared_from_this(), std::move(content),
                                          fmt::format("the driver's checkpoint, read from {}", to_string(where_)));
}

} // namespace troupe::runtime
