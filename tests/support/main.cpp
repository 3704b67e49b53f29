#define DOCTEST_CONFIG_IMPLEMENT
#include "sanitizer_reports.hpp"

#include <doctest/doctest.h>

#include <cstdio>

namespace {

/// Counts the assertions that ran, because a binary whose assertions were compiled away must not pass.
struct assertion_counter : doctest::IReporter {
  explicit assertion_counter(const doctest::ContextOptions&) {}

  static inline int assertions = 0;
  static inline unsigned cases = 0;

  void test_run_end(const doctest::TestRunStats& stats) override {
    assertions = stats.numAsserts;
    cases = stats.numTestCasesPassingFilters;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

} // namespace

REGISTER_LISTENER("assertion_counter", 1, assertion_counter);

int main(int argc, char** argv) {
  troupe::testing::sanitizer_reports of_children;
  doctest::Context context{argc, argv};
  auto status = context.run();
  if (context.shouldExit())
    return status;
  if (status == 0 && assertion_counter::assertions == 0) {
    std::fprintf(stderr, "no assertion ran in %u test cases, which counts as a failure\n", assertion_counter::cases);
    return 1;
  }
  if (auto reports = of_children.text(); !reports.empty()) {
    std::fprintf(stderr, "sanitizer reports of processes that the tests started:\n%s\n", reports.c_str());
    return 1;
  }
  return status;
}
