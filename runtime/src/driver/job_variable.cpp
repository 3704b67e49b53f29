#include <troupe/runtime/job_variable.hpp>

#include <troupe/node_names.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdlib>
#include <exception>

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
  if (config.cluster.is_embedded() && !job.nodes.empty()) {
    TROUPE_TRY(name_nodes(config.cluster, job.nodes));
    config.cluster.insecure = config.cluster.insecure || job.insecure;
    if (config.cluster.keys.empty())
      config.cluster.keys = job.keys;
  }
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

expected<void> complete_for_job(trainer_config& config) {
  if (const auto* text = std::getenv(job_variable)) {
    TROUPE_TRY(const auto job, parse_job_context(text));
    return complete(config, job);
  }
  return {};
}

void obey_job_variable(trainer_config& config) {
  const auto* text = std::getenv(job_variable);
  if (text == nullptr)
    return;
  auto job = value_or_throw(parse_job_context(text));
  // A program may have several trainers, and one run has one name.
  static std::atomic<unsigned> unnamed{0};
  if (config.run.name.empty())
    if (const auto number = ++unnamed; number > 1)
      job.name += fmt::format("-{}", number);
  if (const auto completed = complete(config, job); !completed)
    throw exception{completed.error()};
}

} // namespace runtime

} // namespace troupe
