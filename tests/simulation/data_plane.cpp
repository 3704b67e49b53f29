#include "data_plane.hpp"

#include <algorithm>
#include <stdexcept>

namespace troupe::simulation {

data_plane::data_plane(std::vector<worker_id> members, std::uint32_t joiners)
    : members_(std::move(members)), joiners_(joiners) {
  for (auto& row : comes_through_)
    row.fill(unbroken);
}

void data_plane::enter(rank_id rank, const collective& mine) {
  auto number = entered_[rank.value]++;
  auto is_first = true;
  for (std::uint32_t other = 0; other < size(); ++other)
    is_first = is_first && (other == rank.value || entered_[other] <= number);
  auto& shared = recent_[number % recent_.size()];
  auto brings_nothing = mine.what == collective::kind::transfer && is_new(rank.value);
  if (is_first) {
    shared = mine;
    if (brings_nothing)
      shared.words.fill(0);
    return;
  }
  if (shared.what != mine.what)
    throw std::logic_error{"ranks of one group are in different operations"};
  if (brings_nothing)
    return;
  shared.sum += mine.sum;
  for (std::size_t i = 0; i < mine.words.size(); ++i)
    shared.words[i] = std::max(shared.words[i], mine.words[i]);
}

data_plane::view data_plane::look(rank_id rank) const {
  const auto me = rank.value;
  const auto number = entered_[me] - 1;
  const auto is_transfer = recent_[number % recent_.size()].what == collective::kind::transfer;
  auto result = view::complete;
  for (std::uint32_t other = 0; other < size(); ++other) {
    if (other == me)
      continue;
    if (is_transfer && (!is_new(me) || is_new(other))) {
      // A sender notices that a receiver is gone.
      if (!is_new(me) && is_new(other) && comes_through_[me][other] <= number)
        return view::peer_missing;
      continue;
    }
    if (entered_[other] > number && comes_through_[other][me] > number)
      continue;
    if (comes_through_[other][me] != unbroken)
      return view::peer_missing;
    result = view::waits;
  }
  return result;
}

const collective& data_plane::result(rank_id rank) const {
  return recent_[(entered_[rank.value] - 1) % recent_.size()];
}

void data_plane::break_connection(std::uint32_t from, std::uint32_t to, random_source* random) {
  auto sent = entered_[from];
  auto arrived = sent > 0 && random != nullptr && random->one_in(2) ? sent - 1 : sent;
  comes_through_[from][to] = std::min(comes_through_[from][to], arrived);
}

void data_plane::close(rank_id rank, random_source* random) {
  for (std::uint32_t other = 0; other < size(); ++other)
    if (other != rank.value)
      cut(rank, rank_id{other}, random);
}

void data_plane::cut(rank_id a, rank_id b, random_source* random) {
  break_connection(a.value, b.value, random);
  break_connection(b.value, a.value, random);
}

} // namespace troupe::simulation
