#include <troupe/serialization/interchange/safetensors.hpp>

#include "vocabulary/checked_size.hpp"
#include "vocabulary/quote_for_log.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>
#include <utility>

namespace troupe::serialization {

namespace {

constexpr std::string_view metadata_key = "__metadata__";

constexpr std::array<std::pair<dtype, std::string_view>, 13> dtype_names{{
    {dtype::f64, "F64"},
    {dtype::f32, "F32"},
    {dtype::f16, "F16"},
    {dtype::bf16, "BF16"},
    {dtype::i64, "I64"},
    {dtype::i32, "I32"},
    {dtype::i16, "I16"},
    {dtype::i8, "I8"},
    {dtype::u64, "U64"},
    {dtype::u32, "U32"},
    {dtype::u16, "U16"},
    {dtype::u8, "U8"},
    {dtype::boolean, "BOOL"},
}};

std::string_view name_of(dtype type) {
  auto found = std::ranges::find(dtype_names, type, &std::pair<dtype, std::string_view>::first);
  return found == dtype_names.end() ? std::string_view{} : found->second;
}

std::optional<dtype> dtype_named(std::string_view name) {
  auto found = std::ranges::find(dtype_names, name, &std::pair<dtype, std::string_view>::second);
  return found == dtype_names.end() ? std::nullopt : std::optional{found->first};
}

std::string all_dtypes() {
  auto result = std::vector<std::string_view>{};
  for (const auto& [type, name] : dtype_names)
    result.push_back(name);
  return fmt::format("{}", fmt::join(result, ", "));
}

/// A tensor's entry in the header.
struct described_tensor {
  tensor_spec spec;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Parses the header's JSON with a SAX interface and stops at the first violation of the format. Its depth and memory
/// are bounded by the format.
class safetensors_header_reader {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  bool null() { return unexpected("null"); }
  bool boolean(bool value) { return unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) { return unexpected(fmt::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) { return unexpected(text.substr(0, 80)); }
  bool binary(binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) {
    if (where_ == place::shape) {
      if (tensor_.spec.shape.size() == max_imported_dimensions)
        return refuse(fmt::format("{} has more than {} dimensions", tensor_name(), max_imported_dimensions));
      tensor_.spec.shape.push_back(value);
      return true;
    }
    if (where_ == place::offsets && offsets_ < 2) {
      (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
      return true;
    }
    return unexpected(fmt::to_string(value));
  }

  bool string(string_t& value) {
    if (where_ == place::metadata) {
      result_.metadata[key_] = std::move(value);
      return true;
    }
    if (where_ != place::tensor || key_ != "dtype")
      return unexpected(quote_for_log(value));
    auto type = dtype_named(value);
    if (!type)
      return refuse(fmt::format("{} has elements of dtype {}, which Troupe does not support: convert them first to one "
                                "of {}",
                                tensor_name(), quote_for_log(value), all_dtypes()),
                    errc::invalid_argument);
    tensor_.spec.type = *type;
    return true;
  }

  bool start_object(std::size_t) {
    if (where_ == place::before)
      return enter(place::top);
    if (where_ != place::top)
      return unexpected("an object");
    if (key_ == metadata_key)
      return enter(place::metadata);
    tensor_ = {};
    tensor_.spec.name = key_;
    fields_ = {};
    return enter(place::tensor);
  }

  bool key(string_t& value) {
    key_ = std::move(value);
    if (where_ == place::top && !names_.insert(key_).second)
      return refuse(fmt::format("there are two entries {}", key_name()));
    if (where_ == place::metadata && result_.metadata.contains(key_))
      return refuse(fmt::format("__metadata__ has two entries {}", key_name()));
    if (where_ == place::tensor)
      return begin_field();
    return true;
  }

  bool end_object() {
    if (where_ == place::tensor)
      return finish_tensor() && enter(place::top);
    return enter(where_ == place::metadata ? place::top : place::after);
  }

  bool start_array(std::size_t) {
    if (where_ == place::tensor && key_ == "shape")
      return enter(place::shape);
    if (where_ == place::tensor && key_ == "data_offsets") {
      offsets_ = 0;
      return enter(place::offsets);
    }
    return unexpected("an array");
  }

  bool end_array() {
    if (where_ == place::offsets && offsets_ != 2)
      return refuse(fmt::format("{} has {} data_offsets, not two", tensor_name(), offsets_));
    return enter(place::tensor);
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    return refuse(fmt::format("it is not JSON at byte {}", position));
  }

  [[nodiscard]] error& flaw() { return flaw_; }
  [[nodiscard]] std::vector<described_tensor>& tensors() { return tensors_; }
  [[nodiscard]] safetensors_index& result() { return result_; }

 private:
  enum class place { before, top, metadata, tensor, shape, offsets, after };

  bool enter(place next) {
    where_ = next;
    return true;
  }

  bool refuse(std::string text, errc code = errc::damaged) {
    flaw_ = {code, std::move(text)};
    return false;
  }

  bool unexpected(std::string_view what) {
    switch (where_) {
    case place::before:
    case place::after:
      return refuse(fmt::format("it is {} where an object is expected", what));
    case place::top:
      return refuse(fmt::format("entry {} is {} where an object is expected", key_name(), what));
    case place::metadata:
      return refuse(fmt::format("__metadata__ has {} under {}, where a string is expected", what, key_name()));
    case place::tensor:
    case place::shape:
    case place::offsets:
      break;
    }
    return refuse(fmt::format("{} has {} in its {}", tensor_name(), what, key_));
  }

  bool begin_field() {
    static constexpr std::array<std::string_view, 3> known{"dtype", "shape", "data_offsets"};
    auto found = std::ranges::find(known, key_);
    if (found == known.end())
      return refuse(fmt::format("{} has a field {}, which the format does not define", tensor_name(), key_name()));
    auto& seen = fields_[static_cast<std::size_t>(found - known.begin())];
    if (seen)
      return refuse(fmt::format("{} has two fields {}", tensor_name(), key_name()));
    return seen = true;
  }

  bool finish_tensor() {
    auto which = tensor_name();
    if (!fields_[0] || !fields_[1] || !fields_[2])
      return refuse(fmt::format("{} has no {}", which, !fields_[0] ? "dtype" : !fields_[1] ? "shape" : "data_offsets"));
    auto size = checked_size(tensor_.spec.type, tensor_.spec.shape);
    if (!size)
      return refuse(which + " has a size that does not fit into 64 bits");
    if (tensor_.begin > tensor_.end)
      return refuse(which + " ends before it begins");
    if (tensor_.end - tensor_.begin != *size)
      return refuse(fmt::format("{} has {} bytes by shape and dtype, and {} by its data_offsets", which, *size,
                                tensor_.end - tensor_.begin));
    tensors_.push_back(std::move(tensor_));
    return true;
  }

  [[nodiscard]] std::string key_name() const { return quote_for_log(key_); }
  [[nodiscard]] std::string tensor_name() const { return fmt::format("tensor {}", quote_for_log(tensor_.spec.name)); }

  place where_ = place::before;
  std::string key_;
  std::unordered_set<std::string> names_;
  described_tensor tensor_;
  std::array<bool, 3> fields_{};
  std::size_t offsets_ = 0;
  std::vector<described_tensor> tensors_;
  safetensors_index result_;
  error flaw_;
};

/// Checks that the tensors follow each other without gaps and cover all bytes.
expected<void> check_cover(const std::vector<described_tensor>& tensors, std::uint64_t data_bytes) {
  auto covered = std::uint64_t{0};
  for (const auto& tensor : tensors) {
    auto name = quote_for_log(tensor.spec.name);
    if (tensor.begin < covered)
      return fail(errc::damaged, fmt::format("tensor {} begins at byte {} and overlaps the one before it, which ends "
                                             "at {}",
                                             name, tensor.begin, covered));
    if (tensor.begin > covered)
      return fail(errc::damaged, fmt::format("tensor {} begins at byte {} and leaves a gap from byte {} on", name,
                                             tensor.begin, covered));
    if (tensor.end > data_bytes)
      return fail(errc::damaged, fmt::format("tensor {} ends at byte {} of {}: the file is truncated or its header is "
                                             "wrong",
                                             name, tensor.end, data_bytes));
    covered = tensor.end;
  }
  if (covered != data_bytes)
    return fail(errc::damaged, fmt::format("the tensors end at byte {}, and {} bytes follow that belong to none",
                                           covered, data_bytes - covered));
  return {};
}

expected<std::string> json_text(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    return fail(errc::invalid_argument, fmt::format("the name or text {} is not UTF-8, which the safetensors format "
                                                    "requires: rename it",
                                                    quote_for_log(text)));
  }
}

expected<std::string> metadata_text(const std::map<std::string, std::string>& metadata) {
  auto result = std::string{"{"};
  for (const auto& [key, value] : metadata) {
    auto left = json_text(key);
    if (!left)
      return left;
    auto right = json_text(value);
    if (!right)
      return right;
    result += fmt::format("{}{}:{}", result.size() == 1 ? "" : ",", *left, *right);
  }
  result += '}';
  return result;
}

expected<std::string> entry_text(const tensor_spec& spec, std::uint64_t begin) {
  auto name = json_text(spec.name);
  if (!name)
    return name;
  auto size = checked_size(spec.type, spec.shape);
  auto end = std::uint64_t{0};
  if (!size || __builtin_add_overflow(begin, *size, &end))
    return fail(errc::invalid_argument,
                fmt::format("tensor {} has a size that does not fit into 64 bits", quote_for_log(spec.name)));
  return fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", *name, name_of(spec.type),
                     fmt::join(spec.shape, ","), begin, end);
}

} // namespace

expected<safetensors_index> parse_safetensors_header(std::string_view header, std::uint64_t data_bytes) {
  auto refuse = [](errc code, std::string_view why) {
    return fail(code, fmt::format("the header is invalid: {}", why));
  };
  if (!header.starts_with('{'))
    return refuse(errc::damaged, "it does not begin with {");
  // The JSON parser would stop at a null byte and ignore what follows.
  if (auto at = header.find('\0'); at != std::string_view::npos)
    return refuse(errc::damaged, fmt::format("it is not JSON at byte {}", at));
  auto reader = safetensors_header_reader{};
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &reader))
    return refuse(reader.flaw().code, reader.flaw().message);
  auto& tensors = reader.tensors();
  std::ranges::sort(tensors, {}, [](const described_tensor& x) { return std::tie(x.begin, x.end, x.spec.name); });
  if (auto good = check_cover(tensors, data_bytes); !good)
    return refuse(good.error().code, good.error().message);
  auto result = std::move(reader.result());
  for (auto& tensor : tensors)
    result.tensors.push_back({std::move(tensor.spec), 8 + header.size() + tensor.begin});
  return result;
}

expected<safetensors_head> make_safetensors_head(std::span<const tensor_spec> tensors,
                                                 const std::map<std::string, std::string>& metadata) {
  auto result = safetensors_head{};
  result.order.resize(tensors.size());
  std::iota(result.order.begin(), result.order.end(), std::size_t{0});
  std::ranges::sort(result.order, [&](std::size_t a, std::size_t b) {
    auto left = size_of(tensors[a].type);
    auto right = size_of(tensors[b].type);
    return left != right ? left > right : tensors[a].name < tensors[b].name;
  });
  auto header = std::string{'{'};
  if (!metadata.empty()) {
    TROUPE_TRY(auto text, metadata_text(metadata));
    header += fmt::format("{}:{}", json_text(std::string{metadata_key}).value(), text);
  }
  auto names = std::unordered_set<std::string_view>{metadata_key};
  auto begin = std::uint64_t{0};
  for (auto i : result.order) {
    if (!names.insert(tensors[i].name).second)
      return fail(errc::invalid_argument, fmt::format("there are two tensors {}, or the name is reserved by the "
                                                      "format: rename one",
                                                      quote_for_log(tensors[i].name)));
    TROUPE_TRY(auto text, entry_text(tensors[i], begin));
    if (header.size() > 1)
      header += ',';
    header += text;
    begin += tensors[i].size_bytes();
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > max_safetensors_header_bytes)
    return fail(errc::invalid_argument,
                fmt::format("the header of {} tensors has {} bytes, and a safetensors file can have {}: write several "
                            "files",
                            tensors.size(), header.size(), max_safetensors_header_bytes));
  for (std::size_t i = 0; i < 8; ++i)
    result.text += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  result.text += header;
  return result;
}

} // namespace troupe::serialization
