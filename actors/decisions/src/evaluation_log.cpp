#include <troupe/actors/decisions/evaluation_log.hpp>

#include <troupe/error.hpp>

namespace troupe::actors {

void evaluation_log::add(std::uint64_t number, std::vector<double> values) {
  count_ = number;
  last_ = std::move(values);
}

std::vector<double> evaluation_log::take_from_members(std::uint32_t loop) {
  const auto number = since_loop_.size();
  if (!has_members_before(loop) || number >= of_members_[loop].size())
    throw exception{errc::mismatch, "this joining worker evaluates what the others did not: the training function does "
                                    "not do the same on all workers"};
  since_loop_.push_back(of_members_[loop][number]);
  return since_loop_.back();
}

} // namespace troupe::actors
