#include <troupe/runtime/fingerprint.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cfenv>
#include <cstdlib>
#include <limits>
#include <thread>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace troupe::runtime {

namespace {

/// What `computation` gives on a thread of its own, whose floating-point mode nobody else sees.
template <class Computation>
auto on_a_thread(Computation computation) {
  decltype(computation()) result;
  std::thread{[&] { result = computation(); }}.join();
  return result;
}

double a_third(double one) {
  volatile double three = 3;
  return one / three;
}

} // namespace

TEST_CASE("two fingerprints of one process agree, whatever thread they are taken on") {
  auto first = take_fingerprint();
  CHECK(first == take_fingerprint());
  CHECK(first == on_a_thread([] { return take_fingerprint(); }));
  CHECK(differences(first, first).empty());
}

TEST_CASE("a fingerprint tells what arithmetic depends on") {
  auto values = take_fingerprint("cpu").values;
  for (const auto* name :
       {"architecture", "libc.version", "object.libc.so.6", "object.libm.so.6", "threads.OMP_NUM_THREADS",
        "float.rounding", "probe.libm_f64", "probe.libm_f32", "probe.arithmetic"}) {
    INFO(name);
    CHECK_FALSE(values[name].empty());
  }
  CHECK(values["device"] == "cpu");
  CHECK(values["float.rounding"] == "nearest");
  CHECK(take_fingerprint("H100").values["device"] == "H100");
}

TEST_CASE("a fingerprint survives its way through JSON, which is canonical") {
  auto fingerprint = take_fingerprint();
  auto text = to_json(fingerprint);
  auto back = parse_fingerprint(text);
  REQUIRE(back);
  CHECK(*back == fingerprint);
  CHECK(to_json(*back) == text);
  CHECK(to_json({{{"b", "2"}, {"a", "1"}}}) == R"({"a":"1","b":"2"})");
}

TEST_CASE("other JSON is no fingerprint") {
  for (const auto* text : {"", "{", "[]", "3", R"({"a":1})"}) {
    INFO(text);
    auto result = parse_fingerprint(text);
    REQUIRE_FALSE(result);
    CHECK(result.error().code == errc::invalid_argument);
  }
}

TEST_CASE("differences name what differs and both values") {
  numerics_fingerprint here{{{"cpu.avx512f", "yes"}, {"device", "cpu"}, {"blas.kernel", "Zen"}}};
  numerics_fingerprint there{{{"cpu.avx512f", "no"}, {"device", "cpu"}, {"object.libm.so.6", "ab12"}}};
  CHECK(differences(here, there) == std::vector<std::string>{"blas.kernel: Zen here, absent there",
                                                             "cpu.avx512f: yes here, no there",
                                                             "object.libm.so.6: absent here, ab12 there"});
}

TEST_CASE("a thread count in the environment shows") {
  auto before = take_fingerprint();
  setenv("OMP_NUM_THREADS", "3", 1);
  auto after = take_fingerprint();
  unsetenv("OMP_NUM_THREADS");
  auto lines = differences(before, after);
  REQUIRE(lines.size() == 1);
  CHECK(lines.front().find("3 there") != std::string::npos);
}

TEST_CASE("a thread that rounds otherwise is found out, also by its probes, and put right") {
  auto expected_third = a_third(1);
  auto good = take_fingerprint();
  auto lines = on_a_thread([&] {
    std::fesetround(FE_UPWARD);
    return differences(good, take_fingerprint());
  });
  auto contains = [&lines](const std::string& start) {
    return std::any_of(lines.begin(), lines.end(), [&](const auto& x) { return x.starts_with(start); });
  };
  CHECK(contains("float.rounding: nearest here, up there"));
  CHECK(contains("probe.arithmetic"));
  CHECK(on_a_thread([] {
          std::fesetround(FE_UPWARD);
          prepare_arithmetic_thread();
          return a_third(1);
        }) == expected_third);
}

#if defined(__x86_64__)
TEST_CASE("a thread that flushes subnormal numbers is found out and put right") {
  auto good = take_fingerprint();
  auto lines = on_a_thread([&] {
    _mm_setcsr(_mm_getcsr() | 0x8040);
    return differences(good, take_fingerprint());
  });
  CHECK(std::find(lines.begin(), lines.end(), "float.flush_results_to_zero: no here, yes there") != lines.end());
  CHECK(std::find(lines.begin(), lines.end(), "float.flush_operands_to_zero: no here, yes there") != lines.end());
  auto half_of_smallest = [] {
    volatile float smallest = std::numeric_limits<float>::min();
    return smallest / 2;
  };
  CHECK(on_a_thread([&] {
    _mm_setcsr(_mm_getcsr() | 0x8040);
    return half_of_smallest() == 0;
  }));
  CHECK(on_a_thread([&] {
    _mm_setcsr(_mm_getcsr() | 0x8040);
    prepare_arithmetic_thread();
    return half_of_smallest() > 0;
  }));
}
#endif

} // namespace troupe::runtime
