#include "sanitizer_reports.hpp"

namespace troupe::testing {

sanitizer_reports::sanitizer_reports() = default;

sanitizer_reports::~sanitizer_reports() = default;

std::string sanitizer_reports::text() const {
  return {};
}

} // namespace troupe::testing
