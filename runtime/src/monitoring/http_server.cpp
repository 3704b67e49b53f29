#include "monitoring/http_server.hpp"

#include "monitoring/http_listening.hpp"

#include <httplib.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

constexpr auto patience = 2s;
constexpr std::size_t most_threads = 4;

} // namespace

class http_server::impl {
 public:
  explicit impl(pages what) {
    server_.new_task_queue = [] { return new bounded_queue{most_threads}; }; // NOLINT: the library deletes it
    server_.set_socket_options(set_listening_options);
    server_.set_tcp_nodelay(true);
    server_.set_keep_alive_max_count(1);
    // Also before a first request.
    server_.set_keep_alive_timeout(patience.count());
    server_.set_read_timeout(patience);
    server_.set_write_timeout(patience);
    server_.set_payload_max_length(0);
    for (auto& [path, page] : what)
      server_.Get(path, [page = std::move(page)](const httplib::Request&, httplib::Response& response) {
        auto answer = page();
        response.status = answer.status;
        response.set_content(std::move(answer.body), answer.content_type.c_str());
      });
  }

  ~impl() {
    server_.stop();
    if (thread_.joinable())
      thread_.join();
  }

  expected<void> listen(const endpoint& where) {
    errno = 0;
    address_ = where;
    if (where.port != 0 && !server_.bind_to_port(where.host, where.port))
      return fail(cannot_listen(where, errno));
    if (where.port == 0) {
      const auto port = server_.bind_to_any_port(where.host);
      if (port <= 0)
        return fail(cannot_listen(where, errno));
      address_.port = static_cast<std::uint16_t>(port);
    }
    thread_ = std::thread{[this] {
      server_.listen_after_bind();
      has_ended_ = true;
    }};
    // `stop` has no effect before that.
    while (!server_.is_running() && !has_ended_)
      std::this_thread::sleep_for(1ms);
    return {};
  }

  [[nodiscard]] const endpoint& address() const noexcept { return address_; }

 private:
  httplib::Server server_;
  endpoint address_;
  std::atomic<bool> has_ended_{false};
  std::thread thread_;
};

expected<std::unique_ptr<http_server>> http_server::open(const endpoint& where, pages what) {
  auto state = std::make_unique<impl>(std::move(what));
  TROUPE_TRY(state->listen(where));
  return std::unique_ptr<http_server>{new http_server{std::move(state)}};
}

http_server::http_server(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
http_server::~http_server() = default;

const endpoint& http_server::address() const noexcept {
  return impl_->address();
}

} // namespace troupe::runtime
