#include "net/keys/issued_index.hpp"

#include "net/keys/key_directory.hpp"
#include "net/keys/key_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

namespace troupe::runtime {

namespace {

using nlohmann::json;
using clock = std::chrono::system_clock;

constexpr std::array<certificate_role, 4> roles{certificate_role::none, certificate_role::node,
                                                certificate_role::driver, certificate_role::both};

std::string to_line(const issued_certificate& x) {
  return json{{"host", x.host},
              {"role", to_string(x.role)},
              {"also", x.also},
              {"serial", x.serial},
              {"expires", clock::to_time_t(x.expires)},
              {"revoked", x.is_revoked}}
      .dump();
}

std::optional<issued_certificate> parse_line(const std::string& line) {
  try {
    const auto in = json::parse(line);
    issued_certificate result;
    result.host = in.at("host");
    const auto role = std::ranges::find(roles, in.at("role").get<std::string>(),
                                        [](certificate_role x) { return std::string{to_string(x)}; });
    if (role == roles.end())
      return std::nullopt;
    result.role = *role;
    result.also = in.at("also").get<std::vector<std::string>>();
    result.serial = in.at("serial");
    result.expires = clock::from_time_t(in.at("expires").get<std::time_t>());
    result.is_revoked = in.at("revoked");
    return result;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

} // namespace

expected<issued_index> issued_index::read(std::filesystem::path path) {
  issued_index result{std::move(path)};
  if (!is_present(result.path_))
    return result;
  TROUPE_TRY(const auto text, read_text(result.path_));
  std::istringstream lines{text};
  for (std::string line; std::getline(lines, line);) {
    auto made = parse_line(line);
    if (!made)
      return fail(errc::damaged, fmt::format("{} is damaged, so it is not known which certificates were made; restore "
                                             "it from a backup, or make a new authority (troupe certs init)",
                                             result.path_.string()));
    result.add(std::move(*made));
  }
  return result;
}

void issued_index::add(issued_certificate made) {
  if (std::ranges::find(all_, made.serial, &issued_certificate::serial) != all_.end())
    return;
  for (auto& each : all_)
    each.is_replaced = each.is_replaced || each.host == made.host;
  all_.push_back(std::move(made));
}

std::size_t issued_index::revoke(std::string_view host) {
  std::size_t result = 0;
  for (auto& each : all_)
    if (each.host == host) {
      each.is_revoked = true;
      ++result;
    }
  return result;
}

expected<void> issued_index::write() const {
  std::string text;
  for (const auto& each : all_)
    text += to_line(each) + "\n";
  return replace_text(path_, text);
}

std::vector<std::string> issued_index::revoked_serials() const {
  std::vector<std::string> result;
  for (const auto& each : all_)
    if (each.is_revoked)
      result.push_back(each.serial);
  return result;
}

} // namespace troupe::runtime
