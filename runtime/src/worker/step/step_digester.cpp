#include "worker/step/step_digester.hpp"

#include "worker/step/redundant_check.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::runtime {

namespace {

/// Pieces are of about equal size, so that ranks share the work, and no smaller than is worth a digest.
constexpr std::uint64_t pieces_of_gradient = 64;
constexpr std::uint64_t least_elements = 4096;

} // namespace

step_digester::step_digester(const loop_plan& plan, const step_bucket& bucket, std::vector<gradient_tensor> names,
                             worker_group& group)
    : group_(group) {
  const auto most = std::max(plan.gradient_elements / pieces_of_gradient, least_elements);
  for (const auto& tensor : parts_of_gradient(std::move(names), plan.gradient_elements))
    for (std::uint64_t done = 0; done < tensor.elements; done += most) {
      const auto count = std::min(most, tensor.elements - done);
      pieces_.push_back({(tensor.first + done) * sizeof(float), count * sizeof(float)});
      names_.push_back(count == tensor.elements
                           ? tensor.name
                           : fmt::format("{} (its elements {} to {})", tensor.name, done, done + count - 1));
    }
  pieces_.push_back({bucket.metrics_offset(), plan.metrics.size() * sizeof(double)});
  names_.emplace_back("the sums of the metrics");
}

step_digest step_digester::digest(step_id step, const gradient_exchange& exchange, const tracked_state& state,
                                  rank_id mine, std::size_t ranks) {
  step_digest result;
  const auto total = pieces_.size();
  const auto first_of = [&](std::size_t rank) { return total * rank / ranks; };
  result.pieces = static_cast<std::uint32_t>(total);
  result.first = static_cast<std::uint32_t>(first_of(mine.value));
  const auto next = (mine.value + 1) % ranks;
  auto count = first_of(mine.value + 1) - result.first;
  if (ranks > 1)
    count += first_of(next + 1) - first_of(next);
  const auto reduced = exchange.result();
  result.digests.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    result.digests.push_back(digest_of(pieces_[(result.first + i) % total], reduced));
  result.state = state.digest_of_slice(step.value);
  if (!names_.empty())
    result.names = nlohmann::json{{"pieces", std::exchange(names_, {})}, {"slices", state.slices()}}.dump();
  return result;
}

std::uint64_t step_digester::digest_of(const piece& which, const reduced_memory& reduced) {
  if (const auto* on_host = std::get_if<std::span<const std::byte>>(&reduced))
    return serialization::xxh3(on_host->subspan(which.first, which.size));
  copy_.resize(which.size);
  const auto& on_gpu = std::get<device_span<const std::byte>>(reduced);
  if (!copy_.empty())
    value_or_throw(group_.gpu().copier->read(on_gpu.subspan(which.first, which.size), copy_));
  return serialization::xxh3(copy_);
}

} // namespace troupe::runtime
