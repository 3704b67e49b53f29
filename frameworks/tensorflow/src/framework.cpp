#include "process_library.hpp"

#include <troupe/tensorflow.hpp>

#include <cstdlib>
#include <map>
#include <string>

namespace troupe::tensorflow {

namespace {

library_ptr& opened() {
  static library_ptr result;
  return result;
}

class tensorflow_framework : public framework {
 public:
  explicit tensorflow_framework(framework_options options) : options_(std::move(options)) {}

  std::string name() const override { return "tensorflow"; }

  void on_start() override {
    // Read when the library is opened; what the user has set counts.
    ::setenv("TF_DETERMINISTIC_OPS", "1", 0);
    ::setenv("TF_CPP_MIN_LOG_LEVEL", "2", 0);
    opened() = value_or_throw(library::open(value_or_throw(find_library(options_.library))));
  }

  std::map<std::string, std::string> numerics() const override {
    std::map<std::string, std::string> result;
    result["version"] = opened()->functions().TF_Version();
    result.emplace("threads", "1");
    for (const auto* each : {"TF_DETERMINISTIC_OPS", "TF_ENABLE_ONEDNN_OPTS"})
      if (const auto* value = std::getenv(each))
        result[each] = value;
    return result;
  }

 private:
  framework_options options_;
};

} // namespace

library_ptr process_library() {
  if (opened() == nullptr)
    throw exception{errc::user_error,
                    "TensorFlow is not set up: register its framework with the training function, as in "
                    "troupe::function{\"train\", train, {troupe::tensorflow::make_framework()}}"};
  return opened();
}

std::shared_ptr<framework> make_framework(framework_options options) {
  return std::make_shared<tensorflow_framework>(std::move(options));
}

} // namespace troupe::tensorflow
