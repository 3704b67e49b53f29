#pragma once

#include <scratch_directory.hpp>

#include <troupe/serialization/checkpoint/chunk_plan.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>
#include <troupe/serialization/checkpoint/part.hpp>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace troupe::serialization {

using testing::read_file;
using testing::scratch_directory;

/// Neither durable nor atomic: for damaging files.
inline void overwrite_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream{path, std::ios::binary | std::ios::trunc} << text;
}

inline void flip_bit(const std::filesystem::path& path, std::uint64_t offset) {
  auto text = read_file(path);
  text.at(offset) = static_cast<char>(text[offset] ^ 0x10);
  overwrite_file(path, text);
}

/// Tensors with distinct bytes at every index.
class sample_state {
 public:
  explicit sample_state(std::vector<tensor_spec> specs, std::uint64_t seed = 1) : specs_(std::move(specs)) {
    for (const auto& spec : specs_) {
      auto& bytes = bytes_.emplace_back(spec.size_bytes());
      for (auto& byte : bytes) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        byte = static_cast<std::byte>(seed >> 56);
      }
    }
  }

  [[nodiscard]] const std::vector<tensor_spec>& specs() const noexcept { return specs_; }
  [[nodiscard]] const std::vector<std::byte>& bytes(std::size_t index) const { return bytes_.at(index); }

  [[nodiscard]] std::vector<tensor_view> views() {
    auto result = std::vector<tensor_view>{};
    for (std::size_t i = 0; i < specs_.size(); ++i)
      result.push_back({specs_[i], bytes_[i].data()});
    return result;
  }

 private:
  std::vector<tensor_spec> specs_;
  std::vector<std::vector<std::byte>> bytes_;
};

/// Empty, a scalar, one element, odd sizes, a whole page, several chunks of 8192 bytes.
inline std::vector<tensor_spec> assorted_specs() {
  return {
      {"weights", dtype::f32, {3, 1001}}, {"empty", dtype::f64, {0, 7}},
      {"scalar", dtype::i64, {}},         {"one", dtype::u8, {1}},
      {"page", dtype::f32, {1024}},       {"huge", dtype::bf16, {9, 5003}},
      {"flags", dtype::boolean, {13}},    {"counts", dtype::u64, {257}},
  };
}

/// A manifest with every field different from its default, except parts and tensors.
inline manifest sample_manifest(step_id step = {100}) {
  auto result = manifest{};
  result.run.value = "0123456789abcdef0123456789abcdef";
  result.step = step;
  result.generation.value = 7;
  result.seed = 0xfedcba9876543210;
  result.shards = 24;
  result.global_batch = 5'000'000'000;
  result.tree_version = 2;
  result.program_build_id = "c0ffee";
  result.configuration_json = R"({"lr":0.5})";
  result.configuration_digest = "abcd";
  result.earlier_programs_json = R"([{"last_step":50}])";
  result.data_fingerprint = "digits 1797";
  result.numerics_fingerprint_json = R"({"cpu":"x86-64-v3"})";
  result.metrics = {{"accuracy", 0.75}, {"loss", -1.5e-300}};
  result.values_json = R"({"note":"héllo"})";
  result.world_size = 5;
  result.created = std::chrono::sys_time<std::chrono::milliseconds>{std::chrono::milliseconds{1'763'650'000'123}};
  result.attachments = {{"cursor", R"({"position":12})"}, {"scaler", "[1,2]"}};
  return result;
}

inline constexpr std::uint64_t small_limit_bytes = 8192;

/// Writes all parts of `state` and commits them as the checkpoint of `content.step`.
inline expected<std::filesystem::path> save(const std::filesystem::path& directory, sample_state& state,
                                            manifest content, std::uint32_t parts,
                                            std::uint64_t limit_bytes = small_limit_bytes) {
  auto temporary = directory / temporary_name({content.run, content.step, content.generation, 1});
  auto plan = plan_chunks(state.specs(), parts, limit_bytes);
  auto reports = std::vector<part_report>{};
  for (std::uint32_t part = parts; part-- > 0;) {
    auto report = write_part(temporary, part, plan, state.views());
    if (!report)
      return fail(report.error());
    reports.push_back(std::move(*report));
  }
  if (auto added = add_parts(content, state.specs(), plan, reports); !added)
    return fail(added.error());
  return commit_checkpoint(directory, temporary, content);
}

} // namespace troupe::serialization
