#include <troupe/serialization/checkpoint/chunk_reuse.hpp>

#include <utility>

namespace troupe::serialization {

chunk_decision decide_chunk(std::uint64_t length_bytes, std::uint64_t xxh3, const std::optional<known_chunk>& before,
                            const reuse_policy& policy) {
  if (length_bytes < policy.least_bytes)
    return {chunk_place::part, "too small for a file of its own"};
  if (!before)
    return {chunk_place::part, "the previous checkpoint is not known"};
  if (before->xxh3 != xxh3)
    return {chunk_place::part, "changed"};
  if (before->checkpoints == 0)
    return {chunk_place::own_file, "unchanged for the first time"};
  if (before->checkpoints >= policy.checkpoints_per_file)
    return {chunk_place::own_file, "its file is in the maximum number of checkpoints"};
  return {chunk_place::link, "unchanged"};
}

std::span<const known_chunk> chunk_memory::known(const chunk_plan& plan, std::uint32_t part) const {
  if (committed_.directory.empty() || committed_.part != part || committed_.plan != plan)
    return {};
  return committed_.chunks;
}

void chunk_memory::written(chunk_plan plan, std::uint32_t part, std::vector<known_chunk> chunks) {
  written_ = record{{}, std::move(plan), part, std::move(chunks)};
}

void chunk_memory::committed(std::filesystem::path directory) {
  if (!written_)
    return;
  committed_ = std::move(*written_);
  committed_.directory = std::move(directory);
  written_.reset();
}

} // namespace troupe::serialization
