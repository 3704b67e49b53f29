#include <troupe/config.hpp>
#include <troupe/runtime/job_variable.hpp>

#include <troupe/node_names.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <optional>

namespace troupe {

NLOHMANN_JSON_SERIALIZE_ENUM(resume_mode, {{resume_mode::automatic, "auto"},
                                           {resume_mode::never, "never"},
                                           {resume_mode::required, "required"},
                                           {resume_mode::restart, "restart"}})

namespace runtime {

using nlohmann::json;

std::string to_text(const job_context& job) {
  return json{{"name", job.name},
              {"nodes", job.nodes},
              {"insecure", job.insecure},
              {"keys", job.keys.string()},
              {"mirror", job.mirror},
              {"time_limit_ms", job.time_limit.count()},
              {"wait_ms", job.wait_for_resources.count()},
              {"lock_wait_ms", job.lock_wait.count()},
              {"resume", job.resume},
              {"engine", job.job.engine},
              {"id", job.job.id},
              {"submission", job.job.submission}}
      .dump();
}

expected<job_context> parse_job_context(const std::string& text) {
  try {
    const auto parsed = json::parse(text);
    return job_context{parsed.at("name").get<std::string>(),
                       parsed.at("nodes").get<std::string>(),
                       parsed.at("insecure").get<bool>(),
                       parsed.at("keys").get<std::string>(),
                       parsed.at("mirror").get<std::string>(),
                       std::chrono::milliseconds{parsed.at("time_limit_ms").get<std::uint64_t>()},
                       std::chrono::milliseconds{parsed.at("wait_ms").get<std::uint64_t>()},
                       std::chrono::milliseconds{parsed.at("lock_wait_ms").get<std::uint64_t>()},
                       parsed.at("resume").get<resume_mode>(),
                       {parsed.at("engine").get<std::string>(), parsed.at("id").get<std::string>(),
                        parsed.at("submission").get<std::string>()}};
  } catch (const std::exception& x) {
    return fail(
        errc::invalid_argument,
        fmt::format("{} is for programs that `troupe submit` starts, and cannot be read: {}", job_variable, x.what()));
  }
}

expected<void> complete(trainer_config& config, const job_context& job) {
  if (config.run.name.empty())
    config.run.name = job.name;
  if (config.cluster.is_embedded() && !job.nodes.empty())
    TROUPE_TRY(name_nodes(config.cluster, job.nodes));
  config.cluster.insecure = config.cluster.insecure || job.insecure;
  if (config.cluster.keys.empty())
    config.cluster.keys = job.keys;
  if (config.checkpoint.mirror.to.empty())
    config.checkpoint.mirror.to = job.mirror;
  if (config.run.time_limit.count() == 0)
    config.run.time_limit = job.time_limit;
  if (config.scaling.wait_for_resources.count() == 0)
    config.scaling.wait_for_resources = job.wait_for_resources;
  if (config.run.lock_wait.count() == 0)
    config.run.lock_wait = job.lock_wait;
  if (config.run.resume == resume_mode::automatic)
    config.run.resume = job.resume;
  config.run.job = job.job;
  return {};
}

namespace {

/// This process's context, if it has one. Programs that it starts are drivers of their own.
const std::optional<expected<job_context>>& own_context() {
  static const auto result = []() -> std::optional<expected<job_context>> {
    const auto* text = std::getenv(job_variable);
    if (text == nullptr)
      return std::nullopt;
    auto read = parse_job_context(text);
    ::unsetenv(job_variable);
    for (const auto* name : {"TROUPE_JOB_START", "INVOCATION_ID"})
      if (const auto* start = std::getenv(name); read && start != nullptr && read->job.start.empty())
        read->job.start = start;
    return read;
  }();
  return result;
}

} // namespace

expected<void> complete_for_job(trainer_config& config) {
  const auto& own = own_context();
  if (!own)
    return {};
  if (!*own)
    return fail(own->error());
  return complete(config, **own);
}

void obey_job_variable(trainer_config& config) {
  const auto& own = own_context();
  // It may be asked again for the same run.
  if (!own || !config.run.job.engine.empty())
    return;
  auto job = value_or_throw(*own);
  // A program may have several trainers, and one run has one name.
  static std::atomic<unsigned> named{0};
  if (config.run.name.empty() || config.run.name == job.name)
    if (const auto number = ++named; number > 1 && config.run.name.empty())
      job.name += fmt::format("-{}", number);
  if (const auto completed = complete(config, job); !completed)
    throw exception{completed.error()};
}

} // namespace runtime

} // namespace troupe
