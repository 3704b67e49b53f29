// Finds the learning rate of charlm's model that gives the least held-out loss: trains with several at once, and drops
// the worse part of them at each rung (successive halving). The winner and its bits are the same on any cluster.
#include <charlm/corpus.hpp>
#include <charlm/model.hpp>
#include <charlm/training.hpp>
#include <command_line.hpp>
#include <search/conductor.hpp>
#include <search/record.hpp>
#include <serve/signal_watch.hpp>

#include <troupe/actor_system.hpp>
#include <troupe/app.hpp>
#include <troupe/runtime/node_host.hpp>
#include <troupe/runtime/nodes.hpp>

#include <caf/all.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace {

struct options {
  std::string text = "/usr/share/common-licenses";
  search::search_plan plan;
  std::uint64_t first_rung = 100;
  std::uint64_t steps = 800;
  std::uint64_t batch = 512;
  std::size_t embedding = charlm::model_shape{}.embedding;
  std::size_t hidden = charlm::model_shape{}.hidden;
  std::string name = "search";
  std::filesystem::path storage = "runs";
  std::string workers = "1";
  std::size_t at_once = 0;
  bool keep_all = false;
  bool quiet = false;
  troupe::trainer_config trainer;
};

/// As long as other trials take.
constexpr auto usual_wait = std::chrono::hours{24 * 365};

void describe(CLI::App& app, options& o) {
  o.plan.learning_rates = {0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064};
  app.add_option("--learning-rates", o.plan.learning_rates, "The learning rates to compare, separated by commas")
      ->delimiter(',')
      ->check(troupe::apps::positive_number())
      ->capture_default_str();
  app.add_option("--first-rung", o.first_rung, "The step at which trials are compared first")->capture_default_str();
  app.add_option("--factor", o.plan.factor,
                 "Of the trials at a rung one in so many goes on, to the rung of so many times the steps")
      ->capture_default_str();
  app.add_option("--steps", o.steps, "The last rung")->capture_default_str();
  app.add_option("--text", o.text, "A text file, or a directory of text files")->capture_default_str();
  app.add_option("--batch", o.batch, "Samples in each step's batch")->capture_default_str();
  app.add_option("--embedding", o.embedding, "Size of a byte's embedding, a multiple of 16")->capture_default_str();
  app.add_option("--hidden", o.hidden, "Units of the hidden layer, a multiple of 16")->capture_default_str();
  app.add_option("--seed", o.plan.seed, "Determines initial parameters and the order of the data")
      ->capture_default_str();
  app.add_option("--name", o.name, "Name of the search's directory; a search of this name that exists goes on")
      ->capture_default_str();
  app.add_option("--storage", o.storage, "Directory that contains the search's directory")->capture_default_str();
  app.add_flag("--keep-all", o.keep_all, "Keep the checkpoints of trials that go no further");
  app.add_flag("--quiet", o.quiet, "Print the winner only");

  auto* cluster = app.add_option_group("Cluster");
  cluster->add_option("--workers", o.workers, "Worker processes of each trial; does not affect the result")
      ->check(troupe::apps::worker_range_text())
      ->capture_default_str();
  cluster->add_option("--at-once", o.at_once,
                      "Trials that may train at the same time; further ones wait (default: as many as this machine has "
                      "CPUs for; on nodes all, as far as they get leases)");
  cluster->add_option("--shards", o.trainer.scaling.shards, "Logical shards of each batch; affects the result")
      ->capture_default_str();
  o.trainer.scaling.resources_per_worker.cpus = 1;
  cluster
      ->add_option("--cpus-per-worker", o.trainer.scaling.resources_per_worker.cpus,
                   "CPUs that each worker leases; 0: shared")
      ->capture_default_str();
  troupe::apps::add_nodes(*cluster, o.trainer.cluster);
  troupe::apps::add_leases(*cluster, o.trainer.scaling);
  o.trainer.scaling.wait_for_resources = usual_wait;
  cluster->get_option("--wait")->default_str("a year");
  cluster->add_option("--keys", o.trainer.cluster.keys,
                      "Directory of keys (default: $TROUPE_KEYS, else ~/.config/troupe/keys)");
}

/// The trials that this machine can train at the same time.
std::size_t trials_that_fit(const troupe::trainer_config& trial, std::uint32_t cpus) {
  const auto each = trial.scaling.num_workers.max * trial.scaling.resources_per_worker.cpus;
  return std::max<std::size_t>(1, each == 0 ? cpus : cpus / each);
}

/// Makes `best` a link to the winner's run.
void link_best(const std::filesystem::path& directory, const std::string& winner) {
  const auto next = directory / ".best";
  std::filesystem::remove(next);
  std::filesystem::create_symlink(winner, next);
  std::filesystem::rename(next, directory / "best");
}

void apply(options& o) {
  o.plan.rungs = troupe::value_or_throw(search::make_rungs(o.first_rung, o.steps, o.plan.factor));
  const auto shape = charlm::model_shape{16, o.embedding, o.hidden};
  troupe::value_or_throw(charlm::validate(shape));
  const auto text = troupe::value_or_throw(charlm::load_corpus(o.text, shape.context));
  auto& t = o.trainer;
  t.scaling.num_workers = troupe::value_or_throw(troupe::parse_worker_range(o.workers));
  t.config = {{"embedding", o.embedding}, {"hidden", o.hidden}, {"batch", o.batch}};
  t.options = {{"text", std::filesystem::absolute(o.text).string()}};
  t.run.name = o.name;
  t.run.seed = o.plan.seed;
  t.checkpoint.num_to_keep = 1;
  troupe::value_or_throw(troupe::validate(t));
  t.run.storage_path = o.storage / o.name;
  o.plan.config = t.config;
  o.plan.config["shards"] = t.scaling.shards;
  o.plan.config["text_bytes"] = text.bytes().size();
}

/// Stops a search for a signal.
class stopper {
 public:
  void set_conductor(caf::actor conductor) {
    auto lock = std::lock_guard{mutex_};
    conductor_ = std::move(conductor);
    if (conductor_ && signal_ != 0)
      caf::anon_send(conductor_, troupe::stop_request{false});
  }

  void stop(int signal) {
    auto lock = std::lock_guard{mutex_};
    signal_ = signal;
    std::fputs("troupe-search: the trials stop with a checkpoint; press Ctrl-C again to stop at once\n", stderr);
    if (conductor_)
      caf::anon_send(conductor_, troupe::stop_request{false});
  }

  /// 0 without one.
  [[nodiscard]] int signal() const {
    auto lock = std::lock_guard{mutex_};
    return signal_;
  }

 private:
  mutable std::mutex mutex_;
  caf::actor conductor_;
  int signal_ = 0;
};

/// Runs the search to its end.
search::search_result conduct(const options& o, search::search_record& record, stopper& stops) {
  auto trial = o.trainer;
  if (const auto named = troupe::runtime::complete_nodes(trial.cluster); !named)
    throw troupe::exception{named.error()};
  auto at_once = o.at_once > 0 ? o.at_once : o.plan.learning_rates.size();
  std::optional<troupe::runtime::node_host> here;
  // The trials lease this machine's resources from one node.
  if (trial.cluster.is_embedded()) {
    troupe::runtime::node_options node;
    node.keys = trial.cluster.keys;
    here.emplace(troupe::value_or_throw(troupe::runtime::node_host::start(node)));
    trial.cluster.nodes = {troupe::to_string(here->address())};
    if (o.at_once == 0)
      at_once = trials_that_fit(trial, here->offered().cpus);
  }
  caf::actor_system_config system_config;
  system_config.set("caf.scheduler.policy", "sharing");
  system_config.set("caf.scheduler.max-threads", 2);
  troupe::value_or_throw(troupe::prepare(system_config, trial.cluster));
  caf::actor_system system{system_config};
  const auto result = std::make_shared<std::promise<search::search_result>>();
  search::search_config config;
  config.base = std::move(trial);
  config.at_once = at_once;
  config.keep_all = o.keep_all;
  config.report = [&o](const std::string& line) {
    if (!o.quiet)
      std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  config.ended = [result](const search::search_result& x) { result->set_value(x); };
  const auto train = troupe::function{"train", charlm::train, {charlm::make_framework()}};
  stops.set_conductor(search::spawn_conductor(system, train, record, std::move(config)));
  const auto ended = result->get_future().get();
  stops.set_conductor(nullptr);
  return ended;
}

int run(options& o) {
  apply(o);
  auto record = troupe::value_or_throw(search::search_record::open(o.trainer.run.storage_path, o.plan));
  stopper stops;
  const auto signals = serve::signal_watch{{[&] { stops.stop(SIGHUP); }, [&](int signal) { stops.stop(signal); }}};
  const auto result = conduct(o, record, stops);
  if (result.status == search::search_status::stopped)
    return 128 + stops.signal();
  if (result.status == search::search_status::failed)
    throw troupe::exception{result.reason};
  const auto winner = record.halving().winner();
  if (!winner)
    throw troupe::exception{troupe::errc::user_error,
                            "no learning rate gives a finite held-out loss: try smaller ones"};
  link_best(o.trainer.run.storage_path, search::name_of(*winner));
  const auto& best = record.best();
  std::printf("best learning rate %g: held-out loss %.4f after step %llu; state %.16s; checkpoint %s\n",
              o.plan.learning_rates[*winner], best.loss.value(), static_cast<unsigned long long>(best.steps),
              best.state_sha256.c_str(), best.checkpoint.c_str());
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  const auto program = troupe::app{argc, argv, {troupe::function{"train", charlm::train, {charlm::make_framework()}}}};
  options o;
  CLI::App cli{"Finds the learning rate with which charlm's language model learns a text best. Trains with several at "
               "once and drops the worse ones at each rung. The winner, and its bits, do not depend on the nodes, the "
               "workers or lost processes.",
               "troupe-search"};
  describe(cli, o);
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  try {
    troupe::init_meta_objects();
    return run(o);
  } catch (const std::exception& x) {
    std::fprintf(stderr, "troupe-search: %s\n", x.what());
    return 1;
  }
}
