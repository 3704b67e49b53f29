#include <troupe/inference/model_storage.hpp>

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>

namespace troupe::inference {

namespace {

constexpr std::size_t length_bytes = 8;

} // namespace

expected<void> put_model(std::span<const std::byte> model, std::span<std::byte> storage) {
  if (storage.size() < length_bytes || model.size() > storage.size() - length_bytes)
    return fail(errc::unsatisfiable, fmt::format("the model has {} bytes, and checkpoints have {} for it: start a new "
                                                 "run with a larger training_config::model_bytes",
                                                 model.size(), storage.size()));
  for (std::size_t i = 0; i < length_bytes; ++i)
    storage[i] = static_cast<std::byte>(std::uint64_t{model.size()} >> (8 * i) & 0xff);
  std::ranges::copy(model, storage.begin() + length_bytes);
  std::ranges::fill(storage.subspan(length_bytes + model.size()), std::byte{0});
  return {};
}

expected<std::span<const std::byte>> get_model(std::span<const std::byte> storage) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < std::min(length_bytes, storage.size()); ++i)
    length |= static_cast<std::uint64_t>(storage[i]) << (8 * i);
  if (storage.size() < length_bytes || length > storage.size() - length_bytes)
    return fail(errc::damaged, fmt::format("a model of {} bytes cannot be in a tensor of {}", length, storage.size()));
  return storage.subspan(length_bytes, length);
}

expected<std::vector<std::byte>> read_model(const serialization::checkpoint& source, std::string_view tensor) {
  auto index = source.find(tensor);
  if (!index)
    return fail(errc::not_found,
                fmt::format("{} holds no model: it has no tensor '{}'", source.directory().string(), tensor));
  std::vector<std::byte> storage(source.content().tensors[*index].spec.size_bytes());
  TROUPE_TRY(source.read_tensor(*index, storage));
  auto model = get_model(storage);
  if (!model)
    return fail(model.error().code, fmt::format("{}: {}", source.directory().string(), model.error().message));
  return std::vector<std::byte>{model->begin(), model->end()};
}

std::optional<std::uint64_t> latest_capacity(const run_config& run, std::string_view tensor) {
  if (run.name.empty() || run.resume == resume_mode::never || run.resume == resume_mode::restart)
    return std::nullopt;
  auto latest = serialization::open_latest(run.storage_path / run.name / "checkpoints");
  auto index = latest ? latest->found.find(tensor) : std::nullopt;
  if (!index)
    return std::nullopt;
  return latest->found.content().tensors[*index].spec.size_bytes();
}

} // namespace troupe::inference
