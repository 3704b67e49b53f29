#pragma once

#include <troupe/error.hpp>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// Everything besides the program's own instructions that determines the bits of arithmetic results in this process:
/// the processor's features, the loaded mathematical libraries, thread counts, floating-point modes, and hashes of
/// probe computations. Workers compare their fingerprints before they train together.
struct numerics_fingerprint {
  /// Names and values, such as "cpu.avx2" and "yes", or "object.libm.so.6" and a build id.
  std::map<std::string, std::string> values;

  bool operator==(const numerics_fingerprint&) const = default;
};

/// Takes the fingerprint of this process. Call it from a thread that computes, since modes are per thread. `device`
/// names what the program computes on: "cpu" or a GPU's model.
[[nodiscard]] numerics_fingerprint take_fingerprint(std::string_view device = "cpu");

/// JSON with sorted names and no spaces, so that equal fingerprints give equal text.
[[nodiscard]] std::string to_json(const numerics_fingerprint& fingerprint);

/// Parses the output of `to_json`. Fails with `errc::invalid_argument` for anything else.
[[nodiscard]] expected<numerics_fingerprint> parse_fingerprint(std::string_view json);

/// One line for each name whose values differ, such as "cpu.avx512f: yes here, no there"; empty if the two agree.
[[nodiscard]] std::vector<std::string> differences(const numerics_fingerprint& here, const numerics_fingerprint& there);

/// Sets the calling thread's floating-point mode to IEEE 754's default: round to nearest, keep subnormal numbers. Call
/// it in each thread that trains or reduces, because a linked object built with -ffast-math changes the mode when it is
/// loaded.
void prepare_arithmetic_thread();

} // namespace troupe::runtime
