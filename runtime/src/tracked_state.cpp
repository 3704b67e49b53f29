#include <troupe/tracked_state.hpp>

#include <troupe/serialization/checkpoint.hpp>
#include <troupe/serialization/digest.hpp>

#include <algorithm>

namespace troupe {

namespace {

constexpr std::uint64_t slice_bytes = 64 << 10;

std::span<const std::byte> bytes_of(const tensor_view& tensor) {
  return {tensor.data, tensor.spec.size_bytes()};
}

std::string describe(const tensor_spec& spec) {
  auto text = std::string{to_string(spec.type)} + " [";
  for (std::size_t i = 0; i < spec.shape.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(spec.shape[i]);
  return text + "]";
}

} // namespace

void tracked_state::add(tensor_view tensor, std::size_t size_bytes) {
  const auto& spec = tensor.spec;
  if (spec.size_bytes() != size_bytes)
    throw failure{errc::invalid_argument, "tensor '" + spec.name + "' is tracked as " + describe(spec) +
                                              ", which are " + std::to_string(spec.size_bytes()) +
                                              " bytes, but its memory has " + std::to_string(size_bytes)};
  if (std::ranges::any_of(tensors_, [&](const tensor_view& x) { return x.spec.name == spec.name; }))
    throw failure{errc::invalid_argument, "tensor '" + spec.name + "' is tracked twice: names must be unique"};
  if (source_) {
    const auto& stored = source_->content().tensors;
    auto found = source_->find(spec.name);
    if (!found)
      throw failure{errc::mismatch, "checkpoint " + source_->directory().string() + " has no tensor '" + spec.name +
                                        "': the training function tracks something that the checkpoint's did not"};
    if (stored[*found].spec != spec)
      throw failure{errc::mismatch, "tensor '" + spec.name + "' is " + describe(stored[*found].spec) +
                                        " in checkpoint " + source_->directory().string() + ", but tracked as " +
                                        describe(spec)};
    value_or_throw(source_->read_tensor(*found, {tensor.data, size_bytes}));
  }
  tensors_.push_back(std::move(tensor));
}

std::vector<tensor_spec> tracked_state::specs() const {
  std::vector<tensor_spec> result;
  for (const auto& each : tensors_)
    result.push_back(each.spec);
  return result;
}

void tracked_state::restore_from(std::shared_ptr<const serialization::checkpoint> source) {
  source_ = std::move(source);
  const auto& text = source_->content().values_json;
  if (!text.empty())
    values_ = nlohmann::json::parse(text);
}

std::vector<std::string> tracked_state::untouched() const {
  std::vector<std::string> result;
  if (source_)
    for (const auto& stored : source_->content().tensors)
      if (std::ranges::none_of(tensors_, [&](const tensor_view& x) { return x.spec.name == stored.spec.name; }))
        result.push_back(stored.spec.name);
  return result;
}

std::uint64_t tracked_state::digest() const {
  auto parts = digests();
  return serialization::xxh3(std::as_bytes(std::span{parts}));
}

std::uint64_t tracked_state::digest_of_slice(std::uint64_t number) const {
  auto slices_of = [](const tensor_view& x) { return (x.spec.size_bytes() + slice_bytes - 1) / slice_bytes; };
  // The values are the last slice.
  std::uint64_t total = 1;
  for (const auto& each : tensors_)
    total += slices_of(each);
  auto index = number % total;
  for (const auto& each : tensors_) {
    auto n = slices_of(each);
    if (index < n) {
      auto bytes = bytes_of(each).subspan(index * slice_bytes);
      return serialization::xxh3(bytes.first(std::min<std::size_t>(bytes.size(), slice_bytes)));
    }
    index -= n;
  }
  return serialization::xxh3(serialization::bytes_of(values_.dump()));
}

std::vector<std::uint64_t> tracked_state::digests() const {
  std::vector<std::uint64_t> result;
  for (const auto& each : tensors_)
    result.push_back(serialization::xxh3(bytes_of(each)));
  result.push_back(serialization::xxh3(serialization::bytes_of(values_.dump())));
  return result;
}

std::string tracked_state::name_of_part(std::size_t index) const {
  return index < tensors_.size() ? "tensor '" + tensors_[index].spec.name + "'" : "values()";
}

std::string tracked_state::sha256() const {
  if (tensors_.empty() && values_.empty())
    return {};
  return serialization::state_sha256(tensors_, values_.dump());
}

} // namespace troupe
