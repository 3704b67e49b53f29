#include <troupe/train_context.hpp>

#include "worker/session.hpp"
#include "worker/step/step_driver.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace troupe {

namespace {

collectives::reduce_op to_op(reduction op) {
  switch (op) {
  case reduction::sum:
    return collectives::reduce_op::sum;
  case reduction::mean:
    return collectives::reduce_op::mean;
  case reduction::min:
    return collectives::reduce_op::min;
  case reduction::max:
    return collectives::reduce_op::max;
  case reduction::product:
    return collectives::reduce_op::product;
  }
  throw exception{errc::invalid_argument, "no such reduction"};
}

std::size_t index_of(const std::vector<std::string>& names, std::string_view name) {
  auto found = std::ranges::find(names, name);
  if (found == names.end())
    throw exception{errc::invalid_argument,
                    "no metric '" + std::string{name} + "' in the plan: name it in step_plan.metrics"};
  return static_cast<std::size_t>(found - names.begin());
}

} // namespace

// -- shard and step ---------------------------------------------------------------------------------------------------

random_stream basic_shard::random(std::uint32_t index) const noexcept {
  return random_stream{driver_->seed(), driver_->id(), id_, index};
}

void basic_shard::mark_ready(std::uint64_t first, std::uint64_t count) {
  driver_->mark_ready(id_, first, count);
}

void shard::contribute(std::span<const float> gradient) {
  if (gradient.size() != gradient_.size())
    throw exception{errc::invalid_argument, fmt::format("a contribution of {} elements to a gradient of {}: set "
                                                        "step_plan.gradient_elements",
                                                        gradient.size(), gradient_.size())};
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient_[i] += gradient[i];
}

void shard::add(std::string_view metric, double sum) {
  const auto index = index_of(driver_->plan().metrics, metric);
  metrics_[index] += sum;
  if (!std::isfinite(sum))
    driver_->note_not_finite(id_, index, sum);
}

device_span<double> device_shard::metric(std::string_view name) const {
  return metrics_.subspan(index_of(driver_->plan().metrics, name), 1);
}

template <class Shard>
std::uint32_t basic_shard_list<Shard>::size() const noexcept {
  return driver_->shards();
}

template <class Shard>
Shard& basic_shard_list<Shard>::take(std::uint32_t place) {
  driver_->open_shard(current_, place);
  return current_;
}

template class basic_shard_list<shard>;
template class basic_shard_list<device_shard>;

step_id basic_step::id() const noexcept {
  return driver_->id();
}

std::uint64_t basic_step::batch_samples() const noexcept {
  return driver_->plan().batch_samples;
}

std::uint64_t basic_step::epoch() const noexcept {
  return driver_->order().epoch_of(id());
}

bool basic_step::last() const noexcept {
  return number() == driver_->plan().steps;
}

std::span<const float> step::all_reduce() {
  return driver_->all_reduce();
}

device_span<const float> device_step::all_reduce() {
  return driver_->all_reduce_on_gpu();
}

double basic_step::mean(std::string_view metric) const {
  return driver_->metric(index_of(driver_->plan().metrics, metric), metric);
}

void basic_step::report(metric_map values) {
  driver_->report(std::move(values));
}

void basic_step::finish() {
  driver_->finish();
}

// -- train_context ----------------------------------------------------------------------------------------------------

std::uint32_t train_context::rank() const noexcept {
  return impl_->place().rank.value;
}

std::uint32_t train_context::world_size() const noexcept {
  return impl_->place().world_size;
}

std::uint32_t train_context::local_rank() const noexcept {
  return impl_->place().local_rank;
}

std::uint32_t train_context::local_world_size() const noexcept {
  return impl_->place().local_world_size;
}

std::uint32_t train_context::node_rank() const noexcept {
  return impl_->place().node_rank;
}

std::uint64_t train_context::generation() const noexcept {
  return impl_->place().generation.value;
}

std::uint32_t train_context::attempt() const noexcept {
  return impl_->place().attempt;
}

const std::string& train_context::generation_reason() const noexcept {
  return impl_->place().reason;
}

void train_context::heartbeat() const noexcept {
  impl_->heartbeat();
}

const std::string& train_context::run_name() const noexcept {
  return impl_->settings().name;
}

const std::filesystem::path& train_context::run_directory() const noexcept {
  return impl_->run_directory();
}

std::uint32_t train_context::shards() const noexcept {
  return impl_->settings().shards;
}

std::string train_context::device() const {
  return impl_->begin().device.gpus > 0 ? "cuda:0" : "cpu";
}

std::uint64_t train_context::seed() const noexcept {
  return impl_->settings().seed;
}

const nlohmann::json& train_context::config() const noexcept {
  return impl_->config();
}

const nlohmann::json& train_context::options() const noexcept {
  return impl_->options();
}

std::uint64_t train_context::steps() const noexcept {
  return impl_->settings().steps;
}

bool train_context::group_is_lost() const {
  return impl_->group_is_lost();
}

bool train_context::stop_requested() const noexcept {
  return impl_->stop_requested();
}

std::uint64_t train_context::restored_step() const noexcept {
  return impl_->restored_step().value;
}

void train_context::name_gradient(std::vector<gradient_tensor> tensors) {
  impl_->name_gradient(std::move(tensors));
}

tracked_state& train_context::state() noexcept {
  return impl_->state();
}

const std::shared_ptr<collectives::device>& train_context::gpu() {
  return impl_->group().gpu().device;
}

const collectives::device_stream& train_context::gpu_stream() {
  return impl_->group().gpu().stream;
}

void train_context::track_on_gpu(std::string name, dtype type, std::vector<std::uint64_t> shape,
                                 device_span<std::byte> memory) {
  impl_->state().track(std::move(name), type, std::move(shape), impl_->group().gpu().copier->tensor(memory));
}

random_stream train_context::random(std::string_view name) const noexcept {
  return random_stream{impl_->settings().seed, name};
}

void train_context::for_each_step(const step_plan& plan, const std::function<void(step&)>& body) {
  impl_->for_each_step({plan, false}, [&body](step_driver& driver) {
    auto now = step{driver};
    body(now);
  });
}

void train_context::for_each_step(const device_plan& plan, const std::function<void(device_step&)>& body) {
  impl_->for_each_step({plan.plan(), true}, [&body](step_driver& driver) {
    auto now = device_step{driver};
    body(now);
  });
}

std::vector<double>
train_context::evaluate(std::uint64_t samples, std::size_t number_of_sums,
                        const std::function<void(std::span<const std::uint64_t>, std::span<double>)>& function) {
  return impl_->evaluate(samples, number_of_sums, function);
}

void train_context::all_reduce(dtype type, reduction op, std::span<std::byte> data) {
  impl_->call_group([&](auto& group) { return group.all_reduce(type, to_op(op), data); });
}

void train_context::reduce_scatter(dtype type, reduction op, std::span<const std::byte> input,
                                   std::span<std::byte> output) {
  impl_->call_group([&](auto& group) { return group.reduce_scatter(type, to_op(op), input, output); });
}

void train_context::all_gather(std::span<const std::byte> input, std::span<std::byte> output) {
  impl_->call_group([&](auto& group) { return group.all_gather(input, output); });
}

void train_context::all_to_all(std::span<const std::byte> input, std::span<std::byte> output) {
  impl_->call_group([&](auto& group) { return group.all_to_all(input, output); });
}

void train_context::broadcast(std::span<std::byte> data, std::uint32_t root) {
  impl_->call_group([&](auto& group) { return group.broadcast(data, rank_id{root}); });
}

void train_context::barrier() {
  impl_->call_group([&](auto& group) { return group.barrier(); });
}

void train_context::report(metric_map values, save_checkpoint checkpoint) {
  impl_->report(std::move(values), checkpoint);
}

} // namespace troupe
