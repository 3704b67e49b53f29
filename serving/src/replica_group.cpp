#include "replica_group.hpp"

#include "safely.hpp"

#include <troupe/data/batch.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fmt/format.h>
#include <new>
#include <span>
#include <system_error>
#include <utility>

namespace troupe::serving {

namespace {

using namespace std::chrono_literals;

/// Between two tries to load the model of a lost replica.
constexpr std::chrono::milliseconds first_pause = 50ms;
constexpr std::chrono::milliseconds longest_pause = 5s;

/// Rows of requests that are predicted in one call.
class joined_rows {
 public:
  joined_rows(const std::vector<data::column_spec>& inputs, std::uint64_t rows) : inputs_(inputs) {
    batch_.reset(inputs, rows);
  }

  void append(const row_values& from, std::uint64_t first, std::uint64_t count) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const auto size = inputs_[i].size_bytes();
      std::memcpy(batch_.bytes(i).data() + filled_ * size, from.columns[i].data() + first * size, count * size);
    }
    filled_ += count;
  }

  [[nodiscard]] data::batch& batch() noexcept { return batch_; }

 private:
  const std::vector<data::column_spec>& inputs_;
  data::batch batch_;
  std::uint64_t filled_ = 0;
};

/// A call of the predictor, timed.
expected<void> predict_joined(served_model& model, joined_rows& rows, std::span<float> out, metrics& counts) {
  const auto count = rows.batch().size();
  const auto begin = std::chrono::steady_clock::now();
  auto result = model.predictor->predict(rows.batch(), out);
  counts.count_batch(std::chrono::duration<double>{std::chrono::steady_clock::now() - begin}.count(), count);
  return result;
}

/// One request by itself, in parts of at most `max_rows`.
expected<std::vector<float>> predict_alone(served_model& model, const row_values& rows, std::uint64_t max_rows,
                                           metrics& counts) {
  const auto width = model.predictor->outputs().size();
  std::vector<float> result(rows.rows * width);
  for (std::uint64_t first = 0; first < rows.rows; first += max_rows) {
    const auto count = std::min(max_rows, rows.rows - first);
    auto joined = joined_rows{model.inputs, count};
    joined.append(rows, first, count);
    TROUPE_TRY(predict_joined(model, joined, std::span{result}.subspan(first * width, count * width), counts));
  }
  return result;
}

expected<std::vector<float>> predict_together(served_model& model, const std::vector<pending_ptr>& batch,
                                              std::uint64_t rows, metrics& counts) {
  auto joined = joined_rows{model.inputs, rows};
  for (const auto& each : batch)
    joined.append(each->rows(), 0, each->rows().rows);
  std::vector<float> result(rows * model.predictor->outputs().size());
  TROUPE_TRY(predict_joined(model, joined, result, counts));
  return result;
}

expected<model_face> check_loaded(served_model& model) {
  if (model.predictor == nullptr || model.predictor->outputs().empty())
    return fail(errc::user_error, "the model needs a predictor with at least one output");
  TROUPE_TRY(check_inputs(model.inputs));
  data::batch zeros;
  zeros.reset(model.inputs, 1);
  for (std::size_t i = 0; i < model.inputs.size(); ++i)
    std::ranges::fill(zeros.bytes(i), std::byte{0});
  std::vector<float> out(model.predictor->outputs().size());
  if (auto tried = safely([&] { return model.predictor->predict(zeros, out); }); !tried)
    return fail(tried.error().code, fmt::format("the model cannot predict a row of zeros: {}", tried.error().message));
  model_face result;
  result.library = model.predictor->library();
  result.inputs = std::make_shared<const input_table>(model.inputs);
  result.outputs = model.predictor->outputs();
  return result;
}

/// The outputs of all requests of a batch; false if it failed.
bool complete_together(served_model& model, const model_face_ptr& face, const std::vector<pending_ptr>& batch,
                       metrics& counts) {
  std::uint64_t rows = 0;
  for (const auto& each : batch)
    rows += each->rows().rows;
  const auto found = safely([&] { return predict_together(model, batch, rows, counts); });
  if (!found)
    return false;
  const auto* next = found->data();
  for (const auto& each : batch) {
    const auto count = each->rows().rows * face->outputs.size();
    each->complete(prediction{{next, next + count}, face});
    next += count;
  }
  return true;
}

} // namespace

std::vector<pending_ptr> predict_batch(served_model& model, const model_face_ptr& face,
                                       const std::vector<pending_ptr>& batch, std::uint64_t max_rows,
                                       metrics& counts) noexcept {
  try {
    if (batch.size() > 1 && complete_together(model, face, batch, counts))
      return {};
    for (auto each = batch.begin(); each != batch.end(); ++each) {
      if (!model.predictor->is_usable())
        return {each, batch.end()};
      auto found = safely([&] { return predict_alone(model, (*each)->rows(), max_rows, counts); });
      if (found)
        (*each)->complete(prediction{std::move(*found), face});
      else if (model.predictor->is_usable())
        (*each)->complete(std::move(found.error()));
      else
        return {each, batch.end()};
    }
  } catch (...) {
    // The text needs no memory.
    for (const auto& each : batch)
      each->complete(error{errc::user_error, "out of memory"});
  }
  return {};
}

replica_group::replica_group(std::uint32_t replicas, make_model make, std::uint64_t max_rows, dispatcher& queue,
                             metrics& counts)
    : make_(std::move(make)), max_rows_(max_rows), queue_(queue), counts_(counts), replicas_(replicas) {
  for (auto& each : replicas_) {
    try {
      each.thread = std::thread{[this, &each] { live(each); }};
    } catch (const std::system_error& x) {
      each.loaded.set_value(fail(errc::unsatisfiable, fmt::format("no thread for a replica: {}", x.what())));
    }
  }
}

replica_group::~replica_group() {
  if (!has_started_)
    go_.set_value(nullptr);
  for (auto& each : replicas_)
    if (each.thread.joinable())
      each.thread.join();
}

void replica_group::live(state& own) noexcept {
  auto model = safely([this] { return make_(); });
  auto face = model ? safely([&] { return check_loaded(*model); }) : expected<model_face>{fail(model.error())};
  const auto is_loaded = face.has_value();
  own.loaded.set_value(std::move(face));
  if (!is_loaded)
    return;
  const auto served = may_go_.get();
  if (served == nullptr)
    return;
  for (;;) {
    try {
      if ((model->predictor == nullptr || !model->predictor->is_usable()) && !restore(*model, *served))
        return;
      const auto batch = queue_.take(served->version);
      if (batch.empty())
        return;
      const auto left = predict_batch(*model, served, batch, max_rows_, counts_);
      if (!left.empty())
        queue_.put_back(left);
    } catch (const std::bad_alloc&) {
      // The requests that were to be taken are late.
    }
  }
}

/// Loads the model of a lost replica again. False once another model is served.
bool replica_group::restore(served_model& model, const model_face& served) {
  counts_.count_lost_replica();
  // What it had is given back first.
  model = {};
  for (auto pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
    if (!queue_.await_while_served(served.version, pause))
      return false;
    auto made = safely([this] { return make_(); });
    const auto face = made ? safely([&] { return check_loaded(*made); }) : expected<model_face>{fail(made.error())};
    if (face && std::ranges::equal(face->inputs->columns(), served.inputs->columns()) &&
        face->outputs == served.outputs) {
      model = std::move(*made);
      return true;
    }
  }
}

expected<model_face> replica_group::await_loaded() {
  std::vector<expected<model_face>> all;
  for (auto& each : replicas_)
    all.push_back(each.loaded.get_future().get());
  for (auto& each : all)
    if (!each)
      return std::move(each);
  return std::move(all.front());
}

void replica_group::start(model_face_ptr model) {
  has_started_ = true;
  go_.set_value(std::move(model));
}

} // namespace troupe::serving
