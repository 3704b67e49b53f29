#include <troupe/data/evaluation.hpp>

#include <algorithm>

namespace troupe::data {

void for_each_batch(const data_set& set, std::span<const std::uint64_t> samples, std::uint64_t batch_samples,
                    const std::function<void(const batch& piece)>& function) {
  if (batch_samples == 0)
    throw exception{errc::invalid_argument, "batches of 0 samples: take at least 1"};
  batch piece;
  while (!samples.empty()) {
    auto own = samples.first(std::min<std::size_t>(samples.size(), batch_samples));
    value_or_throw(set.fetch(own, piece));
    function(piece);
    samples = samples.subspan(own.size());
  }
}

void for_each_batch(exact_reduction& reduction, const data_set& set, std::span<const std::uint64_t> samples,
                    std::uint64_t batch_samples, const std::function<void(const batch& piece)>& function) {
  for_each_batch(set, samples, batch_samples, [&](const batch& piece) {
    function(piece);
    reduction.heartbeat();
  });
}

std::vector<double> evaluate(exact_reduction& reduction, const data_set& set, std::size_t number_of_sums,
                             const batch_evaluation& function, std::uint64_t batch_samples) {
  if (set.size() == 0)
    throw exception{errc::invalid_argument, "a data set without samples cannot be evaluated"};
  return reduction.sum(set.size(), number_of_sums, [&](std::span<const std::uint64_t> samples, std::span<double> sums) {
    for_each_batch(reduction, set, samples, batch_samples, [&](const batch& piece) { function(piece, sums); });
  });
}

std::vector<double> evaluate(train_context& ctx, const data_set& set, std::size_t number_of_sums,
                             const batch_evaluation& function, std::uint64_t batch_samples) {
  auto reduction = context_reduction{ctx};
  return evaluate(reduction, set, number_of_sums, function, batch_samples);
}

} // namespace troupe::data
