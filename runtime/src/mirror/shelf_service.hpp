#pragma once

#include "mirror/mirror_shelf.hpp"
#include "net/members/member_session.hpp"
#include "net/members/ticket_desk.hpp"

/// What drivers and tools ask a node that keeps mirrors, over the protocol of member_messages.hpp and with the role
/// driver: {"ask": "mirror", "ticket": T, "do": WHAT, "place": PLACE, ...} (see ticket_desk.hpp), where WHAT is
///
///   "list"                                       {"complete": [STEP], "incomplete": [STEP]}
///   "begin", with "step"                         {"has_it": BOOL}
///   "part", with "step", "name", "offset", "data"    {}
///   "adopt", "remove", with "step"               {}
///   "write", with "name", "offset", "data"       {}
///   "finish", with "name"                        {}
///   "files", with "step"                         {"files": [{"name", "size"}]}
///   "read", with "name", "offset", "limit"       {"data": BYTES}
///   "aside"                                      {"place": PLACE}
///
/// "data" is bytes (member_messages.hpp), at most `mirror_piece_bytes`.
namespace troupe::runtime {

class shelf_service : public node_service {
 public:
  /// The shelf is a directory, which need not exist.
  explicit shelf_service(std::filesystem::path root);

  [[nodiscard]] nlohmann::json answer(const nlohmann::json& question) override { return desk_.answer(question); }

 private:
  [[nodiscard]] expected<nlohmann::json> carry_out(const nlohmann::json& question) const;

  mirror_shelf shelf_;
  /// Last: it ends before what it uses.
  ticket_desk desk_;
};

/// Of a node that keeps none: says how to make it one.
class no_shelf : public node_service {
 public:
  [[nodiscard]] nlohmann::json answer(const nlohmann::json& question) override;
};

} // namespace troupe::runtime
