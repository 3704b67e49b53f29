#pragma once

#include <troupe/collectives/device.hpp>

#include <doctest/doctest.h>

#include <cstdio>
#include <string>

namespace troupe::testing {

/// Whether there is a GPU for a test labelled `gpu`. Prints why the test is skipped if there is none.
inline bool has_gpu() {
  auto found = collectives::find_devices();
  if (found && !found->empty())
    return true;
  auto why = found ? std::string{"this process sees no GPU"} : found.error().message;
  CHECK_FALSE(why.empty());
  std::printf("SKIP: %s\n", why.c_str());
  return false;
}

/// Whether the GPU is a fake one of tests/fake_cuda, which is slower.
inline bool has_fake_gpu() {
  const auto found = collectives::find_devices();
  return found && !found->empty() && found->front().name == "fake GPU";
}

} // namespace troupe::testing
