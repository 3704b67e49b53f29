#pragma once

#include <troupe/error.hpp>

#include <exception>

namespace troupe::serving {

/// Calls code of the program's: whatever it throws is an error.
template <class Call>
auto safely(Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const exception& x) {
    return fail(x.reason());
  } catch (const std::exception& x) {
    return fail(errc::user_error, x.what());
  } catch (...) {
    return fail(errc::user_error, "an exception that is not a std::exception");
  }
}

} // namespace troupe::serving
