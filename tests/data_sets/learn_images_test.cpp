#include "image_files.hpp"

#include <built.hpp>
#include <doctest/doctest.h>
#include <processes.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

using namespace troupe::testing;

namespace {

/// An image that is brighter at the top or at the left, of its own size.
image_bytes picture(bool upright, std::uint32_t number) {
  const auto width = 20 + number % 13;
  const auto height = 18 + number % 7;
  image_bytes values;
  for (std::uint32_t y = 0; y < height; ++y)
    for (std::uint32_t x = 0; x < width; ++x) {
      auto bright = upright ? 200 - 160 * y / height : 200 - 160 * x / width;
      values.insert(values.end(), 3, static_cast<std::uint8_t>(bright + number % 20));
    }
  return number % 3 == 0 ? make_png(width, height, values) : make_jpeg(width, height, values);
}

} // namespace

TEST_CASE("the example learns a folder of images, to the same bits on any number of workers") {
  const scratch_directory scratch;
  for (std::uint32_t i = 0; i < 60; ++i)
    for (auto upright : {false, true})
      write_file(scratch.path() / "images" / (upright ? "upright" : "sideways") /
                     (std::to_string(i) + (i % 3 == 0 ? ".png" : ".jpg")),
                 picture(upright, i));
  auto run = [&](const std::string& workers) {
    const auto name = "workers-" + workers;
    std::filesystem::create_directory(scratch.path() / name);
    auto process = child_process{{{"/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", (scratch.path() / name).string(),
                                   built("bin/examples/learn_images"), (scratch.path() / "images").string(), workers},
                                  {{"TROUPE_KEYS", (scratch.path() / "keys").string()}}},
                                 scratch.path() / ("output-" + name)};
    auto status = process.wait();
    INFO(process.err());
    REQUIRE(status == exit_status{0, {}});
    return process.out();
  };
  const auto one = run("1");
  CHECK_MESSAGE(one.find("validation_accuracy 1.000\n") != std::string::npos, one);
  CHECK_MESSAGE(one.find("\nstate ") != std::string::npos, one);
  CHECK(run("3") == one);
}
