#pragma once

#include "net/members/member_session.hpp"
#include "net/members/ticket_desk.hpp"
#include "programs/program_finder.hpp"

/// What drivers and tools ask a node about programs, over the protocol of member_messages.hpp and with the role driver:
/// {"ask": "program", "ticket": T, "do": WHAT, ...} (see ticket_desk.hpp), where WHAT is
///
///   "has", with "path" and "build_id"              {"has": BOOL, "accepts": BOOL}
///   "begin", with "build_id", "name" and "size"    {"upload": ID}
///   "write", with "upload", "offset" and "data"    {}
///   "finish", with "upload" and "sha256"           {}
///
/// "data" is bytes (member_messages.hpp), at most `program_piece_bytes`.
namespace troupe::runtime {

class program_service : public node_service {
 public:
  explicit program_service(std::shared_ptr<const program_finder> programs);

  [[nodiscard]] nlohmann::json answer(const nlohmann::json& question) override { return desk_.answer(question); }

 private:
  [[nodiscard]] expected<nlohmann::json> carry_out(const nlohmann::json& question) const;

  std::shared_ptr<const program_finder> programs_;
  /// Last: it ends before what it uses.
  ticket_desk desk_;
};

} // namespace troupe::runtime
