#include <troupe/config.hpp>

#include <troupe/gpu_share.hpp>
#include <troupe/mirror_place.hpp>

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace troupe {

namespace {

bool is_file_name(const std::string& name) {
  auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= 128 && name.front() != '.' && std::ranges::all_of(name, allowed);
}

/// 0 alone stands for the driver's process.
bool is_number_of_workers(worker_range x) {
  return x.min <= x.max && (x.min > 0 || x.max == 0);
}

expected<void> validate_mirror(const mirror_config& mirror, const run_config& run) {
  if (mirror.to.empty())
    return {};
  if (auto valid = validate_mirror_place(mirror.to); !valid)
    return fail(valid.error().code, fmt::format("checkpoint.mirror.to: {}", valid.error().message));
  const auto normal = [](const std::filesystem::path& path) { return (path / "").lexically_normal(); };
  if (!is_remote_place(mirror.to) && normal(mirror.to) == normal(run.storage_path))
    return fail(errc::invalid_argument,
                fmt::format("checkpoint.mirror.to is {}, which is run.storage_path: name a directory on another device",
                            mirror.to));
  if (mirror.num_to_keep == 0)
    return fail(errc::invalid_argument, "checkpoint.mirror.num_to_keep is 0: at least the latest checkpoint is kept");
  if (mirror.final_wait.count() < 0)
    return fail(errc::invalid_argument, "checkpoint.mirror.final_wait must not be negative");
  if (mirror.rclone.empty())
    return fail(errc::invalid_argument, "checkpoint.mirror.rclone is empty: name the program");
  return {};
}

expected<void> validate(const monitoring_config& config) {
  if (!config.metrics_address.empty())
    if (const auto where = parse_endpoint(config.metrics_address); !where)
      return fail(errc::invalid_argument,
                  fmt::format("monitoring.metrics_address (--metrics): {}", where.error().message));
  return {};
}

/// `what` says what they are, for messages.
expected<void> validate_addresses(std::vector<std::string> addresses, std::string_view what) {
  for (const auto& each : addresses) {
    TROUPE_TRY(auto where, parse_endpoint(each));
    if (where.port == 0)
      return fail(errc::invalid_argument,
                  fmt::format("{} '{}' has port 0: give the port that its caf-node printed", what, each));
  }
  std::ranges::sort(addresses);
  if (auto twice = std::ranges::adjacent_find(addresses); twice != addresses.end())
    return fail(errc::invalid_argument, fmt::format("{} '{}' is listed more than once", what, *twice));
  return {};
}

expected<void> validate_nodes(const cluster_config& cluster) {
  TROUPE_TRY(validate_addresses(cluster.nodes, "node"));
  const auto& source = cluster.discover;
  if (!cluster.nodes.empty() && source.is_set())
    return fail(errc::invalid_argument,
                "cluster.nodes and cluster.discover are both set: name the nodes themselves, or "
                "where to ask for them");
  if (source.is_set() && source.where.empty())
    return fail(errc::invalid_argument, "cluster.discover names no file, no name and no script");
  return {};
}

} // namespace

resources resources_of_worker(const scaling_config& scaling) {
  auto result = scaling.resources_per_worker;
  if (scaling.use_gpu && result.gpus == 0)
    result.gpus = 1;
  return result;
}

expected<void> validate(const trainer_config& config) {
  const auto& scaling = config.scaling;
  if (!is_number_of_workers(scaling.num_workers))
    return fail(errc::invalid_argument, fmt::format("scaling.num_workers is {}: give at least one worker, and in a "
                                                    "range the smaller number first",
                                                    to_string(scaling.num_workers)));
  if (scaling.num_workers.max == 0 && !config.cluster.is_embedded())
    return fail(errc::invalid_argument, "scaling.num_workers is 0: a run that trains in the driver's process takes no "
                                        "cluster.nodes or cluster.discover");
  if (scaling.shards == 0)
    return fail(errc::invalid_argument, "scaling.shards is 0: a batch needs at least one shard (the default is 8)");
  if (scaling.shards > 65536)
    return fail(errc::invalid_argument,
                fmt::format("scaling.shards is {}: at most 65536 are supported", scaling.shards));
  if (scaling.num_workers.max > scaling.shards)
    return fail(errc::invalid_argument,
                fmt::format("{} workers cannot share {} shards: set scaling.shards to at least the number of workers "
                            "(the result depends on it, as on the batch size), or ask for fewer workers",
                            scaling.num_workers.max, scaling.shards));
  if (auto gpus = scaling.resources_per_worker.gpus; !is_gpu_number(gpus))
    return fail(errc::invalid_argument,
                fmt::format("scaling.resources_per_worker.gpus is {}: a worker takes whole GPUs (1, 2, ...), or shares "
                            "one with others of its run (0.5, 0.25, ... down to {})",
                            nlohmann::json(gpus).dump(), least_gpu_share));
  if (config.run.transport == transport_mode::nccl && resources_of_worker(scaling).gpus == 0)
    return fail(errc::invalid_argument, "run.transport is nccl, which carries gradients between GPUs, and the workers "
                                        "have none: set scaling.use_gpu, or leave run.transport at its default");
  if (!config.run.name.empty() && !is_file_name(config.run.name))
    return fail(errc::invalid_argument, fmt::format("run.name '{}' cannot name a directory: use letters, digits, '.', "
                                                    "'_' and '-', at most 128, not starting with '.'",
                                                    config.run.name));
  if (config.run.name == "latest")
    return fail(errc::invalid_argument,
                "run.name is 'latest', which is the link to the run that was begun last: choose "
                "another name");
  if (config.run.name.empty() && config.run.resume == resume_mode::required)
    return fail(errc::invalid_argument, "run.resume is resume_mode::required (--resume required), and a run without a "
                                        "name is a new one: set run.name (--name) to that of the run to resume");
  if (config.run.storage_path.empty())
    return fail(errc::invalid_argument, "run.storage_path is empty: name the directory that is to hold the run's own");
  if (config.checkpoint.num_to_keep == 0)
    return fail(errc::invalid_argument, "checkpoint.num_to_keep is 0: at least the latest checkpoint is kept");
  if (config.checkpoint.num_best_to_keep == 0)
    return fail(errc::invalid_argument, "checkpoint.num_best_to_keep is 0: give at least 1, or leave "
                                        "checkpoint.score_attribute empty to keep none for its score");
  if (config.checkpoint.score_order != score_mode::max && config.checkpoint.score_order != score_mode::min)
    return fail(errc::invalid_argument, "checkpoint.score_order is neither score_mode::max nor score_mode::min");
  if (config.checkpoint.score_order == score_mode::min && config.checkpoint.score_attribute.empty())
    return fail(errc::invalid_argument, "checkpoint.score_order is set but checkpoint.score_attribute is empty: name "
                                        "the metric whose smallest value is the best");
  if (config.checkpoint.max_in_flight > 64)
    return fail(errc::invalid_argument, fmt::format("checkpoint.max_in_flight is {}: each takes memory for a copy of "
                                                    "the state; at most 64 are supported",
                                                    config.checkpoint.max_in_flight));
  TROUPE_TRY(validate_mirror(config.checkpoint.mirror, config.run));
  if (config.run.start_timeout.count() <= 0 || config.run.collective_timeout.count() <= 0 ||
      config.cluster.connect_timeout.count() <= 0)
    return fail(errc::invalid_argument, "run.start_timeout, run.collective_timeout and cluster.connect_timeout must be "
                                        "positive");
  if (config.run.time_limit.count() < 0)
    return fail(errc::invalid_argument, "run.time_limit must not be negative; 0 is no limit");
  if (config.failure.heartbeat_timeout.count() < 500 || config.failure.report_after.count() <= 0 ||
      config.failure.replace_after.count() <= 0 || config.failure.unreachable_after.count() <= 0)
    return fail(errc::invalid_argument,
                "failure.heartbeat_timeout must be at least 500 ms, and failure.report_after, failure.replace_after "
                "and failure.unreachable_after must be positive");
  if (config.run.debug_rank && *config.run.debug_rank >= scaling.num_workers.max)
    return fail(errc::invalid_argument,
                fmt::format("run.debug_rank is {}, but ranks are below scaling.num_workers, which is {}{}",
                            *config.run.debug_rank, to_string(scaling.num_workers),
                            scaling.num_workers.max == 0 ? ": start the driver in the debugger" : ""));
  if (config.failure.debugger != debugger_mode::wait && config.failure.debugger != debugger_mode::replace)
    return fail(errc::invalid_argument, "failure.debugger is neither debugger_mode::wait nor debugger_mode::replace");
  if (config.failure.driver_grace.count() < 0)
    return fail(errc::invalid_argument, "failure.driver_grace must not be negative");
  if (scaling.scale_up_wait.count() < 0 || scaling.wait_for_workers.count() <= 0 ||
      scaling.wait_for_resources.count() < 0)
    return fail(errc::invalid_argument, "scaling.scale_up_wait and scaling.wait_for_resources must not be negative, "
                                        "and scaling.wait_for_workers must be positive");
  if (!config.config.is_object())
    return fail(errc::invalid_argument, fmt::format("config must be a JSON object, not {}", config.config.type_name()));
  if (!config.options.is_object())
    return fail(errc::invalid_argument,
                fmt::format("options must be a JSON object, not {}", config.options.type_name()));
  if (config.cluster.ports)
    if (auto valid = validate_ports(*config.cluster.ports); !valid)
      return fail(valid.error().code, fmt::format("cluster.ports: {}", valid.error().message));
  TROUPE_TRY(validate(config.monitoring));
  TROUPE_TRY(validate_nodes(config.cluster));
  return {};
}

expected<std::chrono::milliseconds> parse_duration(const std::string& text) {
  constexpr auto most = std::chrono::hours{24 * 3653};
  const auto wrong = [&text] {
    return fail(errc::invalid_argument,
                fmt::format("'{}' is not a time: give a number with s, m, h or d behind it, such "
                            "as 90s, 30m, 2h or 1h30m",
                            text));
  };
  const auto seconds_in = [](std::string_view unit) -> std::optional<double> {
    return unit.empty() || unit == "s" ? std::optional{1.0}
           : unit == "m"               ? std::optional{60.0}
           : unit == "h"               ? std::optional{3600.0}
           : unit == "d"               ? std::optional{86400.0}
                                       : std::nullopt;
  };
  auto seconds = 0.0;
  for (auto rest = std::string_view{text}; !rest.empty() || text.empty();) {
    const auto digits = std::min(rest.find_first_not_of("0123456789."), rest.size());
    auto value = 0.0;
    const auto number = rest.substr(0, digits);
    const auto [end, code] = std::from_chars(number.begin(), number.end(), value);
    const auto unit = rest.substr(digits, std::min(rest.find_first_of("0123456789.", digits), rest.size()) - digits);
    const auto factor = seconds_in(unit);
    // Of several numbers each has a unit.
    const auto is_whole = digits + unit.size() == text.size();
    if (code != std::errc{} || end != number.end() || !factor || (unit.empty() && !is_whole))
      return wrong();
    seconds += value * *factor;
    rest.remove_prefix(digits + unit.size());
  }
  if (seconds > std::chrono::duration<double>(most).count())
    return wrong();
  return std::chrono::milliseconds{std::llround(seconds * 1000)};
}

expected<worker_range> parse_worker_range(const std::string& text) {
  auto number = [](std::string_view digits) -> std::optional<std::uint32_t> {
    std::uint32_t value = 0;
    auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (code != std::errc{} || end != digits.data() + digits.size())
      return std::nullopt;
    return value;
  };
  auto all = std::string_view{text};
  auto mark = all.find_first_of("-:");
  auto least = number(all.substr(0, mark));
  auto most = mark == std::string_view::npos ? least : number(all.substr(mark + 1));
  if (!least || !most || !is_number_of_workers({*least, *most}))
    return fail(
        errc::invalid_argument,
        fmt::format("'{}' is not a number of workers: give a number, as in 4, a range, as in 2-8, or 0 to train in the "
                    "driver's process",
                    text));
  return worker_range{*least, *most};
}

std::string to_string(worker_range range) {
  return range.is_elastic() ? fmt::format("{}-{}", range.min, range.max) : fmt::to_string(range.min);
}

expected<endpoint> parse_endpoint(const std::string& text) {
  auto colon = text.rfind(':');
  auto wrong = [&] {
    return fail(errc::invalid_argument, fmt::format("'{}' is not HOST:PORT, as in 127.0.0.1:4000", text));
  };
  if (colon == std::string::npos || colon == 0)
    return wrong();
  auto host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  else if (host.find_first_of(":[]") != std::string::npos)
    return wrong();
  auto digits = text.substr(colon + 1);
  unsigned port = 0;
  auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (code != std::errc{} || end != digits.data() + digits.size() || digits.empty() || port > 65535)
    return wrong();
  return endpoint{std::move(host), static_cast<std::uint16_t>(port)};
}

std::string to_string(const endpoint& where) {
  auto bare = where.host.find(':') == std::string::npos;
  return bare ? fmt::format("{}:{}", where.host, where.port) : fmt::format("[{}]:{}", where.host, where.port);
}

} // namespace troupe
