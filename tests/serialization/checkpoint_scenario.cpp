#include "checkpoint_scenario.hpp"

#include <troupe/serialization/files/durable_file.hpp>

#include <algorithm>

namespace troupe::serialization {

namespace fs = std::filesystem;

namespace {

constexpr auto generation = generation_id{7};

sample_state state_of(step_id step) {
  return sample_state{{{"w", dtype::f32, {1301}}, {"b", dtype::u8, {5}}}, step.value};
}

sample_state frozen_state(std::uint64_t size_bytes) {
  return sample_state{{{"frozen", dtype::u8, {size_bytes}}}};
}

fs::path attempt_directory(step_id step, std::uint32_t attempt) {
  return checkpoint_scenario::directory() / temporary_name({{"run"}, step, generation, attempt});
}

} // namespace

const fs::path& checkpoint_scenario::directory() {
  static const auto path = fs::path{"/runs/one/checkpoints"};
  return path;
}

checkpoint_scenario::checkpoint_scenario(file_system& files, shape sizes, store_promises promises)
    : files_(files),
      shape_(sizes),
      promises_(std::move(promises)),
      specs_(state_of({0}).specs()),
      writers_(sizes.parts, reusing_writer{sizes.reuse, files}) {
  if (sizes.frozen_bytes == 0)
    return;
  auto frozen = frozen_state(sizes.frozen_bytes);
  specs_.push_back(frozen.specs()[0]);
  frozen_ = frozen.bytes(0);
}

std::vector<std::vector<std::byte>> checkpoint_scenario::tensors_of(step_id step) const {
  auto state = state_of(step);
  auto result = std::vector{state.bytes(0), state.bytes(1)};
  if (!frozen_.empty())
    result.push_back(frozen_);
  return result;
}

expected<void> checkpoint_scenario::write(step_id step, std::uint32_t attempt, std::uint32_t part) {
  auto plan = plan_chunks(specs_, shape_.parts, shape_.limit_bytes);
  auto tensors = tensors_of(step);
  auto bytes = std::vector<std::byte>{};
  for (const auto& chunk : plan.chunks_of(part)) {
    auto first = tensors[chunk.tensor].begin() + static_cast<std::ptrdiff_t>(chunk.tensor_offset_bytes);
    bytes.insert(bytes.end(), first, first + static_cast<std::ptrdiff_t>(chunk.length_bytes));
  }
  auto report = writers_[part].write(attempt_directory(step, attempt), part, plan, bytes);
  if (!report)
    return fail(std::move(report.error()));
  reports_[{step, attempt}].push_back(std::move(*report));
  return {};
}

expected<void> checkpoint_scenario::commit(step_id step, std::uint32_t attempt) {
  if (before_commit)
    if (auto done = before_commit(*this, step); !done)
      return done;
  auto content = sample_manifest(step);
  auto plan = plan_chunks(specs_, shape_.parts, shape_.limit_bytes);
  if (auto added = add_parts(content, specs_, plan, reports_[{step, attempt}]); !added)
    return added;
  auto path = commit_checkpoint(directory(), attempt_directory(step, attempt), content, files_);
  if (!path)
    return fail(std::move(path.error()));
  promises_.acknowledged(step);
  for (auto& writer : writers_)
    writer.committed(*path);
  return {};
}

expected<void> checkpoint_scenario::take(step_id step, std::uint32_t attempt) {
  for (std::uint32_t part = shape_.parts; part-- > 0;)
    if (auto written = write(step, attempt, part); !written)
      return written;
  return commit(step, attempt);
}

expected<void> checkpoint_scenario::retain() {
  if (retain_instead)
    return retain_instead(*this);
  while (promises_.kept.size() > shape_.num_to_keep)
    promises_.kept.erase(promises_.kept.begin());
  auto removed = apply_retention(directory(), shape_.num_to_keep, files_);
  if (!removed)
    return fail(std::move(removed.error()));
  return {};
}

expected<void> checkpoint_scenario::remove(step_id step) {
  promises_.kept.erase(step);
  return remove_checkpoint(directory() / checkpoint_name(step), files_);
}

expected<void> checkpoint_scenario::run() {
  if (auto made = create_directories_durably(directory(), files_); !made)
    return made;
  for (auto step : {step_id{10}, step_id{20}, step_id{30}}) {
    if (auto taken = take(step); !taken)
      return taken;
    if (auto done = retain(); !done)
      return done;
  }
  // A worker is lost after the first part: the attempt is abandoned and repeated.
  if (auto written = write({40}, 1, 0); !written)
    return written;
  if (auto taken = take({40}, 2); !taken)
    return taken;
  // The next one is written while old ones are removed.
  if (auto written = write({50}, 1, 0); !written)
    return written;
  if (auto done = retain(); !done)
    return done;
  auto in_flight = std::vector{attempt_directory({50}, 1)};
  if (auto removed = remove_abandoned(directory(), in_flight, files_); !removed)
    return fail(std::move(removed.error()));
  for (std::uint32_t part = 1; part < shape_.parts; ++part)
    if (auto written = write({50}, 1, part); !written)
      return written;
  if (auto committed = commit({50}, 1); !committed)
    return committed;
  if (auto written = write({60}, 1, 0); !written)
    return written;
  return go_on();
}

expected<void> checkpoint_scenario::go_on() {
  reports_.clear();
  writers_.assign(shape_.parts, reusing_writer{shape_.reuse, files_});
  if (auto removed = remove_abandoned(directory(), {}, files_); !removed)
    return fail(std::move(removed.error()));
  auto latest = open_latest(directory(), files_);
  if (!latest && latest.error().code != errc::not_found)
    return fail(std::move(latest.error()));
  if (latest)
    for (const auto& each : latest->passed_over)
      if (auto aside = set_aside(each.directory, files_); !aside)
        return fail(std::move(aside.error()));
  auto last = latest ? latest->found.content().step : step_id{0};
  // The found checkpoint may be one whose commit had not returned; from now on it counts as acknowledged.
  if (last.value != 0)
    promises_.acknowledged(last);
  if (auto taken = take({last.value + 10}); !taken)
    return taken;
  return retain();
}

std::optional<std::string> checkpoint_scenario::find_flaw() const {
  auto latest = open_latest(directory(), files_);
  if (!latest && (promises_.newest || latest.error().code != errc::not_found))
    return "no checkpoint is found: " + latest.error().message;
  if (!latest)
    return std::nullopt;
  if (!latest->passed_over.empty())
    return "a checkpoint was found that is not whole: " + latest->passed_over.front().text();
  if (promises_.newest && latest->found.content().step < *promises_.newest)
    return "the newest checkpoint is gone";
  auto entries = list_checkpoints(directory(), files_);
  if (!entries)
    return entries.error().message;
  auto listed = std::set<step_id>{};
  for (const auto& entry : *entries) {
    listed.insert(entry.step);
    auto stored = checkpoint::open(entry.path, files_);
    if (!stored)
      return stored.error().message;
    if (auto flaw = find_flaw_in(*stored))
      return entry.path.string() + ": " + *flaw;
  }
  if (!std::ranges::includes(listed, promises_.kept))
    return "a checkpoint that was to stay is gone";
  return std::nullopt;
}

std::optional<std::string> checkpoint_scenario::find_flaw_in(const checkpoint& stored) const {
  if (auto good = stored.verify(); !good)
    return good.error().message;
  auto tensors = tensors_of(stored.content().step);
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    auto copy = std::vector<std::byte>(specs_[i].size_bytes());
    if (auto read = stored.read_tensor(specs_[i].name, copy); !read)
      return read.error().message;
    if (copy != tensors[i])
      return "tensor " + specs_[i].name + " has other numbers";
  }
  return std::nullopt;
}

} // namespace troupe::serialization
