#include <troupe/actors/decisions/plan_comparison.hpp>

#include <fmt/format.h>

namespace troupe::actors {

namespace {

/// Appends "name: a here, b there" where the two differ.
template <class T>
void compare(std::vector<std::string>& out, const std::string& what, const T& left, const std::string& left_name,
             const T& right, const std::string& right_name) {
  if (left == right)
    return;
  out.push_back(fmt::format("{}: {} {}, {} {}", what, left, left_name, right, right_name));
}

} // namespace

std::string join_lines(const std::vector<std::string>& lines) {
  auto result = std::string{};
  for (const auto& line : lines)
    result += "\n  " + line;
  return result;
}

std::optional<error> compare_plans(const run_plan& ours, const std::string& here, const run_plan& theirs,
                                   const std::string& there) {
  std::vector<std::string> differences;
  compare(differences, "steps", ours.steps, here, theirs.steps, there);
  compare(differences, "batch size", ours.batch_samples, here, theirs.batch_samples, there);
  compare(differences, "samples in the data set", ours.data_samples, here, theirs.data_samples, there);
  compare(differences, "data fingerprint", ours.data_fingerprint, here, theirs.data_fingerprint, there);
  compare(differences, "tracked tensors", ours.tensors, here, theirs.tensors, there);
  compare(differences, "loop", ours.loop, here, theirs.loop, there);
  if (differences.empty())
    return std::nullopt;
  return error{errc::mismatch, "the workers disagree about the run:" + join_lines(differences) +
                                   "\nGive all hosts the same data and the training function the same configuration"};
}

std::optional<error> compare_with_checkpoint(const run_plan& plan, const resumed_plan& old) {
  std::vector<std::string> differences;
  auto here = std::string{"now"};
  auto there = std::string{"in the checkpoint"};
  compare(differences, "batch size", plan.batch_samples, here, old.batch_samples, there);
  compare(differences, "data fingerprint", plan.data_fingerprint, here, old.data_fingerprint, there);
  compare(differences, "tracked tensors", plan.tensors, here, old.tensors, there);
  if (differences.empty())
    return std::nullopt;
  return error{errc::mismatch,
               "this run cannot go on from its checkpoint, because its result would be that of no single "
               "program and data:" +
                   join_lines(differences) + "\n" + std::string{ways_on}};
}

} // namespace troupe::actors
