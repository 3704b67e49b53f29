#include "library_tracker.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::xgboost {

library_tracker::library_tracker(library_ptr functions, const std::string& host, std::uint32_t world_size,
                                 std::chrono::seconds deadline)
    : library_(std::move(functions)) {
  constexpr int by_task_id = 1;
  auto how = nlohmann::json{{"dmlc_communicator", "rabit"}, {"n_workers", world_size}, {"host", host}, {"port", 0},
                            {"timeout", deadline.count()},  {"sortby", by_task_id}};
  const auto& call = library_->optional();
  library_->check(call.XGTrackerCreate(how.dump().c_str(), &handle_));
  try {
    library_->check(call.XGTrackerRun(handle_, "{}"));
    const char* text = nullptr;
    library_->check(call.XGTrackerWorkerArgs(handle_, &text));
    port_ = nlohmann::json::parse(text).at("dmlc_tracker_port").get<std::uint16_t>();
  } catch (const nlohmann::json::exception& x) {
    (void)call.XGTrackerFree(handle_);
    throw library_error{fmt::format("XGBoost's tracker reports its address in an unexpected format: {}", x.what())};
  } catch (...) {
    (void)call.XGTrackerFree(handle_);
    throw;
  }
}

library_tracker::~library_tracker() {
  // Fails if a worker did not leave, which is reported elsewhere.
  (void)library_->optional().XGTrackerFree(handle_);
}

std::string library_tracker::task_id(std::uint32_t rank) {
  return fmt::format("{:010}", rank);
}

} // namespace troupe::xgboost
