#include "net/members/member_session.hpp"

#include "net/members/member_messages.hpp"

namespace troupe::runtime {

expected<std::string> member_session::take(std::string_view bytes) {
  if (!awaits_text_) {
    TROUPE_TRY(wanted_, text_size(bytes));
    awaits_text_ = true;
    return std::string{};
  }
  wanted_ = member_header_bytes;
  awaits_text_ = false;
  TROUPE_TRY(const auto question, parse_text(bytes));
  return frame(service_->answer(peer_, question));
}

} // namespace troupe::runtime
