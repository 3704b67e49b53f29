#include "library.hpp"

#include <troupe/xgboost.hpp>

#include <doctest/doctest.h>

#include <scratch_directory.hpp>

#include <fstream>
#include <string>

using namespace troupe;
using namespace troupe::xgboost;

TEST_CASE("a library that is missing, or is not XGBoost's, is refused with what to do") {
  testing::scratch_directory scratch;
  auto absent = find_library(scratch.path() / "libxgboost.so");
  REQUIRE(!absent);
  CHECK(absent.error().code == errc::unsatisfiable);
  CHECK(absent.error().message.find("is not a file: it should be XGBoost's library, libxgboost.so") !=
        std::string::npos);
  auto text = scratch.path() / "text.so";
  std::ofstream{text} << "no library";
  CHECK(find_library(text) == text);
  auto opened = library::open(text);
  REQUIRE(!opened);
  CHECK(opened.error().message.find("cannot be opened") != std::string::npos);
  // A library with other functions: the C library's mathematics.
  auto other = library::open("libm.so.6");
  REQUIRE(!other);
  CHECK_MESSAGE(other.error().message.find("XGBoost 1.7 or later is required") != std::string::npos,
                other.error().message);
}

TEST_CASE("the version decides how workers connect") {
  CHECK(tracker_of(parse_version("1.6.2")) == tracker_kind::none);
  CHECK(tracker_of(parse_version("1.7.4")) == tracker_kind::troupes);
  CHECK(tracker_of(parse_version("2.0.3")) == tracker_kind::none);
  CHECK(tracker_of(parse_version("2.1.0")) == tracker_kind::librarys);
  CHECK(tracker_of(parse_version("3.2.0")) == tracker_kind::librarys);
  CHECK(parse_version("3.2.0").text() == "3.2.0");
}

TEST_CASE("a model is continued by the same or a later version only") {
  CHECK(check_model_version("1.7.4", "3.2.0"));
  CHECK(check_model_version("3.2.1", "3.2.0"));
  auto older = check_model_version("3.2.0", "1.7.4");
  REQUIRE(!older);
  CHECK(older.error().code == errc::mismatch);
  CHECK(older.error().message.find("is of 3.2.0, while 1.7.4 is installed") != std::string::npos);
}
