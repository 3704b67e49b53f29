#pragma once

#include <troupe/error.hpp>
#include <troupe/node_names.hpp>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace troupe::actors {

/// Which nodes a run uses of those that a host file, a name or a script names, from one answer to the next (see
/// `node_source`). A plain class.
class node_naming {
 public:
  /// What follows from an answer.
  struct change {
    /// The nodes that may be used, those that are known as well.
    std::vector<named_node> named;
    /// Addresses of nodes that were named once, and are not to be used.
    std::vector<std::string> left;
    /// For users.
    std::vector<std::string> notices;
  };

  /// An answer, or why there is none.
  [[nodiscard]] change take(const expected<std::vector<named_node>>& answer);

  /// Workers of the run that live on this node were taken over: it counts as named until an answer names it.
  void keep(std::string address) { kept_.insert(std::move(address)); }
  /// No worker was taken over: from now on answers decide about those nodes, too.
  void keep_none();

  [[nodiscard]] bool knows_nodes() const noexcept { return knows_nodes_; }
  /// Why the last answer named none; empty if it named some.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  /// How many answers in a row have not named this node.
  std::map<std::string, unsigned> absent_;
  std::set<std::string> kept_;
  bool knows_nodes_ = false;
  std::string problem_;
};

} // namespace troupe::actors
