#include <troupe/actors/decisions/checkpoint_attempts.hpp>

#include <troupe/serialization/checkpoint/chunk_plan.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/serialization/files/digest.hpp>

namespace troupe::actors {

namespace {

serialization::manifest describe(const checkpoint_metadata& metadata, const checkpoint_part& part,
                                 std::chrono::sys_time<std::chrono::milliseconds> now) {
  serialization::manifest result;
  result.run = part.run;
  result.step = part.step;
  result.generation = part.generation;
  result.seed = metadata.seed;
  result.shards = metadata.shards;
  result.global_batch = metadata.batch_samples;
  result.tree_version = metadata.tree_version;
  result.program_build_id = metadata.build_id;
  result.configuration_json = metadata.configuration;
  result.configuration_digest = serialization::sha256_hex(serialization::bytes_of(metadata.configuration));
  result.earlier_programs_json = metadata.earlier_programs;
  result.data_fingerprint = metadata.data_fingerprint;
  result.numerics_fingerprint_json = metadata.numerics;
  result.metrics = part.metrics;
  result.values_json = part.values_json;
  result.world_size = part.world_size;
  result.finishes_run = part.finishes_run;
  result.created = now;
  return result;
}

} // namespace

bool may_be_in_use(std::string_view name, const run_id& run, generation_id generation, step_id over) {
  if (serialization::is_removed_name(name))
    return false;
  const auto its = serialization::parse_temporary_name(name);
  if (its && its->run != run)
    return false;
  if (!its || its->generation > generation || its->attempt >= serialization::first_last_copy)
    return true;
  return its->generation == generation && its->step > over;
}

std::optional<expected<complete_checkpoint>>
checkpoint_attempts::add(const checkpoint_part& part, std::chrono::sys_time<std::chrono::milliseconds> now) {
  auto id = key{part.generation, part.step, part.attempt};
  auto& [parts, began] = pending_.try_emplace(id, pending_attempt{{}, now}).first->second;
  parts.insert_or_assign(part.rank, part);
  if (parts.size() < part.world_size)
    return std::nullopt;
  const auto [whole, first_came] = std::move(pending_.extract(id).mapped());
  std::vector<serialization::part_report> reports;
  for (const auto& [rank, each] : whole) {
    if (each.reason.code != errc::none)
      return fail(each.reason);
    reports.push_back(each.report);
  }
  const auto& first = whole.begin()->second;
  complete_checkpoint result{serialization::temporary_name({first.run, first.step, first.generation, first.attempt}),
                             describe(metadata_, first, now), first_came};
  auto plan = serialization::plan_chunks(first.tensors, first.world_size);
  TROUPE_TRY(serialization::add_parts(result.content, first.tensors, plan, reports));
  return result;
}

} // namespace troupe::actors
