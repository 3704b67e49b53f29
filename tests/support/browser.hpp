#pragma once

#include <troupe/collectives/unique_fd.hpp>

#include <array>
#include <csignal>
#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace troupe::testing {

/// The path of Chromium; nothing where there is none.
inline std::optional<std::string> find_chromium() {
  for (const auto* path : {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"})
    if (::access(path, X_OK) == 0)
      return path;
  return std::nullopt;
}

/// Chromium without a window, driven over the DevTools protocol in two pipes.
class browser {
 public:
  using json = nlohmann::json;

  browser(const std::string& program, const std::filesystem::path& profile) {
    std::array<int, 2> to{};
    std::array<int, 2> from{};
    if (::pipe2(to.data(), O_CLOEXEC) != 0 || ::pipe2(from.data(), O_CLOEXEC) != 0)
      throw std::runtime_error{"no pipes"};
    // Away from 3 and 4, which the browser takes for the protocol.
    const auto in = ::fcntl(to[0], F_DUPFD_CLOEXEC, 10);
    const auto out = ::fcntl(from[1], F_DUPFD_CLOEXEC, 10);
    ::close(to[0]);
    ::close(from[1]);
    const auto directory = "--user-data-dir=" + profile.string();
    pid_ = ::fork();
    if (pid_ == 0) {
      // A group of its own, which ends whole.
      ::setpgid(0, 0);
      const auto null = ::open("/dev/null", O_RDWR);
      if (null < 0)
        ::_exit(127);
      ::dup2(null, 0);
      ::dup2(null, 1);
      ::dup2(null, 2);
      ::dup2(in, 3);
      ::dup2(out, 4);
      ::execl(program.c_str(), program.c_str(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
              "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-extensions", "--disable-background-networking",
              "--disable-component-update", "--remote-debugging-pipe", directory.c_str(), "about:blank", nullptr);
      ::_exit(127);
    }
    ::close(in);
    ::close(out);
    to_ = collectives::unique_fd{to[1]};
    from_ = collectives::unique_fd{from[0]};
    const auto target = call("Target.createTarget", {{"url", "about:blank"}})["targetId"];
    session_ = call("Target.attachToTarget", {{"targetId", target}, {"flatten", true}})["sessionId"];
    call("Page.enable");
    call("Runtime.enable");
  }

  browser(const browser&) = delete;
  browser& operator=(const browser&) = delete;

  ~browser() {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  void open(const std::string& url) { call("Page.navigate", {{"url", url}}); }

  /// The value of a JavaScript expression; an object with "exception" if it throws.
  json value_of(const std::string& expression) {
    const auto answer =
        call("Runtime.evaluate", {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}});
    if (answer.contains("exceptionDetails"))
      return {{"exception", answer["exceptionDetails"].dump()}};
    return answer["result"].value("value", json{});
  }

  void resize(int width, int height) {
    call("Emulation.setDeviceMetricsOverride",
         {{"width", width}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", width < 600}});
  }

  void set_dark(bool dark) {
    call("Emulation.setEmulatedMedia",
         {{"features", json::array({{{"name", "prefers-color-scheme"}, {"value", dark ? "dark" : "light"}}})}});
  }

  /// Writes a PNG of the whole page.
  void take_picture(const std::filesystem::path& path) {
    const auto data = call("Page.captureScreenshot", {{"captureBeyondViewport", true}})["data"].get<std::string>();
    auto file = std::ofstream{path, std::ios::binary};
    std::uint32_t bits = 0;
    auto count = 0;
    for (auto c : data) {
      const auto at = std::string{"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"}.find(c);
      if (at == std::string::npos)
        break;
      bits = bits << 6 | static_cast<std::uint32_t>(at);
      count += 6;
      if (count >= 8)
        file.put(static_cast<char>(bits >> (count -= 8) & 0xff));
    }
  }

  /// What went wrong in the page's scripts so far.
  [[nodiscard]] const std::string& complaints() const noexcept { return complaints_; }

 private:
  json call(const std::string& method, json parameters = json::object()) {
    auto request = json{{"id", ++last_}, {"method", method}, {"params", std::move(parameters)}};
    if (!session_.empty())
      request["sessionId"] = session_;
    const auto text = request.dump();
    // With the zero at its end.
    if (::write(to_.get(), text.c_str(), text.size() + 1) != static_cast<ssize_t>(text.size() + 1))
      throw std::runtime_error{"the browser takes no request"};
    for (;;) {
      auto answer = next();
      const auto kind = answer.value("method", std::string{});
      if (kind == "Runtime.exceptionThrown")
        complaints_ += answer["params"].dump() + '\n';
      if (answer.value("id", 0) != last_)
        continue;
      if (answer.contains("error"))
        throw std::runtime_error{method + ": " + answer["error"].dump()};
      return answer["result"];
    }
  }

  json next() {
    for (;;) {
      if (const auto end = in_.find('\0'); end != std::string::npos) {
        auto result = json::parse(in_.substr(0, end));
        in_.erase(0, end + 1);
        return result;
      }
      std::array<char, 65536> block;
      const auto got = ::read(from_.get(), block.data(), block.size());
      if (got <= 0)
        throw std::runtime_error{"the browser has ended"};
      in_.append(block.data(), static_cast<std::size_t>(got));
    }
  }

  pid_t pid_ = -1;
  collectives::unique_fd to_;
  collectives::unique_fd from_;
  std::string in_;
  std::string session_;
  std::string complaints_;
  int last_ = 0;
};

} // namespace troupe::testing
