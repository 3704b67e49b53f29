#include <troupe/messages/type_ids.hpp>

#include "sample_messages.hpp"

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <caf/init_global_meta_objects.hpp>
#include <caf/json_writer.hpp>
#include <caf/message.hpp>

#include <built.hpp>
#include <doctest/doctest.h>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace troupe;
using nlohmann::json;

namespace {

/// Messages are read and written as they travel: with their type ids.
class wire {
 public:
  wire() : system_((init(), config_)) {}

  caf::byte_buffer to_bytes(const caf::message& what) {
    caf::byte_buffer result;
    auto sink = caf::binary_serializer{system_, result};
    REQUIRE(sink.apply(what));
    return result;
  }

  template <class T>
  bool load(const caf::byte_buffer& bytes, T& into) {
    auto source = caf::binary_deserializer{system_, bytes};
    return source.apply(into) && source.remaining() == 0;
  }

 private:
  void init() {
    static const auto once = [] {
      caf::init_global_meta_objects<caf::id_block::troupe_messages>();
      caf::core::init_global_meta_objects();
      return true;
    }();
    std::ignore = once;
    config_.set("caf.scheduler.max-threads", 1);
  }

  caf::actor_system_config config_;
  caf::actor_system system_;
};

std::string to_hex(const caf::byte_buffer& bytes) {
  auto result = std::string{};
  for (auto each : bytes) {
    constexpr auto digits = "0123456789abcdef";
    result += digits[static_cast<unsigned>(each) >> 4];
    result += digits[static_cast<unsigned>(each) & 15];
  }
  return result;
}

caf::byte_buffer from_hex(const std::string& text) {
  caf::byte_buffer result;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    result.push_back(static_cast<caf::byte_buffer::value_type>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return result;
}

/// One line for each message: its name and its bytes.
std::map<std::string, std::string> stored_bytes() {
  std::map<std::string, std::string> result;
  auto in = std::ifstream{testing::sources("tests/data/messages-v11/messages.txt")};
  for (std::string name, hex; in >> name >> hex;)
    result[name] = hex;
  return result;
}

template <class T>
json to_json_value(const T& x) {
  caf::json_writer writer;
  writer.skip_empty_fields(false);
  REQUIRE(writer.apply(x));
  auto text = std::string{writer.str().data(), writer.str().size()};
  // Texts may hold any bytes; JSON's may not, and here it matters only that there are some.
  for (auto& each : text)
    if (static_cast<unsigned char>(each) < 0x20 || static_cast<unsigned char>(each) > 0x7e)
      each = each == '\n' ? ' ' : '?';
  // CAF 0.18's writer forgets the commas between lists in a list.
  auto mended = std::string{};
  auto last = ' ';
  for (auto each : text) {
    if (each == '[' && last == ']')
      mended += ',';
    if (each != ' ')
      last = each;
    mended += each;
  }
  return json::parse(mended);
}

bool is_blank(const json& x) {
  const auto* text = x.get_ptr<const std::string*>();
  return x.empty() || x == 0 || x == false || (text != nullptr && text->empty());
}

/// The fields of `sample` that say the same as those of a default one, and the elements of lists that say nothing.
void find_defaults(const std::string& path, const json& sample, const json& plain, std::vector<std::string>& out) {
  if (sample.is_object()) {
    for (const auto& [key, value] : sample.items())
      if (key != "@type")
        find_defaults(path + "." + key, value, plain.is_object() && plain.contains(key) ? plain[key] : json{}, out);
  } else if (sample.is_array()) {
    if (sample.empty())
      out.push_back(path);
    else
      find_defaults(path + "[]", sample.back(), json{}, out);
  } else if (plain.is_null() ? is_blank(sample) : sample == plain) {
    out.push_back(path);
  }
}

} // namespace

TEST_CASE_FIXTURE(wire, "the samples of all messages have every field away from its default") {
  for_each_message([](const std::string& name, const auto& sample) {
    std::vector<std::string> same;
    find_defaults(name, to_json_value(sample), to_json_value(std::decay_t<decltype(sample)>{}), same);
    for (const auto& field : same)
      FAIL_CHECK("give the sample of ", field, " a value of its own");
    CHECK(same.empty());
  });
}

TEST_CASE_FIXTURE(wire, "every message has a sample") {
  constexpr auto first = caf::id_block::troupe_messages::begin;
  constexpr auto last = caf::id_block::troupe_messages::end;
  std::set<caf::type_id_t> seen;
  for_each_message([&](const std::string& name, const auto& sample) {
    auto id = caf::type_id_v<std::decay_t<decltype(sample)>>;
    CAPTURE(name);
    CHECK(std::string{caf::query_type_name(id).data(), caf::query_type_name(id).size()} == "troupe::" + name);
    seen.insert(id);
  });
  for (auto id = first; id < last; ++id) {
    CAPTURE(caf::query_type_name(id).data());
    CHECK(seen.contains(id));
  }
}

TEST_CASE_FIXTURE(wire, "every message comes back from its bytes") {
  for_each_message([&](const std::string& name, const auto& sample) {
    using type = std::decay_t<decltype(sample)>;
    CAPTURE(name);
    caf::message loaded;
    REQUIRE(load(to_bytes(caf::make_message(sample)), loaded));
    REQUIRE(loaded.match_elements<type>());
    CHECK(loaded.get_as<type>(0) == sample);
  });
}

TEST_CASE_FIXTURE(wire, "the bytes of every message are those of version 11") {
  auto stored = stored_bytes();
  for_each_message([&](const std::string& name, const auto& sample) {
    using type = std::decay_t<decltype(sample)>;
    auto bytes = to_hex(to_bytes(caf::make_message(sample)));
    if (!stored.contains(name)) {
      FAIL_CHECK("messages-v11/messages.txt lacks a message; append this line to it:\n", name, " ", bytes);
      return;
    }
    caf::message loaded;
    auto good =
        load(from_hex(stored[name]), loaded) && loaded.match_elements<type>() && loaded.get_as<type>(0) == sample;
    if (!good || bytes != stored[name])
      FAIL_CHECK(name,
                 " is no longer what version 11 says on the wire: a field or type id was added, removed or moved. ",
                 "Processes of other builds would misread it: increase `protocol_version`, rename messages-v11 and "
                 "store this line in it:\n",
                 name, " ", bytes);
    CHECK(good);
    stored.erase(name);
  });
  for (const auto& [name, bytes] : stored)
    FAIL_CHECK("messages-v11/messages.txt has ", name,
               ", which is no message any more: its type id is never used again");
}

TEST_CASE_FIXTURE(wire, "bytes that end too early are no message, wherever they end") {
  for_each_message([&](const std::string& name, const auto& sample) {
    CAPTURE(name);
    auto whole = to_bytes(caf::make_message(sample));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      // A buffer of exactly this size lets a sanitizer see what reads beyond it.
      auto part = caf::byte_buffer(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      part.shrink_to_fit();
      caf::message loaded;
      CAPTURE(size);
      CHECK_FALSE(load(part, loaded));
    }
  });
}

TEST_CASE_FIXTURE(wire, "damaged bytes are refused or read as something else, and harm nobody") {
  constexpr auto seed = 20260101u;
  MESSAGE("seed ", seed);
  auto random = std::mt19937{seed};
  auto refused = 0;
  auto read = 0;
  for_each_message([&](const std::string&, const auto& sample) {
    // The type id in front is left as it is: another one is another message, and has its own turn.
    constexpr auto head = std::size_t{3};
    auto whole = to_bytes(caf::make_message(sample));
    for (int round = 0; round < 300 && whole.size() > head; ++round) {
      auto bytes = whole;
      for (auto flips = 1 + random() % 4; flips > 0; --flips)
        bytes[head + random() % (bytes.size() - head)] ^= static_cast<caf::byte_buffer::value_type>(1u << random() % 8);
      caf::message loaded;
      if (load(bytes, loaded))
        ++read;
      else
        ++refused;
    }
  });
  // Numbers and texts have no checksum here (TLS has), lengths and enumerators cannot be just anything.
  CHECK(read > 0);
  CHECK(refused > 0);
}

TEST_CASE_FIXTURE(wire, "numbers that are no enumerator are refused") {
  auto applies = [&](auto target, std::uint8_t value) {
    return load(caf::byte_buffer{static_cast<caf::byte_buffer::value_type>(value)}, target);
  };
  CHECK(applies(errc{}, 24));
  CHECK_FALSE(applies(errc{}, 25));
  CHECK_FALSE(applies(transport_kind{}, 0));
  CHECK(applies(transport_kind{}, 4));
  CHECK_FALSE(applies(transport_kind{}, 5));
  CHECK_FALSE(applies(activity_kind{}, 0));
  CHECK(applies(activity_kind{}, 4));
  CHECK_FALSE(applies(activity_kind{}, 5));
  CHECK_FALSE(applies(checkpoint_sync{}, 0));
  CHECK(applies(checkpoint_sync{}, 3));
  CHECK_FALSE(applies(checkpoint_sync{}, 4));
  CHECK_FALSE(applies(state_comparison{}, 0));
  CHECK(applies(state_comparison{}, 3));
  CHECK_FALSE(applies(state_comparison{}, 4));
  CHECK_FALSE(applies(run_status{}, 0));
  CHECK(applies(run_status{}, 3));
  CHECK_FALSE(applies(run_status{}, 4));
}

TEST_CASE("type ids begin where host programs are told that they begin") {
  CHECK(caf::id_block::troupe_messages::begin == caf::first_custom_type_id + 1000);
  CHECK(caf::id_block::troupe_messages::end <= caf::first_custom_type_id + 1100);
}

TEST_CASE("error codes keep their numbers and have names") {
  auto table = std::map<errc, std::pair<int, std::string>>{
      {errc::none, {0, "none"}},
      {errc::invalid_argument, {1, "invalid_argument"}},
      {errc::unsatisfiable, {2, "unsatisfiable"}},
      {errc::unreachable, {3, "unreachable"}},
      {errc::not_authenticated, {4, "not_authenticated"}},
      {errc::wrong_secret, {5, "wrong_secret"}},
      {errc::program_mismatch, {6, "program_mismatch"}},
      {errc::mismatch, {7, "mismatch"}},
      {errc::worker_lost, {8, "worker_lost"}},
      {errc::node_lost, {9, "node_lost"}},
      {errc::aborted, {10, "aborted"}},
      {errc::timed_out, {11, "timed_out"}},
      {errc::stale_generation, {12, "stale_generation"}},
      {errc::io_error, {13, "io_error"}},
      {errc::damaged, {14, "damaged"}},
      {errc::unsupported_version, {15, "unsupported_version"}},
      {errc::not_found, {16, "not_found"}},
      {errc::already_exists, {17, "already_exists"}},
      {errc::user_error, {18, "user_error"}},
      {errc::stopped, {19, "stopped"}},
      {errc::internal, {20, "internal"}},
      {errc::device_error, {21, "device_error"}},
      {errc::connection_refused, {22, "connection_refused"}},
      {errc::superseded, {23, "superseded"}},
      {errc::busy, {24, "busy"}},
  };
  CHECK(table.size() == 25);
  for (const auto& [code, expected] : table) {
    CHECK(static_cast<int>(code) == expected.first);
    CHECK(to_string(code) == expected.second);
  }
  const auto beyond = static_cast<errc>(25); // NOLINT(clang-analyzer-optin.core.EnumCastOutOfRange)
  CHECK(to_string(beyond) == "unknown");
}
