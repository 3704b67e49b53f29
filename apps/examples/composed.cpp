// Troupe inside a larger actor system. This host program has its own main, configuration, messages and actors. The
// trainer is one actor among them: the host spawns and monitors it and sends it requests, and it reports to the host's
// observer.
//   composed [--workers=N] [--name=NAME] [HOST:PORT of a caf-node]...
#include "line.hpp"

#include <troupe/actor_system.hpp>

#include <caf/all.hpp>

#include <cstdint>
#include <cstdio>
#include <string>

namespace composed {

/// The host's own messages: a request to its observer, and the answer.
struct heard_request {};

template <class Inspector>
bool inspect(Inspector& f, heard_request& x) {
  return f.object(x).fields();
}

struct heard {
  std::uint32_t started = 0;
  std::uint32_t progress = 0;
  std::uint32_t saved = 0;
};

template <class Inspector>
bool inspect(Inspector& f, heard& x) {
  return f.object(x).fields(f.field("started", x.started), f.field("progress", x.progress), f.field("saved", x.saved));
}

} // namespace composed

// Ids start at first_custom_type_id; Troupe's start a thousand later (see troupe/serialization/type_ids.hpp).
CAF_BEGIN_TYPE_ID_BLOCK(composed, caf::first_custom_type_id)

CAF_ADD_TYPE_ID(composed, (composed::heard_request))
CAF_ADD_TYPE_ID(composed, (composed::heard))

CAF_END_TYPE_ID_BLOCK(composed)

namespace composed {

/// The host's observer: receives all reports of a trainer and answers the host.
using listener_actor = troupe::actors::run_observer::extend<caf::result<heard>(heard_request)>;

class listener : public listener_actor::base {
 public:
  using listener_actor::base::base;

  behavior_type make_behavior() override {
    return {
        [this](const troupe::run_started& x) {
          ++heard_.started;
          std::printf("started %s with %zu workers\n", x.name.c_str(), x.workers.size());
          for (const auto& worker : x.workers)
            std::printf("rank %u: process %u of node %s\n", worker.rank.value, worker.pid, worker.node.c_str());
        },
        [this](const troupe::run_progress&) { ++heard_.progress; },
        [this](const troupe::checkpoint_saved& x) {
          ++heard_.saved;
          std::printf("saved %s\n", x.path.c_str());
        },
        [](const troupe::checkpoint_skipped&) {},
        [](const troupe::checkpoint_failed&) {},
        [](const troupe::generation_record& x) {
          std::printf("%u workers continue after step %llu: %s\n", x.workers,
                      static_cast<unsigned long long>(x.commit_point.value), x.reason.c_str());
        },
        [](const troupe::run_notice& x) { std::fprintf(stderr, "%s\n", x.text.c_str()); },
        [this](heard_request) { return heard_; },
    };
  }

 private:
  heard heard_;
};

struct configuration : caf::actor_system_config {
  configuration() {
    opt_group{custom_options_, "global"}
        .add(workers, "workers", "Worker processes")
        .add(name, "name", "Name of the run's directory");
  }

  std::uint32_t workers = 2;
  std::string name = "composed";
};

troupe::trainer_config describe_run(const configuration& config) {
  troupe::trainer_config result;
  result.scaling.num_workers = config.workers;
  result.scaling.placement = troupe::placement_strategy::spread;
  result.run.name = config.name;
  result.run.steps = 100;
  result.checkpoint.every_steps = 50;
  auto [count, words] = config.c_args_remainder();
  result.cluster.nodes.assign(words + 1, words + count);
  return result;
}

/// Trains and prints the outcome. Returns the exit code.
int host(caf::actor_system& system, const troupe::function& train, troupe::trainer_config config) {
  auto self = caf::scoped_actor{system};
  auto listening = self->spawn<listener>();
  auto trainer = troupe::spawn_trainer(system, train, std::move(config));
  self->monitor(trainer);
  self->send(trainer, troupe::actors::run_observer{listening});

  auto code = 1;
  self->request(trainer, caf::infinite, troupe::fit_request{})
      .receive(
          [&](const troupe::run_result& result) {
            code = result.exit_code();
            if (code == 0)
              std::printf("%s after step %llu\nstate %s\n", troupe::to_string(result.status).c_str(),
                          static_cast<unsigned long long>(result.steps), result.state_sha256.c_str());
            else
              std::fprintf(stderr, "composed: %s\n", result.reason.message.c_str());
          },
          [](const caf::error& reason) { std::fprintf(stderr, "composed: %s\n", caf::to_string(reason).c_str()); });
  // The trainer terminates after it has answered.
  self->receive([&](const caf::down_msg& x) {
    std::printf("the trainer has ended%s\n", x.reason ? (" with " + caf::to_string(x.reason)).c_str() : "");
  });
  self->request(listening, caf::infinite, heard_request{})
      .receive(
          [](const heard& x) {
            std::printf("heard: started %u, progress %s, checkpoints %u\n", x.started, x.progress > 0 ? "yes" : "no",
                        x.saved);
          },
          [](const caf::error&) {});
  self->send_exit(listening, caf::exit_reason::user_shutdown);
  return code;
}

} // namespace composed

int main(int argc, char** argv) {
  auto train = troupe::function{"train", example::train};
  troupe::run_if_worker({train}); // first: in a worker process this trains and does not return
  caf::init_global_meta_objects<caf::id_block::composed>();
  troupe::init_meta_objects();
  composed::configuration config;
  if (auto reason = config.parse(argc, argv)) {
    std::fprintf(stderr, "composed: %s\n", caf::to_string(reason).c_str());
    return 2;
  }
  if (caf::get_or(config.content, "help", false))
    return 0;
  try {
    auto run = composed::describe_run(config);
    troupe::value_or_throw(troupe::prepare(config, run.cluster)); // before the system is created
    caf::actor_system system{config};
    return composed::host(system, train, std::move(run));
  } catch (const std::exception& x) {
    std::fprintf(stderr, "composed: %s\n", x.what());
    return 1;
  }
}
