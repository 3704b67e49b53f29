#include <troupe/actors/error_conversion.hpp>

#include <troupe/messages/type_ids.hpp>

#include <caf/message.hpp>
#include <caf/sec.hpp>

namespace troupe::actors {

caf::error to_caf(const error& reason) {
  // The category is CAF's own; the context says what it is.
  return caf::error{caf::sec::runtime_error, caf::make_message(reason)};
}

error from_caf(const caf::error& reason) {
  if (!reason)
    return {};
  if (const auto& context = reason.context(); context.match_elements<error>())
    return context.get_as<error>(0);
  auto text = caf::to_string(reason);
  if (reason == caf::sec::request_timeout)
    return {errc::timed_out, std::move(text)};
  if (reason == caf::sec::request_receiver_down || reason == caf::sec::remote_linking_failed ||
      reason == caf::sec::broken_promise || reason == caf::sec::cannot_connect_to_node)
    return {errc::unreachable, std::move(text)};
  return {errc::internal, std::move(text)};
}

} // namespace troupe::actors
