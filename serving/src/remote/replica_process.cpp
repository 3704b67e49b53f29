#include "remote/replica_process.hpp"

#include "remote/replica_port.hpp"
#include "safely.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/temporary_directory.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <list>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

namespace troupe::serving {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using runtime::secure_stream;

namespace {

constexpr auto connect_limit = 3s;
constexpr auto between_tries = 1s;
constexpr auto idle_poll_interval = 100ms;

expected<served_model> load_model(secure_stream& server, const replica_settings& settings, const load_replica& load,
                                  const std::function<void()>& begun) {
  std::optional<serialization::temporary_directory> scratch;
  TROUPE_TRY(const auto path, receive_checkpoint(server, begun, [&]() -> expected<fs::path> {
               TROUPE_TRY(auto made, serialization::temporary_directory::make("troupe-replica"));
               return scratch.emplace(std::move(made)).path();
             }));
  TROUPE_TRY(const auto source, serialization::checkpoint::open(path));
  TROUPE_TRY(source.verify());
  auto model = safely([&] { return load(source, settings.options); });
  if (model && model->predictor == nullptr)
    return fail(errc::user_error, "the model needs a predictor");
  return model;
}

/// Loads and predicts until the server ends the connection, or the process is to end.
expected<void> serve_connection(secure_stream& server, const replica_settings& settings, const load_replica& load,
                                const std::function<void()>& begun) {
  auto model = load_model(server, settings, load, begun);
  if (!model) {
    if (model.error().code == errc::worker_lost)
      return {};
    return send_loaded(server, fail(model.error()));
  }
  const auto width = model->predictor->outputs().size();
  TROUPE_TRY(send_loaded(server, remote_face{model->predictor->library(), model->inputs, model->predictor->outputs()}));
  data::batch rows;
  std::vector<float> outputs;
  for (;;) {
    TROUPE_TRY(receive_rows(server, model->inputs, rows));
    outputs.resize(rows.size() * width);
    const auto outcome = safely([&] { return model->predictor->predict(rows, outputs); });
    TROUPE_TRY(send_outputs(server, outcome, outputs));
  }
}

/// The connections of this process. One thread keeps them.
class connections {
 public:
  connections(const replica_settings& settings, const load_replica& load) : settings_(settings), load_(load) {}

  ~connections() { stop_.request_stop(); }

  /// Sees that a connection waits for the next model. Returns after a short time, or when there is something to do.
  void keep() {
    std::erase_if(all_, [](const connection& x) { return x.has_ended.load(); });
    const auto now = std::chrono::steady_clock::now();
    auto lock = std::unique_lock{mutex_};
    if (!has_waiting_ && now >= next_try_) {
      has_waiting_ = true;
      next_try_ = now + between_tries;
      auto& added = all_.emplace_back();
      added.thread = std::jthread{[this, &added] {
        serve();
        added.has_ended = true;
      }};
    }
    changed_.wait_for(lock, idle_poll_interval, [this] { return !has_waiting_; });
  }

 private:
  struct connection {
    std::atomic<bool> has_ended = false;
    std::jthread thread;
  };

  void serve() noexcept {
    auto waits = true;
    const auto begun = [&] {
      waits = false;
      const auto lock = std::lock_guard{mutex_};
      has_waiting_ = false;
      next_try_ = {};
      changed_.notify_all();
    };
    try {
      const auto key = runtime::stream_key{key_of(settings_.secret), session_name};
      auto server = secure_stream::connect(settings_.server, key, connect_limit, stop_.get_token());
      if (server)
        // What ends a connection is said by the server.
        (void)serve_connection(*server, settings_, load_, begun);
      else if (!stop_.stop_requested())
        std::fprintf(stderr, "the server is not reached: %s\n", server.error().message.c_str());
    } catch (const std::exception& x) {
      std::fprintf(stderr, "a connection to the server has ended: %s\n", x.what());
    }
    if (waits) {
      const auto lock = std::lock_guard{mutex_};
      has_waiting_ = false;
    }
  }

  const replica_settings& settings_;
  const load_replica& load_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_waiting_ = false;
  std::chrono::steady_clock::time_point next_try_;
  /// Last, so that the threads have ended before the rest goes.
  std::list<connection> all_;
};

} // namespace

void run_replica(const replica_settings& settings, const load_replica& load, const std::function<bool()>& is_over) {
  auto here = connections{settings, load};
  while (!is_over())
    here.keep();
}

function replica_function(std::string name, load_replica load) {
  return function{std::move(name), std::function<void(train_context&)>{[load = std::move(load)](train_context& ctx) {
                    run_replica(value_or_throw(parse_replica_settings(ctx.options())), load, [&ctx] {
                      ctx.heartbeat();
                      return ctx.stop_requested();
                    });
                  }}};
}

} // namespace troupe::serving
