#include "worker/backend_scope.hpp"

#include <algorithm>

namespace troupe {

void backend::on_training_start(train_context&) {}

namespace runtime {

namespace {

/// Ends what has begun, the last one first.
class begun_backends {
 public:
  begun_backends() = default;
  begun_backends(const begun_backends&) = delete;
  begun_backends& operator=(const begun_backends&) = delete;
  ~begun_backends() {
    while (!list_.empty()) {
      list_.back()->on_shutdown();
      list_.pop_back();
    }
  }

  void begin(backend& each, train_context& ctx) {
    list_.reserve(list_.size() + 1);
    each.on_training_start(ctx);
    list_.push_back(&each);
  }

 private:
  std::vector<backend*> list_;
};

} // namespace

std::vector<std::shared_ptr<backend>> backends_of(const std::vector<named_function>& functions) {
  std::vector<std::shared_ptr<backend>> result;
  for (const auto& function : functions)
    for (const auto& each : function.backends)
      if (std::ranges::find(result, each) == result.end())
        result.push_back(each);
  return result;
}

std::string describe_backends(const named_function& function) {
  std::string result;
  for (const auto& each : function.backends) {
    std::string text;
    for (const auto& [key, value] : each->numerics())
      text += (text.empty() ? ": " : ", ") + key + " " + value;
    if (!text.empty())
      result += (result.empty() ? "" : "; ") + each->name() + text;
  }
  return result;
}

void run_with_backends(const named_function& function, train_context& ctx) {
  begun_backends begun;
  for (const auto& each : function.backends)
    begun.begin(*each, ctx);
  function.function(ctx);
}

} // namespace runtime

} // namespace troupe
