#include <troupe/random.hpp>

#include <troupe/serialization/files/digest.hpp>

#include <cmath>
#include <numbers>

namespace troupe {

namespace {

void multiply(std::uint32_t a, std::uint32_t b, std::uint32_t& high, std::uint32_t& low) noexcept {
  auto product = std::uint64_t{a} * b;
  high = static_cast<std::uint32_t>(product >> 32);
  low = static_cast<std::uint32_t>(product);
}

std::array<std::uint32_t, 2> split(std::uint64_t x) noexcept {
  return {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(x >> 32)};
}

} // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> key) noexcept {
  for (auto round = 0; round < 10; ++round) {
    std::uint32_t high0, low0, high1, low1;
    multiply(0xD2511F53u, c[0], high0, low0);
    multiply(0xCD9E8D57u, c[2], high1, low1);
    c = {high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return c;
}

// The highest counter word counts within the stream; the others say what the stream is for. Bit 31 of the third tells
// steps from names.
random_stream::random_stream(std::uint64_t seed, step_id step, shard_id shard, std::uint32_t index) noexcept
    : key_(split(seed)) {
  // The purpose has more bits than are left in the counter: one more call of the function mixes it down.
  auto where = split(step.value);
  auto mixed = philox({where[0], where[1], shard.value, index}, key_);
  counter_ = {mixed[0], mixed[1], mixed[2] & 0x7fffffffu, 0};
}

random_stream::random_stream(std::uint64_t seed, std::string_view name) noexcept : key_(split(seed)) {
  auto where = split(serialization::xxh3(serialization::bytes_of(name)));
  counter_ = {where[0], where[1], 0x80000000u, 0};
}

random_stream::result_type random_stream::operator()() noexcept {
  if (used_ == 4) {
    block_ = philox(counter_, key_);
    ++counter_[3];
    used_ = 0;
  }
  return block_[used_++];
}

double random_stream::uniform() noexcept {
  auto high = std::uint64_t{(*this)()} >> 5;
  auto low = std::uint64_t{(*this)()} >> 6;
  return static_cast<double>(high * 67108864 + low) / 9007199254740992.0;
}

double random_stream::normal() noexcept {
  auto u = 1.0 - uniform();
  auto v = uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

} // namespace troupe
