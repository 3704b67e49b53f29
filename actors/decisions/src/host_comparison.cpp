#include <troupe/actors/decisions/host_comparison.hpp>

#include <troupe/actors/decisions/plan_comparison.hpp>
#include <troupe/actors/decisions/program_chain.hpp>

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

std::vector<std::string> host_comparison::differences_from(const std::string& of_run,
                                                           const std::string& numerics) const {
  // Equal texts are equal fingerprints, and need not be read.
  if (of_run.empty() || of_run == numerics)
    return {};
  return how_.allow_changed_libraries ? how_.compare(without_libraries(numerics), without_libraries(of_run))
                                      : how_.compare(numerics, of_run);
}

std::optional<error> host_comparison::find_difference(const worker_record& who, const worker_ready& message,
                                                      const worker_table& workers, const std::string& of_run) const {
  if (how_.compare == nullptr)
    return std::nullopt;
  auto against = std::string{"what the run has computed on before"};
  auto way_on = std::string{};
  auto differences = differences_from(of_run, message.numerics);
  if (!differences.empty() && how_.compare(without_libraries(message.numerics), without_libraries(of_run)).empty())
    way_on = "; or go on with other libraries (run.allow_changed.libraries): --allow-changed libraries";
  // Where libraries may have changed, the workers must have the same ones.
  if (of_run.empty() || (differences.empty() && how_.allow_changed_libraries))
    for (const auto& [id, other] : workers)
      if (other.numerics) {
        against = fmt::format("{} on {}", name_of(other.place), other.host);
        differences = *other.numerics == message.numerics ? std::vector<std::string>{}
                                                          : how_.compare(message.numerics, *other.numerics);
        break;
      }
  if (differences.empty())
    return std::nullopt;
  return error{errc::mismatch,
               fmt::format("{} on {} computes differently from {}, so that the result would depend on the host:{}\n"
                           "Use hosts of one kind, or set run.allow_mixed_hosts (--allow-mixed-hosts; the result is "
                           "then marked as not exact){}",
                           name_of(who.place), message.host, against, join_lines(differences), way_on)};
}

} // namespace troupe::actors
