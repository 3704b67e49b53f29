#include "jobs/driver_restarts.hpp"

#include <troupe/result.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <string>

namespace troupe::runtime {

namespace {

/// What a shell says of a program that a signal ended.
constexpr auto signal_base = 128;

std::string with_last_line(std::string text, const exit_report& how) {
  // Blank lines say nothing.
  for (auto line = how.last_lines.rbegin(); line != how.last_lines.rend(); ++line)
    if (line->find_first_not_of(" \t\r") != std::string::npos)
      return text + ": " + *line;
  return text;
}

job_end end_by_code(int code, const exit_report& how) {
  if (code == 0)
    return {job_outcome::completed, 0, {}, 0};
  if (code == exit_out_of_time)
    return {job_outcome::stopped, code, "its time limit is over; submit it again under this name to go on", 0};
  if (code == signal_base + SIGINT || code == signal_base + SIGTERM)
    return {job_outcome::stopped, code, "it was stopped by a signal", 0};
  return {job_outcome::failed, code, with_last_line(fmt::format("its driver ended with exit code {}", code), how), 0};
}

} // namespace

std::variant<job_end, driver_restarts::start_again> driver_restarts::on_exit(const exit_report& how, bool was_told,
                                                                             time_point now) {
  if (how.exit_code)
    return end_by_code(*how.exit_code, how);
  const auto code = signal_base + how.signal.value_or(0);
  if (was_told)
    return job_end{job_outcome::stopped, code, fmt::format("it was told to end, and its driver was {}", how.describe()),
                   0};
  in_row_ = now - started_ >= how_.healthy_after ? 1 : in_row_ + 1;
  if (in_row_ > how_.most_in_row)
    return job_end{
        job_outcome::failed, code,
        with_last_line(fmt::format("its driver died {} times in a row, the last time {}", in_row_, how.describe()),
                       how),
        0};
  const auto pause = how_.first_pause * (std::uint64_t{1} << std::min(in_row_ - 1, 16U));
  return start_again{now + std::min<std::chrono::milliseconds>(pause, how_.longest_pause)};
}

} // namespace troupe::runtime
