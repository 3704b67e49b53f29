#include <troupe/actors/decisions/host_comparison.hpp>

#include <troupe/actors/decisions/plan_comparison.hpp>

#include <fmt/format.h>

namespace troupe::actors {

std::optional<host_comparison::refusal> host_comparison::refuse(const worker_record& who, const worker_ready& message,
                                                                const worker_table& workers,
                                                                const std::string& of_run) {
  refusal result;
  if (message.build_id != how_.build_id) {
    result.reason = {errc::program_mismatch,
                     fmt::format("{} on {} runs build {}, the driver is build {}: install the same build on all hosts",
                                 name_of(who.place), message.host, message.build_id, how_.build_id)};
    result.why = "a worker runs another build";
    return result;
  }
  auto difference = find_difference(who, message, workers, of_run);
  if (difference && !how_.allow_mixed_hosts) {
    result.reason = std::move(*difference);
    result.why = "numerics fingerprints differ";
    return result;
  }
  if (difference)
    allowed_difference_ = std::move(difference);
  return std::nullopt;
}

std::optional<error> host_comparison::find_difference(const worker_record& who, const worker_ready& message,
                                                      const worker_table& workers, const std::string& of_run) const {
  if (how_.compare == nullptr)
    return std::nullopt;
  auto reference = of_run;
  auto against = std::string{"what the run has computed on before"};
  if (reference.empty())
    for (const auto& [id, other] : workers)
      if (other.numerics) {
        reference = *other.numerics;
        against = fmt::format("{} on {}", name_of(other.place), other.host);
        break;
      }
  // Equal texts are equal fingerprints, and need not be read.
  if (reference.empty() || reference == message.numerics)
    return std::nullopt;
  auto differences = how_.compare(message.numerics, reference);
  if (differences.empty())
    return std::nullopt;
  return error{errc::mismatch,
               fmt::format("{} on {} computes differently from {}, so that the result would depend on the host:{}\n"
                           "Use hosts of one kind, or set run.allow_mixed_hosts (--allow-mixed-hosts; the result is "
                           "then marked as not exact)",
                           name_of(who.place), message.host, against, join_lines(differences))};
}

} // namespace troupe::actors
