// Measures how fast checkpoints are written durably, verified and loaded, each beside its peer in the same run. See
// README.md.

#include "timing.hpp"

#include <command_line.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/chunk_plan.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/serialization/checkpoint/reusing_writer.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

namespace fs = std::filesystem;
namespace ser = troupe::serialization;
using namespace troupe::bench;

struct settings {
  std::uint64_t mebibytes = 512;
  int runs = 5;
  std::string directory = ".";
  std::string python = "python3";
  std::string peers = TROUPE_CHECKPOINT_PEERS;
};

double seconds_of(const std::function<void()>& work) {
  auto start = clock_type::now();
  work();
  return std::chrono::duration<double>(clock_type::now() - start).count();
}

[[noreturn]] void give_up(const std::string& why) {
  throw troupe::exception{troupe::errc::io_error, why};
}

/// Sixteen tensors of random bytes.
class state {
 public:
  explicit state(std::uint64_t size_bytes) {
    auto each = size_bytes / 16;
    auto random = std::uint64_t{1};
    for (int i = 0; i < 16; ++i) {
      specs_.push_back({fmt::format("layer.{}", i), troupe::dtype::f32, {each / 4}});
      auto& words = words_.emplace_back(each / 8);
      for (auto& word : words)
        word = random = random * 6364136223846793005u + 1442695040888963407u;
    }
  }

  [[nodiscard]] const std::vector<troupe::tensor_spec>& specs() const noexcept { return specs_; }

  /// Changes the last tenth, as training does when the rest is frozen.
  void train_last_tenth() {
    auto left = words_.size() * words_[0].size() / 10;
    for (auto tensor = words_.rbegin(); left > 0; ++tensor)
      for (auto word = tensor->rbegin(); word != tensor->rend() && left > 0; ++word, --left)
        ++*word;
  }

  [[nodiscard]] std::vector<std::span<std::byte>> places() {
    auto result = std::vector<std::span<std::byte>>{};
    for (auto& words : words_)
      result.push_back(std::as_writable_bytes(std::span{words}));
    return result;
  }

  [[nodiscard]] std::vector<troupe::tensor_view> views() {
    auto result = std::vector<troupe::tensor_view>{};
    for (std::size_t i = 0; i < specs_.size(); ++i)
      result.push_back({specs_[i], places()[i].data()});
    return result;
  }

 private:
  std::vector<troupe::tensor_spec> specs_;
  std::vector<std::vector<std::uint64_t>> words_;
};

/// A directory that is removed with all its content.
class scratch {
 public:
  explicit scratch(const fs::path& parent) {
    auto name = (parent / "troupe-checkpoint-files-XXXXXX").string();
    if (!::mkdtemp(name.data()))
      give_up("cannot make a directory in " + parent.string());
    path_ = name;
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() {
    auto ignored = std::error_code{};
    fs::remove_all(path_, ignored);
  }

  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  fs::path path_;
};

/// Takes a checkpoint in `parts` parts, each written by its own thread, as by that many workers of one host.
fs::path save(const fs::path& directory, state& values, std::uint32_t parts) {
  auto content = ser::manifest{};
  content.step = {parts};
  auto temporary = directory / ser::temporary_name({content.run, content.step, {1}, 1});
  auto plan = ser::plan_chunks(values.specs(), parts);
  auto reports = std::vector<troupe::expected<ser::part_report>>(parts);
  {
    auto writers = std::vector<std::jthread>{};
    for (std::uint32_t part = 0; part < parts; ++part)
      writers.emplace_back([&, part] { reports[part] = ser::write_part(temporary, part, plan, values.views()); });
  }
  auto good = std::vector<ser::part_report>{};
  for (auto& report : reports)
    good.push_back(troupe::value_or_throw(std::move(report)));
  troupe::value_or_throw(ser::add_parts(content, values.specs(), plan, good));
  return troupe::value_or_throw(ser::commit_checkpoint(directory, temporary, content));
}

void run_command(const std::string& command) {
  if (std::system(command.c_str()) != 0)
    give_up(fmt::format("{} failed", command));
}

/// The lines "<name> <seconds>" that the peers' script prints; empty if Python lacks their modules.
std::map<std::string, double> time_python(const settings& s, const fs::path& directory) {
  auto command = fmt::format("{} '{}' '{}' {} 2>/dev/null", s.python, s.peers, directory.string(), s.mebibytes);
  auto* pipe = ::popen(command.c_str(), "r");
  auto result = std::map<std::string, double>{};
  auto name = std::array<char, 64>{};
  auto seconds = 0.0;
  while (pipe != nullptr && std::fscanf(pipe, "%63s %lf", name.data(), &seconds) == 2)
    result[name.data()] = seconds;
  if (pipe != nullptr)
    ::pclose(pipe);
  return result;
}

void drop_cached(const fs::path& path) {
  for (const auto& entry : fs::recursive_directory_iterator{path}) {
    if (!entry.is_regular_file())
      continue;
    auto descriptor = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    ::close(descriptor);
  }
}

/// Reads the files of a directory as `cat` does.
void read_plainly(const fs::path& path) {
  auto buffer = std::vector<std::byte>(1 << 20);
  for (const auto& entry : fs::directory_iterator{path}) {
    auto descriptor = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    while (::read(descriptor, buffer.data(), buffer.size()) > 0)
      continue;
    ::close(descriptor);
  }
}

class table {
 public:
  table(std::string title, std::uint64_t mebibytes) : title_(std::move(title)), mebibytes_(mebibytes) {}

  void add(const std::string& name, double seconds) {
    if (!seconds_.contains(name))
      order_.push_back(name);
    seconds_[name].push_back(seconds);
  }

  /// Prints all rows, each with the first row's speed relative to it.
  void print() const {
    std::printf("\n%s\n%-30s %9s %9s %9s %22s\n", title_.c_str(), "", "median s", "best s", "MB/s",
                "first/this (rate)");
    auto first = median(seconds_.at(order_.front()));
    for (const auto& name : order_) {
      const auto& values = seconds_.at(name);
      auto middle = median(values);
      std::printf("%-30s %9.3f %9.3f %9.0f %22.2f\n", name.c_str(), middle, std::ranges::min(values),
                  static_cast<double>(mebibytes_ << 20) / 1e6 / middle, middle / first);
    }
    std::fflush(stdout);
  }

 private:
  std::string title_;
  std::uint64_t mebibytes_;
  std::vector<std::string> order_;
  std::map<std::string, std::vector<double>> seconds_;
};

void measure_writing(const settings& s, state& values) {
  auto memory = scratch{::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : s.directory};
  save(memory.path(), values, 1);
  auto source = memory.path() / ser::checkpoint_name({1}) / ser::part_file_name(0);
  auto result = table{fmt::format("Writing {} MiB durably", s.mebibytes), s.mebibytes};
  auto place = scratch{s.directory};
  auto timed = [&](const std::string& name, const std::function<void(const fs::path&)>& work) {
    return [&, name, work] {
      auto inside = scratch{place.path()};
      ::sync();
      result.add(name, seconds_of([&] { work(inside.path()); }));
    };
  };
  auto contenders = std::vector<std::function<void()>>{
      timed("troupe, 1 part", [&](const fs::path& path) { save(path, values, 1); }),
      timed("troupe, 4 parts", [&](const fs::path& path) { save(path, values, 4); }),
      timed("dd conv=fsync",
            [&](const fs::path& path) {
              run_command(fmt::format("dd if='{}' of='{}' bs=8M conv=fsync status=none", source.string(),
                                      (path / "copy").string()));
            }),
      [&] {
        for (const auto& [name, seconds] : time_python(s, place.path()))
          result.add(name + " + fsync", seconds);
      }};
  // Data that one row leaves in the device's cache may slow the next, so the order changes each time.
  auto random = std::mt19937{1};
  for (int run = 0; run < s.runs; ++run) {
    for (const auto& contender : contenders)
      contender();
    std::ranges::shuffle(contenders, random);
  }
  result.print();
}

/// Saves in one part, as a single worker does for each checkpoint.
fs::path save_again(const fs::path& directory, state& values, std::uint64_t step, ser::reusing_writer& writer,
                    std::vector<std::byte>& staged) {
  auto content = ser::manifest{};
  content.step = {step};
  auto attempt = directory / ser::temporary_name({content.run, content.step, {1}, 1});
  auto plan = ser::plan_chunks(values.specs(), 1);
  auto* next = staged.data();
  for (auto place : values.places())
    next = std::ranges::copy(place, next).out;
  auto report = troupe::value_or_throw(writer.write(attempt, 0, plan, staged));
  troupe::value_or_throw(ser::add_parts(content, values.specs(), plan, std::vector{report}));
  auto path = troupe::value_or_throw(ser::commit_checkpoint(directory, attempt, content));
  writer.committed(path);
  return path;
}

/// Eight checkpoints in a row, so that they include one in which the frozen part is written again.
void measure_reuse(const settings& s, state& values) {
  constexpr auto checkpoints = std::uint64_t{8};
  auto result =
      table{fmt::format("A checkpoint of {} MiB of which nine tenths are frozen, mean of {}", s.mebibytes, checkpoints),
            s.mebibytes};
  auto staged = std::vector<std::byte>(s.mebibytes << 20);
  struct row {
    std::string name;
    ser::reuse_policy policy;
  };
  for (int run = 0; run < s.runs; ++run)
    for (const auto& [name, policy] : {row{"write everything", ser::reuse_policy::none()}, row{"links", {}}}) {
      auto place = scratch{s.directory};
      auto writer = ser::reusing_writer{policy};
      auto step = std::uint64_t{0};
      auto stored = std::vector<fs::path>{};
      auto save_next = [&] {
        values.train_last_tenth();
        stored.push_back(save_again(place.path(), values, ++step, writer, staged));
        if (stored.size() > 2) {
          troupe::value_or_throw(ser::remove_checkpoint(stored.front()));
          stored.erase(stored.begin());
        }
      };
      // The first two are always written completely.
      save_next();
      save_next();
      ::sync();
      result.add(name, seconds_of([&] {
                         for (std::uint64_t i = 0; i < checkpoints; ++i)
                           save_next();
                       }) / static_cast<double>(checkpoints));
    }
  result.print();
}

void measure_reading(const settings& s, state& values) {
  auto place = scratch{s.directory};
  auto path = save(place.path(), values, 1);
  auto stored = troupe::value_or_throw(ser::checkpoint::open(path));
  auto places = values.places();
  auto load = [&] { troupe::value_or_throw(stored.read_tensors(places)); };
  auto verify = [&](unsigned threads) { troupe::value_or_throw(stored.verify(ser::read_back::cached, threads)); };
  auto cold = table{"From the device, with the page cache dropped", s.mebibytes};
  auto warm = table{"From the page cache", s.mebibytes};
  for (int run = 0; run < s.runs; ++run) {
    auto timed = [&](const std::string& name, const std::function<void()>& work) {
      drop_cached(path);
      cold.add(name, seconds_of(work));
      warm.add(name, seconds_of(work));
    };
    timed("load and verify", load);
    timed("read(), one thread", [&] { read_plainly(path); });
    timed("verify", [&] { verify(0); });
    timed("verify, one thread", [&] { verify(1); });
  }
  cold.print();
  warm.print();
}

} // namespace

int main(int argc, char** argv) {
  settings s;
  CLI::App cli{"Measures how fast checkpoints are written, verified and loaded.", "troupe-checkpoint-files"};
  cli.add_option("--size", s.mebibytes, "MiB of state, a multiple of 16")
      ->capture_default_str()
      ->check(CLI::Range(16, 1 << 20));
  cli.add_option("--runs", s.runs, "Runs of each measurement, in turn; medians are shown")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  cli.add_option("--directory", s.directory, "Directory to write to; its file system is measured")
      ->capture_default_str();
  cli.add_option("--python", s.python, "A Python interpreter with torch and safetensors, for the peers")
      ->capture_default_str();
  if (auto code = troupe::apps::parse_command_line(cli, argc, argv))
    return *code;
  try {
    s.mebibytes = std::max<std::uint64_t>(s.mebibytes / 16 * 16, 16);
    auto values = state{s.mebibytes << 20};
    measure_writing(s, values);
    measure_reuse(s, values);
    measure_reading(s, values);
    return 0;
  } catch (const std::exception& x) {
    std::fprintf(stderr, "troupe-checkpoint-files: %s\n", x.what());
    return 1;
  }
}
