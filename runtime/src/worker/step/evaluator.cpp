#include "worker/step/evaluator.hpp"

#include "worker/step/step_driver.hpp"

#include <troupe/collectives/leaf_accumulator.hpp>

#include <variant>

namespace troupe::runtime {

std::vector<double> evaluator::evaluate(std::uint64_t samples, std::size_t number_of_sums, const evaluation& function) {
  auto plan = members_.locked()->plan_evaluation();
  if (std::holds_alternative<actors::evaluation_from_members>(plan))
    return take_from_members();
  if (auto* known = std::get_if<actors::evaluation_known>(&plan))
    return std::move(known->values);
  for (;;) {
    const auto number = members_.protocol().evaluations() + 1;
    try {
      auto values = evaluate_shards(samples, number_of_sums, function);
      members_.locked()->on_evaluated(number, std::move(values));
    } catch (const exception& x) {
      if (!survives_loss_ || !members_.is_loss_of_group(x.reason()))
        throw;
      members_.regroup(x.reason());
    }
    // Another rank may have had the result before the group was lost.
    if (!members_.protocol().is_evaluated(number))
      continue;
    members_.locked()->on_evaluation_returned();
    const auto& values = members_.protocol().last_evaluation();
    if (members_.protocol().is_in_steps())
      members_.stager().push_evaluation(values);
    return values;
  }
}

std::vector<double> evaluator::take_from_members() {
  auto scope = activity::scope{activity_, activity_kind::control};
  auto frame = members_.catch_up().frame();
  // The step cannot be repeated to its end.
  if (!frame)
    throw step_interrupted{};
  auto* evaluation = std::get_if<evaluation_frame>(*frame);
  if (evaluation == nullptr)
    throw exception{errc::mismatch, "this joining worker evaluates what the others did not: the training function does "
                                    "not do the same on all workers"};
  auto values = std::move(evaluation->values);
  members_.catch_up().drop_frame();
  members_.locked()->on_evaluated(members_.protocol().evaluations(), values);
  return values;
}

std::vector<double> evaluator::evaluate_shards(std::uint64_t samples, std::size_t number_of_sums,
                                               const evaluation& function) {
  if (!members_.group().has_communicator())
    throw exception{errc::aborted, "there is no group"};
  auto& group = members_.group().communicator();
  const auto shards = std::uint64_t{settings_.shards};
  auto layout = collectives::bucket_layout{{{dtype::f64, number_of_sums}}};
  auto sums = value_or_throw(collectives::leaf_accumulator::make(layout, settings_.shards, group.memory()));
  auto result = value_or_throw(group.make_bucket(layout));
  const auto range = members_.protocol().shards();
  std::vector<std::uint64_t> indices;
  sums.begin(range);
  for (auto v = range.first; v < range.last; ++v) {
    auto bucket = sums.next(shard_id{v});
    indices.clear();
    for (auto i = v * samples / shards; i < (v + 1) * samples / shards; ++i)
      indices.push_back(i);
    function(indices, {reinterpret_cast<double*>(bucket.data()), number_of_sums});
  }
  sums.end();
  auto scope = activity::scope{activity_, activity_kind::collective};
  value_or_throw(
      group.reduce_leaves(layout, settings_.shards, members_.protocol().ownership(), sums.partials(), *result));
  const auto* first = reinterpret_cast<const double*>(result->bytes().data());
  return {first, first + number_of_sums};
}

} // namespace troupe::runtime
