#include "run/run_curves.hpp"

#include <troupe/runtime/found_run.hpp>

#include <map>

namespace troupe::tool {

using runtime::last_rows;

std::vector<run_summary::point> read_curve(const std::filesystem::path& run, const std::string& metric) {
  constexpr std::size_t enough = std::size_t{512} << 10;
  const auto summary = summarize({last_rows(run / "metrics.jsonl", enough), {}, {}});
  const auto found = summary.metrics.find(metric);
  return found == summary.metrics.end() ? std::vector<run_summary::point>{} : found->second;
}

std::string read_slowest(const std::filesystem::path& run) {
  constexpr std::size_t enough = std::size_t{64} << 10;
  // Of each rank the last rows: who was late an hour ago is not late now.
  constexpr std::size_t rows_of_rank = 5;
  auto rows = last_rows(run / "times.jsonl", enough);
  std::map<std::uint64_t, std::size_t> seen;
  std::vector<nlohmann::json> last;
  for (auto row = rows.rbegin(); row != rows.rend(); ++row)
    if (row->contains("rank") && (*row)["rank"].is_number_unsigned() && ++seen[(*row)["rank"]] <= rows_of_rank)
      last.push_back(std::move(*row));
  return describe_slowest(summarize({{}, {}, std::move(last)}).times);
}

} // namespace troupe::tool
