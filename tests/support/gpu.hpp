#pragma once

#include <troupe/collectives/device.hpp>

#include <doctest/doctest.h>

#include <cstdio>
#include <string>

namespace troupe::testing {

/// Whether there is a GPU for a test labelled `gpu`. Says why the test is skipped where there is none.
inline bool has_gpu() {
  auto found = collectives::find_devices();
  if (found && !found->empty())
    return true;
  auto why = found ? std::string{"this process sees no GPU"} : found.error().message;
  CHECK_FALSE(why.empty());
  std::printf("SKIP: %s\n", why.c_str());
  return false;
}

/// Whether the GPU is one that tests/fake_cuda plays, which takes its time.
inline bool has_fake_gpu() {
  const auto found = collectives::find_devices();
  return found && !found->empty() && found->front().name == "fake GPU";
}

} // namespace troupe::testing
