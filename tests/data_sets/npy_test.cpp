#include <troupe/data/npy.hpp>
#include <troupe/serialization/interchange/npy.hpp>

#include <doctest/doctest.h>
#include <scratch_directory.hpp>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::data;

namespace {

struct saved_array {
  testing::scratch_directory place;
  std::filesystem::path path = place.path() / "a.npy";

  saved_array(const std::vector<float>& values, std::vector<std::uint64_t> shape) {
    auto copy = values;
    auto tensor = tensor_view{{"", dtype::f32, std::move(shape)}, reinterpret_cast<std::byte*>(copy.data())};
    REQUIRE(serialization::write_npy(path, tensor, serialization::existing_file::keep));
  }
};

} // namespace

TEST_CASE("the first dimension of an array is the samples") {
  auto saved = saved_array{{1, 2, 3, 4, 5, 6}, {3, 2}};
  auto pixels = value_or_throw(read_npy(saved.path, "pixels"));
  CHECK(pixels.spec.name == "pixels");
  CHECK(pixels.spec.type == dtype::f32);
  CHECK(pixels.spec.shape == std::vector<std::uint64_t>{2});
  auto values = std::vector<float>(6);
  REQUIRE(pixels.bytes.size() == 24);
  std::memcpy(values.data(), pixels.bytes.data(), 24);
  CHECK(values == std::vector<float>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("an array that holds no samples is reported with its file") {
  auto scalar = saved_array{{1}, {}};
  auto none = read_npy(scalar.path, "x");
  REQUIRE(!none);
  CHECK(none.error().code == errc::invalid_argument);
  CHECK(none.error().message.find("a.npy") != std::string::npos);
  std::filesystem::resize_file(scalar.path, 40);
  auto cut = read_npy(scalar.path, "x");
  REQUIRE(!cut);
  CHECK(cut.error().code == errc::damaged);
  CHECK(read_npy(scalar.place.path() / "absent.npy", "x").error().code == errc::not_found);
}

TEST_CASE("an array in C order is mapped, and one in another order is converted") {
  auto saved = saved_array{{1, 2, 3, 4, 5, 6}, {3, 2}};
  const auto before = value_or_throw(read_npy(saved.path, "x"));
  // What is written to the file is seen through the map.
  auto file = std::fstream{saved.path, std::ios::in | std::ios::out | std::ios::binary};
  file.seekp(-4, std::ios::end);
  const auto nine = 9.0f;
  file.write(reinterpret_cast<const char*>(&nine), 4);
  file.flush();
  auto last = 0.0f;
  std::memcpy(&last, before.bytes.data() + 20, 4);
  CHECK(last == 9.0f);

  const auto content = [&] {
    auto in = std::ifstream{saved.path, std::ios::binary};
    return std::string{std::istreambuf_iterator<char>{in}, {}};
  };
  auto text = content();
  const auto order = text.find("False");
  REQUIRE(order != std::string::npos);
  text.replace(order, 5, "True ");
  std::ofstream{saved.path, std::ios::binary} << text;
  const auto turned = value_or_throw(read_npy(saved.path, "x"));
  auto values = std::vector<float>(6);
  std::memcpy(values.data(), turned.bytes.data(), 24);
  CHECK(values == std::vector<float>{1, 4, 2, 5, 3, 9});
}
