#pragma once

#include <troupe/error.hpp>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// What the bits of arithmetic in this process depend on besides the program's own instructions: the processor's
/// features, the loaded mathematical libraries, thread counts, floating-point modes, and hashes of probe computations.
/// Workers compare theirs before they work together.
struct numerics_fingerprint {
  /// Name to value, as "cpu.avx2" to "yes" and "object.libm.so.6" to a build id.
  std::map<std::string, std::string> values;

  bool operator==(const numerics_fingerprint&) const = default;
};

/// Takes the fingerprint of this process as seen from the calling thread, which is to be one that computes.
/// `device` names what the program computes on, as "cpu" or a GPU's model.
[[nodiscard]] numerics_fingerprint take_fingerprint(std::string_view device = "cpu");

/// JSON text with sorted names and no spaces: equal fingerprints give equal text.
[[nodiscard]] std::string to_json(const numerics_fingerprint& fingerprint);

/// Reads what `to_json` wrote. Fails with `errc::invalid_argument` for anything else.
[[nodiscard]] expected<numerics_fingerprint> parse_fingerprint(std::string_view json);

/// One line for each name whose values differ, as "cpu.avx512f: yes here, no there"; empty when the two agree.
[[nodiscard]] std::vector<std::string> differences(const numerics_fingerprint& here, const numerics_fingerprint& there);

/// Sets the calling thread's floating-point mode to IEEE 754's default: round to nearest, subnormal numbers kept. For
/// each thread that trains or reduces: any linked object that was built with -ffast-math has set another one at load
/// time.
void prepare_arithmetic_thread();

} // namespace troupe::runtime
