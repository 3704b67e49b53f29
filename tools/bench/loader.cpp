// Compares reading data sets and fetching batches with plain copies of the same bytes. See data_sets.md.

#include "timing.hpp"

#include <command_line.hpp>

#include <troupe/data/csv.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/data/idx.hpp>
#include <troupe/data/loader.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/data_order.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using namespace troupe;
using troupe::bench::medians;

struct options {
  std::uint64_t images = 60'000;
  std::uint64_t rows = 200'000;
  std::uint64_t batch = 512;
  int runs = 9;
};

void show(const char* what, std::size_t bytes, double own, double peer, double copy) {
  auto rate = [bytes](double seconds) { return static_cast<double>(bytes) / 1e9 / seconds; };
  std::printf("%-34s %8.3f %10.3f %10.3f %12.2f %12.2f\n", what, rate(own), rate(peer), rate(copy), peer / own,
              copy / own);
  std::fflush(stdout);
}

/// A directory that is removed with its content.
struct scratch {
  std::filesystem::path path;
  scratch() {
    auto name = (std::filesystem::temp_directory_path() / "troupe-loader-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw std::runtime_error{"cannot make a directory at " + name};
    path = name;
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() { std::filesystem::remove_all(path); }
};

constexpr std::size_t image_bytes = 784;

/// One epoch of batches in training order.
void images(const options& o, const std::filesystem::path& directory) {
  auto size = o.images * image_bytes;
  std::vector<std::uint8_t> pixels(size);
  for (std::size_t i = 0; i < size; ++i)
    pixels[i] = static_cast<std::uint8_t>(i * 2654435761u >> 24u);
  auto file = directory / "images";
  {
    std::ofstream out{file, std::ios::binary};
    const std::uint8_t head[] = {
        0, 0,  8, 3, 0, 0, static_cast<std::uint8_t>(o.images >> 8u), static_cast<std::uint8_t>(o.images), 0, 0,
        0, 28, 0, 0, 0, 28};
    out.write(reinterpret_cast<const char*>(head), sizeof(head));
    out.write(reinterpret_cast<const char*>(pixels.data()), static_cast<std::streamsize>(size));
  }
  std::vector<std::uint8_t> target(size);
  auto copy = [&] { std::memcpy(target.data(), pixels.data(), size); };

  data::data_set_ptr set;
  auto open = [&] { set = value_or_throw(data::make_table({value_or_throw(data::read_idx(file, "image"))})); };
  auto slurp = [&] {
    auto in = std::ifstream{file, std::ios::binary};
    in.seekg(16);
    in.read(reinterpret_cast<char*>(target.data()), static_cast<std::streamsize>(size));
  };
  auto opened = medians(o.runs, {open, slurp, copy});
  show("open an IDX file / read()", size, opened[0], opened[1], opened[2]);

  auto order = data_order{o.images, o.batch, 1, 1};
  auto steps = o.images / o.batch;
  std::vector<std::vector<std::uint64_t>> samples(steps);
  for (std::uint64_t k = 0; k < steps; ++k)
    order.samples_of(step_id{k + 1}, shard_id{0}, samples[k]);
  auto in_memory = value_or_throw(data::make_table({data::make_column("image", pixels, {28, 28})}));
  auto fetch = [&](const data::data_set& from) {
    data::batch out;
    for (const auto& each : samples)
      value_or_throw(from.fetch(each, out));
  };
  auto gather = [&] {
    std::vector<std::uint8_t> out(o.batch * image_bytes);
    for (const auto& each : samples)
      for (std::size_t i = 0; i < each.size(); ++i)
        std::memcpy(out.data() + i * image_bytes, pixels.data() + each[i] * image_bytes, image_bytes);
  };
  auto fetched = medians(o.runs, {[&] { fetch(*in_memory); }, gather, copy, [&] { fetch(*set); }});
  auto moved = steps * o.batch * image_bytes;
  show("batches from memory / plain loop", moved, fetched[0], fetched[1], fetched[2]);
  show("batches from a mapped IDX / loop", moved, fetched[3], fetched[1], fetched[2]);

  auto scaled = value_or_throw(data::transformed(in_memory, data::rescaler({"image"}, 1.0 / 255)));
  auto convert = [&] {
    std::vector<float> out(o.batch * image_bytes);
    for (const auto& each : samples)
      for (std::size_t i = 0; i < each.size(); ++i)
        for (std::size_t j = 0; j < image_bytes; ++j)
          out[i * image_bytes + j] =
              static_cast<float>(static_cast<double>(pixels[each[i] * image_bytes + j]) * (1.0 / 255));
  };
  auto changed = medians(o.runs, {[&] { fetch(*scaled); }, convert, copy});
  show("the same, scaled to f32 / loop", moved, changed[0], changed[1], changed[2]);
}

void table(const options& o) {
  auto text = std::string{"a,b,c,d,kind\n"};
  auto random = random_stream{1, "table"};
  for (std::uint64_t i = 0; i < o.rows; ++i) {
    for (int c = 0; c < 4; ++c)
      text += fmt::format("{:f},", random.uniform() * 1000);
    text += i % 3 == 0 ? "oak\n" : "elm\n";
  }
  data::csv_options how;
  how.columns = {{"x", data::csv_type::f32, {"a", "b", "c", "d"}, {}}, {"kind", data::csv_type::categorical, {}, {}}};
  auto parse = [&] { (void)value_or_throw(data::parse_csv(text, "table", how)); };
  // A program without a CSV reader.
  auto plain = [&] {
    std::vector<float> values;
    const auto* at = std::strchr(text.c_str(), '\n') + 1;
    for (std::uint64_t i = 0; i < o.rows; ++i) {
      for (int c = 0; c < 4; ++c) {
        char* end = nullptr;
        values.push_back(std::strtof(at, &end));
        at = end + 1;
      }
      at = std::strchr(at, '\n') + 1;
    }
  };
  auto target = text;
  auto times = medians(o.runs, {parse, plain, [&] { std::memcpy(target.data(), text.data(), text.size()); }});
  show("parse a CSV table / strtof()", text.size(), times[0], times[1], times[2]);
}

/// How long a step waits for its batches if it computes for a while on each.
void ahead(const options& o) {
  auto pixels = std::vector<std::uint8_t>(o.images * image_bytes);
  auto set = value_or_throw(data::make_table({data::make_column("image", std::move(pixels), {28, 28})}));
  set = value_or_throw(data::transformed(set, data::rescaler({"image"}, 1.0 / 255)));
  constexpr std::uint32_t shards = 8;
  constexpr std::uint64_t steps = 60;
  auto order = data_order{o.images, o.batch, shards, 1};
  std::vector<std::uint64_t> samples;
  auto waited = [&](std::size_t prefetch) {
    auto batches =
        data::loader{set, {.batch_samples = o.batch, .prefetch_shards = prefetch, .last_step = steps}, shards, 1};
    std::vector<double> times;
    volatile float sink = 0;
    for (std::uint64_t k = 1; k <= steps; ++k)
      for (std::uint32_t v = 0; v < shards; ++v) {
        order.samples_of(step_id{k}, shard_id{v}, samples);
        auto begin = std::chrono::steady_clock::now();
        auto* batch = value_or_throw(batches.fetch(step_id{k}, shard_id{v}, samples));
        times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        for (int pass = 0; pass < 20; ++pass)
          for (auto x : batch->values<float>("image"))
            sink = sink + x;
      }
    std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
    return times[times.size() / 2] * 1e6;
  };
  auto with = waited(8);
  auto without = waited(0);
  std::printf(
      "\na shard of %llu scaled images, while the model computes: waited %.1f us with the loader's thread, %.1f us "
      "without: ratio %.1f\n",
      static_cast<unsigned long long>(o.batch / shards), with, without, without / with);
}

} // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App cli{"Measures how fast data sets are read and batches fetched, compared with plain copies.",
               "troupe-loader"};
  cli.add_option("--images", o.images, "Number of images of 28 x 28 bytes")
      ->check(CLI::Range(512, 65'535))
      ->capture_default_str();
  cli.add_option("--rows", o.rows, "Rows of the CSV table")->capture_default_str();
  cli.add_option("--batch", o.batch, "Images in a batch")->check(CLI::Range(8, 512))->capture_default_str();
  cli.add_option("--runs", o.runs, "Runs of each measurement; medians are shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  if (auto code = apps::parse_command_line(cli, argc, argv))
    return *code;
  try {
    scratch directory;
    std::printf("GB/s (of the bytes read), and the speed relative to the peer and to a memcpy of the same bytes\n");
    std::printf("%-34s %8s %10s %10s %12s %12s\n", "", "troupe", "peer", "memcpy", "ratio peer", "ratio memcpy");
    images(o, directory.path);
    table(o);
    ahead(o);
  } catch (const std::exception& x) {
    std::fprintf(stderr, "troupe-loader: %s\n", x.what());
    return 1;
  }
  return 0;
}
