#include "worker/life/framework_scope.hpp"

#include <troupe/error.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using namespace troupe;

namespace {

/// Writes down what is called.
class recorder : public framework {
 public:
  recorder(std::string name, std::vector<std::string>& log, bool fails = false)
      : name_(std::move(name)), log_(log), fails_(fails) {}

  std::string name() const override { return name_; }

  void on_training_start(train_context&) override {
    log_.push_back("begin " + name_);
    if (fails_)
      throw std::runtime_error{name_ + " has no device"};
  }

  void on_shutdown() noexcept override { log_.push_back("end " + name_); }

 private:
  std::string name_;
  std::vector<std::string>& log_;
  bool fails_;
};

/// Frameworks hand the context on, and these do not look at it.
struct anything {
  alignas(train_context) unsigned char bytes[sizeof(train_context)] = {};
  train_context& context() { return reinterpret_cast<train_context&>(bytes); }
};

} // namespace

TEST_CASE("frameworks begin in their order before the function, and end in the reverse order after it") {
  std::vector<std::string> log;
  anything nothing;
  auto train = function{"train",
                        std::function<void(train_context&)>{[&](train_context&) { log.push_back("train"); }},
                        {std::make_shared<recorder>("first", log), std::make_shared<recorder>("second", log)}};
  runtime::run_with_frameworks(train, nothing.context());
  CHECK(log == std::vector<std::string>{"begin first", "begin second", "train", "end second", "end first"});
}

TEST_CASE("frameworks end when the function throws, and those that have not begun do not") {
  std::vector<std::string> log;
  anything nothing;
  auto train = function{
      "train", [](train_context&) { throw std::runtime_error{"a bug"}; }, {std::make_shared<recorder>("only", log)}};
  CHECK_THROWS_WITH(runtime::run_with_frameworks(train, nothing.context()), "a bug");
  CHECK(log == std::vector<std::string>{"begin only", "end only"});

  log.clear();
  train.body = [&](train_context&) { log.push_back("train"); };
  train.frameworks = {std::make_shared<recorder>("good", log), std::make_shared<recorder>("bad", log, true),
                      std::make_shared<recorder>("late", log)};
  CHECK_THROWS_WITH(runtime::run_with_frameworks(train, nothing.context()), "bad has no device");
  CHECK(log == std::vector<std::string>{"begin good", "begin bad", "end good"});
}

TEST_CASE("a framework that several functions share starts once") {
  std::vector<std::string> log;
  auto shared = std::make_shared<recorder>("shared", log);
  auto own = std::make_shared<recorder>("own", log);
  auto all = runtime::frameworks_of(
      {function{"train", {}, {shared}}, function{"plain", {}}, function{"tune", {}, {own, shared}}});
  REQUIRE(all.size() == 2);
  CHECK(all[0] == shared);
  CHECK(all[1] == own);
}

TEST_CASE("a framework that is null is refused with the function's name") {
  auto program = std::string{"program"};
  char* argv[] = {program.data(), nullptr};
  CHECK_THROWS_WITH_AS((app{1, argv, {function{"train", [](train_context&) {}, {nullptr}}}}),
                       "a framework of the training function 'train' is null", exception);
}
