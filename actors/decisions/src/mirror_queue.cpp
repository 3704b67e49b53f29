#include <troupe/actors/decisions/mirror_queue.hpp>

#include <algorithm>
#include <ranges>
#include <utility>

namespace troupe::actors {

using serialization::retention_candidate;

namespace {

std::vector<retention_candidate> values_of(const std::map<step_id, retention_candidate>& all) {
  const auto values = all | std::views::values;
  return {values.begin(), values.end()};
}

} // namespace

void mirror_queue::on_saved(retention_candidate saved) {
  const auto step = saved.step;
  waiting_.insert_or_assign(step, std::move(saved));
  drop_superseded();
}

void mirror_queue::on_missing(step_id step) {
  waiting_.erase(step);
  under_way_ = {};
}

void mirror_queue::on_end(clock::time_point now) {
  is_ending_ = true;
  copying_.until = std::min(copying_.until, now);
  // Once more: who has failed to remove is not waited for again.
  removing_ = {};
}

void mirror_queue::drop_superseded() {
  if (waiting_.size() < 2)
    return;
  auto known = stored_.value_or(std::map<step_id, retention_candidate>{});
  known.insert(waiting_.begin(), waiting_.end());
  auto best = serialization::rank_by_score(values_of(known), how_.keep);
  best.resize(std::min(best.size(), how_.keep.num_best_to_keep));
  const auto newest = waiting_.rbegin()->first;
  const auto* under_way = std::get_if<mirror_job::upload>(&under_way_);
  superseded_ += std::erase_if(waiting_, [&](const auto& each) {
    const auto step = each.first;
    return step != newest && !(under_way != nullptr && under_way->step == step) &&
           std::ranges::find(best, step) == best.end();
  });
}

mirror_action mirror_queue::next_copy() const {
  if (!stored_)
    return mirror_job::look{};
  // The newest matters most.
  if (!waiting_.empty())
    return mirror_job::upload{waiting_.rbegin()->first};
  return are_records_due_ ? mirror_action{mirror_job::upload_records{}} : mirror_job::wait{};
}

mirror_action mirror_queue::next(clock::time_point now) {
  const auto copy = next_copy();
  const auto may_copy = !std::holds_alternative<mirror_job::wait>(copy);
  const auto removal = next_removal();
  under_way_ = {};
  if (may_copy && now >= copying_.until)
    under_way_ = copy;
  else if (removal && now >= removing_.until)
    under_way_ = mirror_job::remove{*removal};
  else if (may_copy && removal)
    return mirror_job::wait{std::min(copying_.until, removing_.until)};
  else if (may_copy || removal)
    return mirror_job::wait{may_copy ? copying_.until : removing_.until};
  // What changes from now on is another change.
  if (std::holds_alternative<mirror_job::upload_records>(under_way_))
    are_records_due_ = false;
  return under_way_;
}

std::optional<step_id> mirror_queue::next_removal() const {
  for (const auto step : incomplete_)
    if (!waiting_.contains(step))
      return step;
  if (!stored_ || !verified_)
    return std::nullopt;
  for (const auto step : doubtful_)
    if (!waiting_.contains(step) && step < *verified_)
      return step;
  for (const auto& each : serialization::decide_retention(values_of(*stored_), how_.keep))
    if (!each.stays && each.step < *verified_)
      return each.step;
  return std::nullopt;
}

void mirror_queue::on_found(std::vector<retention_candidate> complete, const std::vector<step_id>& incomplete) {
  stored_.emplace();
  for (auto& each : complete)
    stored_->insert_or_assign(each.step, std::move(each));
  incomplete_ = {incomplete.begin(), incomplete.end()};
  doubtful_.clear();
  under_way_ = {};
  copying_ = {};
  drop_superseded();
}

void mirror_queue::on_uploaded() {
  const auto step = std::get<mirror_job::upload>(under_way_).step;
  under_way_ = {};
  copying_ = {};
  auto copied = waiting_.extract(step);
  stored_->insert_or_assign(step, copied.empty() ? retention_candidate{step} : std::move(copied.mapped()));
  incomplete_.erase(step);
  doubtful_.erase(step);
  verified_ = std::max(verified_.value_or(step), step);
  are_records_due_ = true;
  drop_superseded();
}

void mirror_queue::on_records_uploaded() {
  under_way_ = {};
  copying_ = {};
}

void mirror_queue::on_removed() {
  const auto step = std::get<mirror_job::remove>(under_way_).step;
  under_way_ = {};
  removing_ = {};
  stored_->erase(step);
  incomplete_.erase(step);
  doubtful_.erase(step);
}

std::chrono::milliseconds mirror_queue::on_failed(clock::time_point now) {
  const auto is_removal = std::holds_alternative<mirror_job::remove>(under_way_);
  auto touched = std::optional<step_id>{};
  if (const auto* removal = std::get_if<mirror_job::remove>(&under_way_))
    touched = removal->step;
  else if (const auto* upload = std::get_if<mirror_job::upload>(&under_way_))
    touched = upload->step;
  else if (std::holds_alternative<mirror_job::upload_records>(under_way_))
    are_records_due_ = true;
  // Part of it may be there, or all that was there before.
  if (touched) {
    const auto was_whole = stored_->erase(*touched) > 0 || doubtful_.contains(*touched);
    (was_whole && !is_removal ? doubtful_ : incomplete_).insert(*touched);
  }
  under_way_ = {};
  ++failed_attempts_;
  auto& how_often = is_removal ? removing_ : copying_;
  const auto longest = is_ending_ ? std::min(how_.longest_delay, how_.longest_last_delay) : how_.longest_delay;
  auto delay = std::min(how_.first_delay, longest);
  for (std::uint32_t i = 0; i < how_often.failures && delay < longest; ++i)
    delay = std::min(delay * 2, longest);
  ++how_often.failures;
  how_often.until = now + delay;
  drop_superseded();
  return delay;
}

bool mirror_queue::is_done() const {
  return std::holds_alternative<mirror_job::wait>(under_way_) &&
         std::holds_alternative<mirror_job::wait>(next_copy()) && (!next_removal() || removing_.failures > 0);
}

std::vector<step_id> mirror_queue::stored() const {
  if (!stored_)
    return {};
  const auto steps = *stored_ | std::views::keys;
  return {steps.begin(), steps.end()};
}

std::optional<step_id> mirror_queue::newest_waiting() const {
  return waiting_.empty() ? std::nullopt : std::optional{waiting_.rbegin()->first};
}

} // namespace troupe::actors
