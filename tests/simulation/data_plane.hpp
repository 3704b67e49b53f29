#pragma once

#include "random_source.hpp"

#include <troupe/types.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::simulation {

/// What a rank brings into one collective operation, and what they all make of it.
struct collective {
  enum class kind : std::uint8_t {
    /// The ranks find each other.
    connect,
    /// `sum` is added up.
    reduce,
    /// The shards of an evaluation are added up as `sum`.
    evaluate,
    /// Each of `words` becomes its maximum.
    barrier,
    /// One rank gives the result of the last evaluation, as the first of `words`.
    share_evaluation,
    /// Who has the state sends it as `words`; who sends waits for nobody.
    transfer,
  };

  kind what = kind::connect;
  std::uint64_t sum = 0;
  std::array<std::uint64_t, 7> words{};
};

/// The communicator of one generation, seen from outside: who has entered which operation, and whose data has come to
/// whom. A rank leaves an operation when it has the data of all, at its own time. A connection that breaks has carried
/// the last data of its sender, or not, for each receiver on its own.
class data_plane {
 public:
  static constexpr std::uint32_t most_ranks = 24;

  /// `joiners` as a mask of ranks: they receive in a transfer, the others send.
  data_plane(std::vector<worker_id> members, std::uint32_t joiners);

  [[nodiscard]] const std::vector<worker_id>& members() const noexcept { return members_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(members_.size()); }

  void enter(rank_id rank, const collective& mine);

  enum class view { waits, complete, peer_missing };

  /// How the operation that `rank` has entered last looks from there.
  [[nodiscard]] view look(rank_id rank) const;

  /// The result of the operation that `rank` has entered last; complete.
  [[nodiscard]] const collective& result(rank_id rank) const;

  /// The rank's process has died, or has ended its communicator. Without `random` what it has sent stays, as in shared
  /// memory.
  void close(rank_id rank, random_source* random);

  /// The connection between two ranks breaks; both live.
  void cut(rank_id a, rank_id b, random_source* random);

 private:
  static constexpr std::uint32_t unbroken = ~std::uint32_t{0};

  [[nodiscard]] bool is_new(std::uint32_t rank) const noexcept { return (joiners_ >> rank & 1) != 0; }
  void break_connection(std::uint32_t from, std::uint32_t to, random_source* random);

  std::vector<worker_id> members_;
  std::uint32_t joiners_;
  /// How many operations each rank has entered.
  std::array<std::uint32_t, most_ranks> entered_{};
  /// How many operations' data come through, from whom to whom.
  std::array<std::array<std::uint32_t, most_ranks>, most_ranks> comes_through_;
  /// Ranks are at most two operations apart, where one of them is a transfer.
  std::array<collective, 4> recent_;
};

} // namespace troupe::simulation
