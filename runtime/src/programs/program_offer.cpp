#include "programs/program_offer.hpp"

#include "net/members/member_messages.hpp"
#include "net/members/ticket_client.hpp"
#include "process/read_at.hpp"
#include "programs/program_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>
#include <sys/stat.h>
#include <utility>

namespace troupe::runtime {

namespace {

using json = nlohmann::json;
using namespace std::chrono_literals;

/// A node writes a piece, or reads a whole program, in this time.
constexpr auto patience = 60s;

class sender {
 public:
  sender(const std::string& address, const program_file& program, const member_access& how, const std::stop_token& stop)
      : node_(address, patient(how)), program_(program), stop_(stop) {}

  expected<json> ask(const char* what, json with) {
    with.update({{"ask", "program"}, {"do", what}});
    return node_.ask(std::move(with), patience, stop_);
  }

  expected<std::uint64_t> send() {
    struct stat status {};
    if (::fstat(program_.fd(), &status) != 0)
      return fail(system_error(program_.identity().path));
    const auto size = static_cast<std::uint64_t>(status.st_size);
    TROUPE_TRY(const auto begun,
               ask("begin", {{"build_id", program_.identity().build_id},
                             {"name", std::filesystem::path{program_.identity().path}.filename().string()},
                             {"size", size}}));
    const auto upload = begun.value("upload", std::string{});
    auto digest = serialization::sha256{};
    auto piece = std::string{};
    for (std::uint64_t done = 0; done < size; done += piece.size()) {
      piece.resize(std::min<std::uint64_t>(program_piece_bytes, size - done));
      if (!read_at(program_.fd(), std::as_writable_bytes(std::span{piece}), done))
        return fail(errc::io_error, fmt::format("cannot read {} at {}", program_.identity().path, done));
      digest.update(serialization::bytes_of(piece));
      TROUPE_TRY(ask("write", {{"upload", upload}, {"offset", done}, {"data", as_data(piece)}}));
    }
    TROUPE_TRY(ask("finish", {{"upload", upload}, {"sha256", digest.hex_digest()}}));
    return size;
  }

 private:
  ticket_client node_;
  const program_file& program_;
  std::stop_token stop_;
};

} // namespace

expected<program_offer> offer_program(const std::string& address, const program_file& program, const member_access& how,
                                      const std::stop_token& stop) {
  sender to{address, program, how, stop};
  const auto known = to.ask("has", {{"path", program.identity().path}, {"build_id", program.identity().build_id}});
  // A node that is older than this question, and that has been connected to, will say itself what it lacks.
  if (!known && known.error().code == errc::aborted)
    return fail(known.error());
  if (known && known->value("has", false))
    return program_offer{program_offer::outcome::had, 0};
  if (!known || !known->value("accepts", false))
    return program_offer{};
  auto sent = to.send();
  if (!sent)
    return fail(sent.error().code,
                fmt::format("it does not take {}: {}", program.identity().path, sent.error().message));
  return program_offer{program_offer::outcome::sent, *sent};
}

} // namespace troupe::runtime
