#include "submit/remote.hpp"

#include "run/over_ssh.hpp"

#include <troupe/serialization/files/digest.hpp>
#include <troupe/shell_words.hpp>

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

namespace troupe::tool {

namespace fs = std::filesystem;

namespace {

expected<std::string> digest_of(const fs::path& file) {
  auto in = std::ifstream{file, std::ios::binary};
  serialization::sha256 digest;
  std::array<char, std::size_t{64} << 10> piece{};
  while (in.read(piece.data(), piece.size()), in.gcount() > 0)
    digest.update(std::as_bytes(std::span{piece.data(), static_cast<std::size_t>(in.gcount())}));
  if (!in.eof())
    return fail(system_error("cannot read " + file.string()));
  return digest.hex_digest();
}

std::string in_directory(const std::string& job) {
  return "cd -- " + shell_quoted(remote_directory(job)) + " && ";
}

} // namespace

std::string remote_directory(const std::string& job) {
  return "troupe/" + job;
}

expected<std::vector<sent_file>> files_to_send(const std::string& program, const std::vector<std::string>& with) {
  std::vector<sent_file> result;
  if (program.find('/') != std::string::npos)
    result.push_back({program, "bin/" + fs::path{program}.filename().string(), true});
  for (const auto& each : with) {
    const auto there = fs::path{each}.lexically_normal();
    if (there.is_absolute() || *there.begin() == "..")
      return fail(errc::invalid_argument,
                  fmt::format("--with {}: name files below this directory, so that the program's arguments name them "
                              "there as they do here",
                              each));
    result.push_back({each, there.string()});
  }
  for (const auto& each : result) {
    auto code = std::error_code{};
    if (!fs::is_regular_file(each.here, code))
      return fail(errc::not_found, fmt::format("there is no file {}{}", each.here.string(),
                                               each.is_program ? "; a name without '/' means a program there" : ""));
  }
  return result;
}

expected<std::vector<sent_file>> files_that_differ(const std::vector<sent_file>& files, const std::string& listing) {
  std::map<std::string, std::string> there;
  auto in = std::istringstream{listing};
  // The digest, two characters, the name.
  constexpr std::size_t digest_size = 64;
  for (std::string line; std::getline(in, line);)
    if (line.size() > digest_size + 2)
      there[line.substr(digest_size + 2)] = line.substr(0, digest_size);
  std::vector<sent_file> result;
  for (const auto& each : files) {
    TROUPE_TRY(const auto here, digest_of(each.here));
    if (const auto found = there.find(each.there); found == there.end() || found->second != here)
      result.push_back(each);
  }
  return result;
}

expected<void> send_files(const std::string& host, const std::string& job, const std::vector<sent_file>& files) {
  std::set<std::string> directories{remote_directory(job)};
  std::string names;
  for (const auto& each : files) {
    directories.insert((fs::path{remote_directory(job)} / each.there).parent_path().string());
    names += " " + shell_quoted(each.there);
  }
  std::string ask = "mkdir -p --";
  for (const auto& each : directories)
    ask += " " + shell_quoted(each);
  if (!files.empty())
    ask += " && " + in_directory(job) + "{ sha256sum --" + names + " 2>/dev/null; true; }";
  TROUPE_TRY(const auto listed, run_over_ssh(host, ask, {.captures = true}));
  if (listed.code != 0)
    return fail(errc::io_error,
                fmt::format("--host {}: there can be no directory {}, as above", host, remote_directory(job)));
  TROUPE_TRY(const auto differ, files_that_differ(files, listed.out));
  for (const auto& each : differ) {
    auto code = std::error_code{};
    const auto megabytes = static_cast<double>(fs::file_size(each.here, code)) / 1e6;
    fmt::print(stderr, "copies {} to {}:{}/{} ({:.1f} MB)\n", each.here.string(), host, remote_directory(job),
               each.there, megabytes);
    TROUPE_TRY(const auto digest, digest_of(each.here));
    // Somebody else may copy the same.
    const auto name = fmt::format("{}.{}.new", each.there, serialization::random_hex(4));
    const auto fresh = shell_quoted(name);
    const auto check = shell_quoted(fmt::format("{}  {}", digest, name));
    const auto put = fmt::format(
        "{}cat >./{} && echo {} | sha256sum --check --quiet && chmod {} -- {} && mv -f -- {} {}", in_directory(job),
        fresh, check, each.is_program ? "755" : "644", fresh, fresh, shell_quoted(each.there));
    TROUPE_TRY(const auto done, run_over_ssh(host, put, {.input = each.here}));
    if (done.code != 0)
      return fail(errc::io_error, fmt::format("--host {}: {} was not copied, as above", host, each.here.string()));
  }
  return {};
}

} // namespace troupe::tool
