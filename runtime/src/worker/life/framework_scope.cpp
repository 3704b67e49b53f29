#include "worker/life/framework_scope.hpp"

#include <algorithm>

namespace troupe {

void framework::on_training_start(train_context&) {}

namespace runtime {

namespace {

/// Ends what has begun, the last one first.
class begun_frameworks {
 public:
  begun_frameworks() = default;
  begun_frameworks(const begun_frameworks&) = delete;
  begun_frameworks& operator=(const begun_frameworks&) = delete;
  ~begun_frameworks() {
    while (!list_.empty()) {
      list_.back()->on_shutdown();
      list_.pop_back();
    }
  }

  void begin(framework& each, train_context& ctx) {
    list_.reserve(list_.size() + 1);
    each.on_training_start(ctx);
    list_.push_back(&each);
  }

 private:
  std::vector<framework*> list_;
};

} // namespace

std::vector<std::shared_ptr<framework>> frameworks_of(const std::vector<function>& functions) {
  std::vector<std::shared_ptr<framework>> result;
  for (const auto& function : functions)
    for (const auto& each : function.frameworks)
      if (std::ranges::find(result, each) == result.end())
        result.push_back(each);
  return result;
}

std::string describe_frameworks(const function& train) {
  std::string result;
  for (const auto& each : train.frameworks) {
    std::string text;
    for (const auto& [key, value] : each->numerics())
      text += (text.empty() ? ": " : ", ") + key + " " + value;
    if (!text.empty())
      result += (result.empty() ? "" : "; ") + each->name() + text;
  }
  return result;
}

void run_with_frameworks(const function& train, train_context& ctx) {
  begun_frameworks begun;
  for (const auto& each : train.frameworks)
    begun.begin(*each, ctx);
  train.body(ctx);
}

} // namespace runtime

} // namespace troupe
