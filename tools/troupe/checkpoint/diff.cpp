#include "commands.hpp"
#include "comparison.hpp"
#include "locate.hpp"
#include "text.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

namespace troupe::tool {

namespace fs = std::filesystem;

namespace {

struct compared_tensor {
  std::string name;
  /// dtype and shape on each side; empty if the tensor is missing there.
  std::string left;
  std::string right;
  /// Only if dtype and shape are equal.
  std::optional<tensor_difference> elements;

  [[nodiscard]] bool equal() const { return elements && elements->differing == 0; }
};

struct compared_field {
  std::string name;
  std::string left;
  std::string right;
};

struct comparison {
  std::vector<compared_tensor> tensors;
  /// The fields that differ. Values are part of the state, the others are not.
  std::vector<compared_field> values;
  std::vector<compared_field> others;

  [[nodiscard]] bool same_state() const {
    return values.empty() && std::ranges::all_of(tensors, &compared_tensor::equal);
  }
};

expected<serialization::checkpoint> open(const fs::path& path) {
  auto one = locate_one(path, std::nullopt);
  if (!one)
    return fail(std::move(one.error()));
  return serialization::checkpoint::open(*one);
}

expected<std::vector<std::byte>> read(const serialization::checkpoint& from, std::size_t index) {
  auto result = std::vector<std::byte>(from.content().tensors[index].spec.size_bytes());
  if (auto read = from.read_tensor(index, result); !read)
    return fail(std::move(read.error()));
  return result;
}

expected<compared_tensor> compare_tensor(const serialization::checkpoint& left, const serialization::checkpoint& right,
                                         const std::string& name, progress_line& progress) {
  auto result = compared_tensor{name, {}, {}, {}};
  auto i = left.find(name);
  auto j = right.find(name);
  if (i)
    result.left = spec_text(left.content().tensors[*i].spec);
  if (j)
    result.right = spec_text(right.content().tensors[*j].spec);
  if (result.left != result.right)
    return result;
  auto a = read(left, *i);
  if (!a)
    return fail(std::move(a.error()));
  auto b = read(right, *j);
  if (!b)
    return fail(std::move(b.error()));
  result.elements = compare(left.content().tensors[*i].spec.type, *a, *b);
  progress.add(a->size());
  return result;
}

/// The state's values. An empty object and an empty text both mean that there are none.
std::string values_text(const serialization::manifest& content) {
  return content.values_json == "{}" ? "" : content.values_json;
}

void compare_fields(const serialization::manifest& left, const serialization::manifest& right, comparison& result) {
  auto add = [](std::vector<compared_field>& to, const char* name, std::string a, std::string b) {
    if (a != b)
      to.push_back({name, std::move(a), std::move(b)});
  };
  auto other = [&](const char* name, std::string a, std::string b) {
    add(result.others, name, std::move(a), std::move(b));
  };
  auto number = [&](const char* name, auto a, auto b) { other(name, std::to_string(a), std::to_string(b)); };
  add(result.values, "values", values_text(left), values_text(right));
  other("run", left.run.value, right.run.value);
  number("step", left.step.value, right.step.value);
  number("generation", left.generation.value, right.generation.value);
  number("world_size", left.world_size, right.world_size);
  number("finishes_run", int{left.finishes_run}, int{right.finishes_run});
  number("seed", left.seed, right.seed);
  number("shards", left.shards, right.shards);
  number("global_batch", left.global_batch, right.global_batch);
  number("tree_version", left.tree_version, right.tree_version);
  other("program_build_id", left.program_build_id, right.program_build_id);
  other("earlier_programs", left.earlier_programs_json, right.earlier_programs_json);
  other("configuration", left.configuration_json, right.configuration_json);
  other("data_fingerprint", left.data_fingerprint, right.data_fingerprint);
  other("numerics_fingerprint", left.numerics_fingerprint_json, right.numerics_fingerprint_json);
  other("metrics", metrics_json(left.metrics).dump(-1, ' ', false, json::error_handler_t::replace),
        metrics_json(right.metrics).dump(-1, ' ', false, json::error_handler_t::replace));
  other("attachments", json(left.attachments).dump(-1, ' ', false, json::error_handler_t::replace),
        json(right.attachments).dump(-1, ' ', false, json::error_handler_t::replace));
}

expected<comparison> compare_all(const serialization::checkpoint& left, const serialization::checkpoint& right) {
  auto result = comparison{};
  auto names = std::set<std::string>{};
  for (const auto* side : {&left, &right})
    for (const auto& tensor : side->content().tensors)
      names.insert(tensor.spec.name);
  auto progress = progress_line{"comparing", tensor_bytes(left.content())};
  for (const auto& name : names) {
    auto one = compare_tensor(left, right, name, progress);
    if (!one)
      return fail(std::move(one.error()));
    result.tensors.push_back(std::move(*one));
  }
  compare_fields(left.content(), right.content(), result);
  return result;
}

json described(const compared_tensor& one) {
  auto result = json{{"name", one.name}, {"equal", one.equal()}};
  if (!one.elements) {
    result["left"] = one.left.empty() ? json(nullptr) : json(one.left);
    result["right"] = one.right.empty() ? json(nullptr) : json(one.right);
    return result;
  }
  auto number = [](double x) { return metrics_json({{"x", x}})["x"]; };
  result["type"] = one.left;
  result["elements"] = one.elements->elements;
  result["differing"] = one.elements->differing;
  if (!one.equal())
    result["first"] = one.elements->first;
  result["max_absolute"] = number(one.elements->max_absolute);
  result["max_relative"] = number(one.elements->max_relative);
  result["left_nans"] = one.elements->left_nans;
  result["right_nans"] = one.elements->right_nans;
  return result;
}

json described(const std::vector<compared_field>& fields) {
  auto result = json::object();
  for (const auto& field : fields)
    result[field.name] = {{"left", field.left}, {"right", field.right}};
  return result;
}

void print_fields(const std::vector<compared_field>& fields) {
  for (const auto& field : fields)
    std::printf("%s\n  < %s\n  > %s\n", field.name.c_str(), printable(field.left).c_str(),
                printable(field.right).c_str());
}

std::string nans_text(const tensor_difference& x) {
  return x.left_nans + x.right_nans == 0 ? "" : fmt::format("{} | {}", x.left_nans, x.right_nans);
}

void print(const comparison& all) {
  auto rows = std::vector<std::vector<std::string>>{
      {"tensor", "differing", "of", "max abs", "max rel", "NaNs", "dtype and shape"}};
  for (const auto& one : all.tensors) {
    auto name = printable(one.name);
    if (!one.elements)
      rows.push_back({name, "-", "-", "-", "-", "",
                      one.left.empty()    ? "only on the right: " + one.right
                      : one.right.empty() ? "only on the left: " + one.left
                                          : one.left + " | " + one.right});
    else
      rows.push_back({name, one.equal() ? "equal" : std::to_string(one.elements->differing),
                      std::to_string(one.elements->elements), short_number_text(one.elements->max_absolute),
                      short_number_text(one.elements->max_relative), nans_text(*one.elements), one.left});
  }
  print_table(rows);
  if (!all.values.empty() || !all.others.empty())
    std::printf("\n");
  print_fields(all.values);
  print_fields(all.others);
  std::printf("\n%s\n", all.same_state() ? "the states are equal, bit for bit" : "the states differ");
}

} // namespace

int diff(const diff_arguments& given) {
  auto left = open(given.left);
  if (!left)
    return complain(left.error());
  auto right = open(given.right);
  if (!right)
    return complain(right.error());
  auto all = compare_all(*left, *right);
  if (!all)
    return complain(all.error());
  if (given.output == output_format::text) {
    std::printf("< %s\n> %s\n\n", left->directory().c_str(), right->directory().c_str());
    print(*all);
  } else {
    auto tensors = json::array();
    for (const auto& one : all->tensors)
      tensors.push_back(described(one));
    auto fields = all->values;
    fields.insert(fields.end(), all->others.begin(), all->others.end());
    print_json({{"left", left->directory().string()},
                {"right", right->directory().string()},
                {"equal", all->same_state()},
                {"tensors", tensors},
                {"fields", described(fields)}});
  }
  return all->same_state() && (!given.all || all->others.empty()) ? exit_good : exit_found;
}

} // namespace troupe::tool
