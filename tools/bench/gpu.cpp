// Compares sums on a GPU with the device's own copies, and staging through host memory with pinned copies. See
// README.md.

#include "timing.hpp"

#include <command_line.hpp>

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/communicator.hpp>
#include <troupe/collectives/device_group.hpp>
#include <troupe/collectives/device_software.hpp>
#include <troupe/collectives/nccl_group.hpp>
#include <troupe/collectives/shared_pool.hpp>
#include <troupe/collectives/shm_communicator.hpp>
#include <troupe/collectives/staged_device_group.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <functional>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>

namespace {

using namespace troupe;
using troupe::bench::medians;
using namespace troupe::collectives;

struct options {
  std::uint64_t megabytes = 256;
  int runs = 9;
};

void show(const std::string& what, double bytes, double seconds, double peer_bytes, double peer_seconds, double aim) {
  const auto own = bytes / 1e9 / seconds;
  const auto peer = peer_bytes / 1e9 / peer_seconds;
  std::printf("%-44s %10.1f %10.1f %8.3f %8.2f\n", what.c_str(), own, peer, own / peer, aim);
  std::fflush(stdout);
}

/// Each call enqueues this many operations, so that the cost of a launch is negligible.
constexpr int repetitions = 10;

void measure_kernels(const std::shared_ptr<device>& where, const options& x) {
  const auto size_bytes = x.megabytes << 20;
  auto stream = value_or_throw(device_stream::make(where));
  std::vector<device_memory> operands;
  for (int i = 0; i < 8; ++i) {
    operands.push_back(value_or_throw(device_memory::make(where, size_bytes)));
    value_or_throw(stream.clear(operands.back().address(), size_bytes));
  }
  auto out = value_or_throw(device_memory::make(where, size_bytes));
  const auto copy = [&] {
    for (int i = 0; i < repetitions; ++i)
      value_or_throw(stream.copy(out.address(), operands[0].address(), size_bytes));
    value_or_throw(stream.synchronize());
  };
  const auto sum = [&](dtype type, std::size_t count, bool is_final) {
    std::vector<const std::byte*> pointers;
    for (std::size_t i = 0; i < count; ++i)
      pointers.push_back(operands[i].address());
    device_reduction pass;
    pass.type = type;
    pass.elements = size_bytes / size_of(sum_type(type));
    pass.operands = pointers;
    pass.out = out.address();
    pass.is_final = is_final;
    pass.divisor = is_final ? 7 : 1;
    for (int i = 0; i < repetitions; ++i)
      value_or_throw(where->reduce(pass, stream.handle()));
    value_or_throw(stream.synchronize());
  };
  const auto bytes = static_cast<double>(size_bytes) * repetitions;
  for (auto type : {dtype::f32, dtype::f64, dtype::bf16})
    for (std::size_t count : {2u, 4u, 8u}) {
      const auto times = medians(x.runs, {[&] { sum(type, count, true); }, copy});
      const auto written = bytes * static_cast<double>(size_of(type)) / static_cast<double>(size_of(sum_type(type)));
      show(fmt::format("sum of {}, {}, divided", count, to_string(type)), bytes * static_cast<double>(count) + written,
           times[0], 2 * bytes, times[1], 0.8);
    }
}

/// An all-gather of descriptors among threads.
class descriptor_rendezvous {
 public:
  explicit descriptor_rendezvous(std::size_t size) : mine_(size) {}

  std::vector<std::vector<unique_fd>> exchange(std::uint32_t rank, std::span<const int> descriptors) {
    std::unique_lock lock{mutex_};
    mine_[rank].assign(descriptors.begin(), descriptors.end());
    wait_for_all(lock, arrived_);
    std::vector<std::vector<unique_fd>> result(mine_.size());
    for (std::uint32_t r = 0; r < mine_.size(); ++r)
      for (auto fd : mine_[r])
        if (r != rank)
          result[r].emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    wait_for_all(lock, copied_);
    return result;
  }

 private:
  void wait_for_all(std::unique_lock<std::mutex>& lock, std::size_t& count) {
    if (++count == mine_.size())
      changed_.notify_all();
    changed_.wait(lock, [&] { return count == mine_.size(); });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<int>> mine_;
  std::size_t arrived_ = 0;
  std::size_t copied_ = 0;
};

/// One rank's host group, device group, partial sum and result.
struct staged_rank {
  std::unique_ptr<communicator> host;
  std::unique_ptr<device_group> group;
  device_memory partial;
  std::unique_ptr<device_bucket> result;
  device_stream stream;
  device_event ready;
  /// For measuring the host's part alone.
  aligned_buffer on_host;
  std::unique_ptr<reduced_bucket> sum_on_host;
};

void in_threads(std::uint32_t n, const std::function<void(std::uint32_t)>& f) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < n; ++rank)
    threads.emplace_back(f, rank);
  for (auto& x : threads)
    x.join();
}

/// Reports how directly results can be fetched from other ranks' memory, which determines the cost of staging.
void say_what_can_be_pinned(const std::shared_ptr<device>& where) {
  constexpr std::size_t size_bytes = 1 << 20;
  const auto pool = value_or_throw(shared_pool::make(size_bytes, shared_pool::peer_access::pinnable));
  for (auto access : {PROT_READ | PROT_WRITE, PROT_READ}) {
    auto* data = ::mmap(nullptr, size_bytes, access, MAP_SHARED | MAP_POPULATE, pool->fd(), 0);
    if (data == MAP_FAILED)
      throw exception{errc::io_error, std::string{"mmap: "} + std::strerror(errno)};
    const auto is_read_only = access == PROT_READ;
    {
      const auto pinned =
          pinned_registration::make(where, {static_cast<const std::byte*>(data), size_bytes},
                                    is_read_only ? device::host_access::read_only : device::host_access::read_write);
      std::printf("a peer's memory that %s: %s\n", is_read_only ? "can only be read" : "could be written",
                  pinned ? "pinned in place" : pinned.error().message.c_str());
    }
    ::munmap(data, size_bytes);
  }
}

/// Reduces gradients of ranks that share the device on the host, beside plain copies of the same bytes in both
/// directions at once.
void measure_staging(const std::shared_ptr<device>& where, const options& x, std::uint32_t n) {
  const auto size_bytes = (x.megabytes << 20) / n;
  const bucket_layout layout{{{dtype::f32, size_bytes / 4}}};
  const auto ownership = even_ownership(n, n);
  descriptor_rendezvous descriptors{n};
  std::vector<staged_rank> ranks(n);
  in_threads(n, [&](std::uint32_t rank) {
    auto& mine = ranks[rank];
    mine.host = value_or_throw(make_shm_communicator(
        {rank_id{rank}, n, generation_id{1}, std::chrono::seconds{60}, value_or_throw(shared_pool::make()), {}, true},
        [&](std::span<const int> own) {
          return expected<std::vector<std::vector<unique_fd>>>{descriptors.exchange(rank, own)};
        }));
    mine.group = value_or_throw(make_staged_device_group(where, *mine.host));
    mine.partial = value_or_throw(mine.group->allocate(layout.size_bytes()));
    mine.result = value_or_throw(mine.group->make_bucket(layout, cut_bucket(layout, 4 << 20)));
    mine.on_host = aligned_buffer{layout.size_bytes(), mine.host->memory()};
    mine.sum_on_host = value_or_throw(mine.host->make_bucket(layout, cut_bucket(layout, 4 << 20)));
    mine.stream = value_or_throw(device_stream::make(where));
    mine.ready = value_or_throw(device_event::make(where));
    value_or_throw(mine.stream.clear(mine.partial.address(), layout.size_bytes()));
    value_or_throw(mine.ready.record(mine.stream));
  });
  const auto staged = [&] {
    in_threads(n, [&](std::uint32_t rank) {
      auto& mine = ranks[rank];
      const auto nodes = maximal_nodes(n, ownership[rank]);
      const leaf_partial partial{nodes[0], mine.partial.address()};
      for (std::size_t part = 0; part < mine.result->parts().size(); ++part)
        value_or_throw(
            mine.group->reduce_leaves(layout, n, ownership, {&partial, 1}, *mine.result, mine.ready, 1, part));
      value_or_throw(mine.group->finish());
    });
  };
  auto down = value_or_throw(device_stream::make(where));
  auto up = value_or_throw(device_stream::make(where));
  auto from = value_or_throw(pinned_memory::make(where, size_bytes));
  auto to = value_or_throw(pinned_memory::make(where, size_bytes));
  const auto bare = [&] {
    for (std::uint32_t i = 0; i < n; ++i) {
      value_or_throw(down.copy(to.data(), ranks[i].partial.address(), size_bytes));
      value_or_throw(up.copy(ranks[n - 1 - i].partial.address(), from.data(), size_bytes));
    }
    value_or_throw(down.synchronize());
    value_or_throw(up.synchronize());
  };
  std::fill_n(from.data(), size_bytes, std::byte{0});
  const auto on_host = [&] {
    in_threads(n, [&](std::uint32_t rank) {
      auto& mine = ranks[rank];
      const leaf_partial partial{maximal_nodes(n, ownership[rank])[0], mine.on_host.data()};
      for (std::size_t part = 0; part < mine.sum_on_host->parts().size(); ++part)
        value_or_throw(mine.host->reduce_leaves(layout, n, ownership, {&partial, 1}, *mine.sum_on_host, 1, part));
    });
  };
  const auto times = medians(x.runs, {staged, bare, on_host});
  const auto bytes = 2.0 * static_cast<double>(size_bytes) * n;
  show(fmt::format("staged sum of {} ranks, both directions", n), bytes, times[0], bytes, times[1], 0.9);
  std::printf("%-44s %10.1f\n", "  the host's part of that alone", bytes / times[2] / 1e9);
  in_threads(n, [&](std::uint32_t rank) {
    auto& mine = ranks[rank];
    mine.result.reset();
    mine.group.reset();
    mine.sum_on_host.reset();
    mine.on_host = aligned_buffer{};
    mine.host.reset();
  });
}

/// The overhead of the group itself around NCCL: with one rank there is nothing to send.
void measure_nccl(const std::shared_ptr<device>& where, const options& x) {
  const auto library = find_nccl();
  if (!library) {
    std::printf("without NCCL: %s\n", library.error().message.c_str());
    return;
  }
  nccl_options place;
  place.generation = generation_id{1};
  auto group = value_or_throw(make_nccl_group(
      where, std::move(place), [](std::string mine) { return expected<std::vector<std::string>>{{std::move(mine)}}; }));
  const auto size_bytes = x.megabytes << 20;
  const bucket_layout layout{{{dtype::f32, size_bytes / 4}}};
  auto stream = value_or_throw(device_stream::make(where));
  auto ready = value_or_throw(device_event::make(where));
  auto partial = value_or_throw(group->allocate(size_bytes));
  auto result = value_or_throw(group->make_bucket(layout, cut_bucket(layout, 64 << 20)));
  auto copy = value_or_throw(device_memory::make(where, size_bytes));
  value_or_throw(stream.clear(partial.address(), size_bytes));
  value_or_throw(ready.record(stream));
  const std::vector<shard_range> ownership = {{0, 1}};
  const leaf_partial mine{maximal_nodes(1, {0, 1})[0], partial.address()};
  const auto times = medians(
      x.runs, {[&] {
                 for (int i = 0; i < repetitions; ++i)
                   for (std::size_t part = 0; part < result->parts().size(); ++part)
                     value_or_throw(group->reduce_leaves(layout, 1, ownership, {&mine, 1}, *result, ready, 3, part));
                 value_or_throw(group->finish());
               },
               [&] {
                 for (int i = 0; i < repetitions; ++i)
                   value_or_throw(stream.copy(copy.address(), partial.address(), size_bytes));
                 value_or_throw(stream.synchronize());
               }});
  const auto bytes = 2.0 * static_cast<double>(size_bytes) * repetitions;
  show(fmt::format("1 rank over {}, 64 MB parts", *library), bytes, times[0], bytes, times[1], 0.8);
}

void run(const options& x) {
  const auto where = value_or_throw(open_device(0));
  const auto nccl = find_nccl();
  std::printf("%s, %.1f GB, %s, the driver's CUDA %s, %s\n", to_string(where->info()).c_str(),
              static_cast<double>(where->info().total_bytes) / 1e9, device_support().c_str(),
              find_device_software().driver.c_str(), nccl ? nccl->c_str() : "no NCCL");
  std::printf("%-44s %10s %10s %8s %8s\n", "what", "GB/s", "copy GB/s", "ratio", "aim");
  measure_kernels(where, x);
  say_what_can_be_pinned(where);
  for (std::uint32_t n : {2u, 4u})
    measure_staging(where, x, n);
  try {
    measure_nccl(where, x);
  } catch (const std::exception& reason) {
    std::printf("over NCCL: %s\n", reason.what());
  }
}

} // namespace

int main(int argc, char** argv) {
  options x;
  CLI::App cli{
      "Compares sums on a GPU with its own copies, and staging through host memory with pinned copies. Exit code 3: "
      "there is no GPU.",
      "troupe-gpu"};
  cli.add_option("--megabytes", x.megabytes, "Size of a buffer in MB; the kernels need nine buffers")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  cli.add_option("--runs", x.runs, "Runs of each measurement; medians are shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  if (auto code = apps::parse_command_line(cli, argc, argv))
    return *code;
  const auto devices = find_devices();
  if (!devices || devices->empty()) {
    std::fprintf(stderr, "troupe-gpu: %s\n", devices ? "this process sees no GPU" : devices.error().message.c_str());
    return 3;
  }
  try {
    run(x);
  } catch (const std::exception& reason) {
    std::fprintf(stderr, "troupe-gpu: %s\n", reason.what());
    return 1;
  }
  return 0;
}
