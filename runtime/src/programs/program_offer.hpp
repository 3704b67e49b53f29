#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/members.hpp>
#include <troupe/runtime/program.hpp>

#include <cstdint>
#include <stop_token>
#include <string>

namespace troupe::runtime {

/// What came of offering a program to a node.
struct program_offer {
  enum class outcome : std::uint8_t {
    /// The node has this build.
    had,
    /// It has it now.
    sent,
    /// It lacks it, and takes none, or is of a version that takes none.
    declined
  };
  outcome what = outcome::declined;
  /// As many were sent.
  std::uint64_t bytes = 0;
};

/// Sends the program to the node at this address, if it lacks it and takes programs. Fails with what the node says if
/// it does not take this one, as `ticket_client::ask` does, and with `errc::aborted` if `stop` is requested. Blocks.
[[nodiscard]] expected<program_offer> offer_program(const std::string& address, const program_file& program,
                                                    const member_access& how, const std::stop_token& stop = {});

} // namespace troupe::runtime
