#include <troupe/tracked_state.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace troupe {

namespace {

constexpr std::uint64_t slice_bytes = 64 << 10;

std::uint64_t slices_of(const tensor_spec& spec) {
  return (spec.size_bytes() + slice_bytes - 1) / slice_bytes;
}

/// The size of one copy from memory that no pointer can reach.
constexpr std::uint64_t piece_bytes = 4 << 20;

std::string describe(const tensor_spec& spec) {
  return fmt::format("{} [{}]", to_string(spec.type), fmt::join(spec.shape, ", "));
}

/// A checkpoint whose files are within reach.
class stored_state : public state_source {
 public:
  explicit stored_state(std::shared_ptr<const serialization::checkpoint> files) : files_(std::move(files)) {}

  const serialization::manifest& content() const override { return files_->content(); }
  std::string name() const override { return files_->directory().string(); }
  expected<void> read_tensor(std::size_t index, std::span<std::byte> target) const override {
    return files_->read_tensor(index, target);
  }

 private:
  std::shared_ptr<const serialization::checkpoint> files_;
};

} // namespace

tracked_state::tracked_state() : values_(std::make_unique<nlohmann::json>(nlohmann::json::object())) {}

tracked_state::~tracked_state() = default;

void tracked_state::add(tensor_view tensor, std::size_t size_bytes) {
  check_new(tensor.spec, size_bytes);
  keep(std::move(tensor), nullptr);
}

void tracked_state::track(std::string name, dtype type, std::vector<std::uint64_t> shape,
                          std::shared_ptr<tensor_memory> memory) {
  auto tensor = tensor_view{{std::move(name), type, std::move(shape)}, nullptr};
  check_new(tensor.spec, memory->size_bytes());
  keep(std::move(tensor), std::move(memory));
}

void tracked_state::check_new(const tensor_spec& spec, std::uint64_t size_bytes) const {
  if (spec.size_bytes() != size_bytes)
    throw exception{errc::invalid_argument,
                    fmt::format("tensor '{}' is tracked as {}, which are {} bytes, but its memory has {}", spec.name,
                                describe(spec), spec.size_bytes(), size_bytes)};
  if (std::ranges::any_of(tensors_, [&](const tensor_view& x) { return x.spec.name == spec.name; }))
    throw exception{errc::invalid_argument, "tensor '" + spec.name + "' is tracked twice: names must be unique"};
}

/// And fills it in, if there is what to begin with.
void tracked_state::keep(tensor_view tensor, std::shared_ptr<tensor_memory> memory) {
  const auto& spec = tensor.spec;
  if (source_) {
    auto found = find_in_source(spec.name);
    const auto* stored = found ? &source_->content().tensors[*found].spec : nullptr;
    if (stored == nullptr) {
      if (!options_.allow_missing)
        missing_.push_back("'" + spec.name + "' " + describe(spec));
    } else if (stored->type != spec.type || stored->shape != spec.shape) {
      different_.push_back("'" + spec.name + "' is " + describe(*stored) + ", but tracked as " + describe(spec));
    } else if (memory == nullptr) {
      value_or_throw(source_->read_tensor(*found, {tensor.data, spec.size_bytes()}));
    } else {
      // Verified here, before any of it gets there.
      auto copy = std::vector<std::byte>(spec.size_bytes());
      value_or_throw(source_->read_tensor(*found, copy));
      value_or_throw(memory->write(0, copy));
    }
  }
  tensors_.push_back(std::move(tensor));
  memories_.push_back(std::move(memory));
}

std::span<std::byte> tracked_state::in_place(std::size_t index, std::uint64_t offset_bytes,
                                             std::uint64_t size_bytes) const noexcept {
  auto* data = tensors_[index].data;
  return data == nullptr ? std::span<std::byte>{} : std::span{data + offset_bytes, size_bytes};
}

void tracked_state::copy_out(std::size_t index, std::uint64_t offset_bytes, std::span<std::byte> target) const {
  if (const auto& memory = memories_[index])
    value_or_throw(memory->read(offset_bytes, target));
  else
    std::ranges::copy(in_place(index, offset_bytes, target.size()), target.begin());
}

void tracked_state::copy_in(std::size_t index, std::uint64_t offset_bytes, std::span<const std::byte> source) {
  if (const auto& memory = memories_[index])
    value_or_throw(memory->write(offset_bytes, source));
  else
    std::ranges::copy(source, in_place(index, offset_bytes, source.size()).begin());
}

void tracked_state::look_at(std::size_t index, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                            const byte_sink& look) const {
  const auto& memory = memories_[index];
  if (memory == nullptr)
    return look(in_place(index, offset_bytes, size_bytes));
  auto piece = std::vector<std::byte>(std::min<std::uint64_t>(size_bytes, piece_bytes));
  for (std::uint64_t done = 0; done < size_bytes; done += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), size_bytes - done));
    value_or_throw(memory->read(offset_bytes + done, piece));
    look(piece);
  }
}

std::shared_ptr<tensor_memory> tracked_state::distant_memory() const noexcept {
  auto found = std::ranges::find_if(memories_, [](const auto& x) { return x != nullptr; });
  return found == memories_.end() ? nullptr : *found;
}

std::vector<tensor_spec> tracked_state::specs() const {
  std::vector<tensor_spec> result;
  for (const auto& each : tensors_)
    result.push_back(each.spec);
  return result;
}

/// Under the name that it has here, or had there.
std::optional<std::size_t> tracked_state::find_in_source(const std::string& name) const {
  const auto& stored = source_->content().tensors;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    auto renamed = options_.renames.find(stored[i].spec.name);
    if ((renamed == options_.renames.end() ? stored[i].spec.name : renamed->second) == name)
      return i;
  }
  return std::nullopt;
}

void tracked_state::restore_from(std::shared_ptr<const state_source> source, load_options options) {
  source_ = std::move(source);
  options_ = std::move(options);
  const auto& text = source_->content().values_json;
  if (!text.empty())
    *values_ = nlohmann::json::parse(text);
}

void tracked_state::restore_from(std::shared_ptr<const serialization::checkpoint> source, load_options options) {
  restore_from(std::make_shared<const stored_state>(std::move(source)), std::move(options));
}

std::vector<std::string> tracked_state::untouched() const {
  std::vector<std::string> result;
  if (source_)
    for (const auto& stored : source_->content().tensors) {
      auto renamed = options_.renames.find(stored.spec.name);
      const auto& here = renamed == options_.renames.end() ? stored.spec.name : renamed->second;
      if (std::ranges::none_of(tensors_, [&](const tensor_view& x) { return x.spec.name == here; }))
        result.push_back(stored.spec.name);
    }
  return result;
}

void tracked_state::check_restored() const {
  check(true);
}

void tracked_state::check_restored_so_far() const {
  check(false);
}

void tracked_state::check(bool is_complete) const {
  if (!source_)
    return;
  auto text = std::string{};
  auto add = [&](const std::string& what, const std::vector<std::string>& which) {
    for (std::size_t i = 0; i < which.size(); ++i)
      text += (i > 0 ? ", " : "\n  " + what) + which[i];
  };
  add("missing in it: ", missing_);
  add("of another type or shape: ", different_);
  auto extra = std::vector<std::string>{};
  if (is_complete && !options_.ignore_extra)
    for (const auto& name : untouched())
      extra.push_back("'" + name + "'");
  add("not tracked (track them before for_each_step): ", extra);
  auto unknown = std::vector<std::string>{};
  for (const auto& [there, here] : options_.renames)
    if (std::ranges::none_of(source_->content().tensors, [&](const auto& x) { return x.spec.name == there; }))
      unknown.push_back("'" + there + "'");
  add("to be renamed, but not in it: ", unknown);
  if (text.empty())
    return;
  throw exception{errc::mismatch, "the tensors of checkpoint " + source_->name() +
                                      " are not those that the training function tracks:" + text +
                                      "\n(the state of another run can be taken in part: load_options)"};
}

std::uint64_t tracked_state::digest_of(std::size_t index, std::uint64_t offset_bytes, std::uint64_t size_bytes) const {
  if (memories_[index] == nullptr)
    return serialization::xxh3(in_place(index, offset_bytes, size_bytes));
  auto digest = serialization::xxh3_stream{};
  look_at(index, offset_bytes, size_bytes, [&](std::span<const std::byte> bytes) { digest.update(bytes); });
  return digest.digest();
}

std::uint64_t tracked_state::digest() const {
  auto parts = digests();
  return serialization::xxh3(std::as_bytes(std::span{parts}));
}

std::uint64_t tracked_state::digest_of_slice(std::uint64_t number) const {
  // The values are the last slice.
  std::uint64_t total = 1;
  for (const auto& each : tensors_)
    total += slices_of(each.spec);
  auto index = number % total;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    auto n = slices_of(tensors_[i].spec);
    if (index < n) {
      auto first = index * slice_bytes;
      return digest_of(i, first, std::min(tensors_[i].spec.size_bytes() - first, slice_bytes));
    }
    index -= n;
  }
  return serialization::xxh3(serialization::bytes_of(values_->dump()));
}

std::vector<std::pair<std::string, std::uint64_t>> tracked_state::slices() const {
  std::vector<std::pair<std::string, std::uint64_t>> result;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    result.emplace_back(name_of_part(i), slices_of(tensors_[i].spec));
  result.emplace_back(name_of_part(tensors_.size()), 1);
  return result;
}

std::vector<std::uint64_t> tracked_state::digests() const {
  std::vector<std::uint64_t> result;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    result.push_back(digest_of(i, 0, tensors_[i].spec.size_bytes()));
  result.push_back(serialization::xxh3(serialization::bytes_of(values_->dump())));
  return result;
}

std::string tracked_state::name_of_part(std::size_t index) const {
  return index < tensors_.size() ? "tensor '" + tensors_[index].spec.name + "'" : "values()";
}

std::string tracked_state::sha256() const {
  if (tensors_.empty() && values_->empty())
    return {};
  auto read = [this](std::size_t i, const byte_sink& sink) { look_at(i, 0, tensors_[i].spec.size_bytes(), sink); };
  return serialization::state_sha256(specs(), read, values_->dump());
}

} // namespace troupe
