// A rank of shm_process_test. Takes commands from the socket at descriptor 3 and answers each. Descriptor 4 is a page
// in which it counts its calls.

#include "call_kinds.hpp"
#include "leaf_values.hpp"

#include <socket_packets.hpp>
#include <troupe/collectives/shm_communicator.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace troupe::testing;

namespace {

constexpr int command_fd = 3;
constexpr int progress_fd = 4;
constexpr std::uint32_t shards = 8;

std::uint64_t digest_of(std::span<const std::byte> bytes, std::uint64_t digest = 0xcbf29ce484222325) {
  for (auto x : bytes)
    digest = (digest ^ static_cast<std::uint8_t>(x)) * 0x100000001b3;
  return digest;
}

class rank_process {
 public:
  rank_process()
      : pool_(value_or_throw(shared_pool::make())),
        progress_(static_cast<std::atomic<std::uint32_t>*>(
            ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, progress_fd, 0))) {}

  int run() {
    for (;;) {
      const auto command = receive_packet(command_fd, wait_for_ever).text;
      if (command.empty())
        return 0;
      send_packet(command_fd, answer(command));
    }
  }

 private:
  std::string answer(const std::string& command) {
    std::istringstream words{command};
    std::string verb;
    words >> verb;
    if (verb == "form")
      return form(words);
    if (verb == "repeat")
      return repeat(words);
    if (verb == "verify")
      return verify();
    if (verb == "hold")
      return hold();
    if (verb == "digest")
      return digest();
    if (verb == "attack")
      return attack();
    if (verb == "look")
      return look();
    if (verb == "hurry") {
      group_->set_deadline(std::chrono::milliseconds{600});
      return "fine";
    }
    held_.reset();
    group_.reset();
    of_peers_.clear();
    return "fine";
  }

  /// "form GENERATION RANK RANKS DEADLINE": the test passes the descriptors on.
  std::string form(std::istringstream& words) {
    std::uint64_t generation = 0, rank = 0, world_size = 0, deadline = 0;
    words >> generation >> rank >> world_size >> deadline;
    const auto exchange = [&](std::span<const int> mine) {
      send_packet(command_fd, "descriptors", mine);
      auto theirs = receive_packet(command_fd).descriptors;
      std::vector<std::vector<unique_fd>> result(world_size);
      auto next = theirs.begin();
      for (std::uint64_t r = 0; r < world_size; ++r)
        for (std::size_t i = 0; r != rank && i < mine.size(); ++i, ++next) {
          of_peers_.emplace_back(::fcntl(next->get(), F_DUPFD_CLOEXEC, 3));
          result[r].push_back(std::move(*next));
        }
      return expected<std::vector<std::vector<unique_fd>>>{std::move(result)};
    };
    auto made =
        make_shm_communicator({rank_id{static_cast<std::uint32_t>(rank)}, static_cast<std::uint32_t>(world_size),
                               generation_id{generation}, std::chrono::milliseconds{deadline}, pool_},
                              exchange);
    if (!made)
      return made.error().message;
    group_ = std::move(*made);
    return "fine";
  }

  /// "repeat KIND": until a call fails.
  std::string repeat(std::istringstream& words) {
    std::size_t kind = 0;
    words >> kind;
    const auto call = all_kinds().at(kind).make(*group_);
    for (;; ++*progress_)
      if (auto done = call(); !done)
        return std::string{to_string(done.error().code)} + " " + done.error().message;
  }

  /// Makes every kind of call once and checks a known sum.
  std::string verify() {
    for (const auto& kind : all_kinds())
      if (auto done = kind.make(*group_)(); !done)
        return kind.name + ": " + done.error().message;
    const auto n = group_->world_size();
    std::vector<std::int64_t> data(100'000, group_->rank().value + 1);
    if (auto done = group_->all_reduce(std::span{data}); !done)
      return done.error().message;
    const auto is_right = [n](std::int64_t x) { return x == n * (n + 1) / 2; };
    return std::ranges::all_of(data, is_right) ? "fine" : "a wrong sum";
  }

  /// Reduces into buckets that are kept, from partial sums that are kept too.
  std::string hold() {
    held_.emplace();
    const auto ownership = even_ownership(shards, group_->world_size());
    held_->sums.emplace(value_or_throw(leaf_accumulator::make(held_->layout, shards, *pool_)));
    held_->result = value_or_throw(group_->make_bucket(held_->layout));
    const auto range = ownership[group_->rank().value];
    held_->sums->begin(range);
    for (auto shard = range.first; shard < range.last; ++shard)
      add_shard(held_->layout, shard, held_->sums->next(shard_id{shard}));
    held_->sums->end();
    if (auto done = group_->reduce_leaves(held_->layout, shards, ownership, held_->sums->partials(), *held_->result);
        !done)
      return done.error().message;
    return std::ranges::equal(held_->result->bytes(), reference_root(held_->layout, shards)) ? "fine" : "a wrong sum";
  }

  std::string digest() {
    auto result = digest_of(held_->result->bytes());
    for (const auto& partial : held_->sums->partials())
      result = digest_of({partial.data, held_->layout.sums().size_bytes()}, result);
    return std::to_string(result);
  }

  /// Tries to change the peers' memory in every way that a descriptor allows.
  std::string attack() {
    auto files = 0;
    for (const auto& fd : of_peers_) {
      if (const auto name = name_of(fd.get()); name.find("memfd:") == std::string::npos)
        continue;
      ++files;
      const auto path = "/proc/self/fd/" + std::to_string(fd.get());
      const auto again = unique_fd{::open(path.c_str(), O_RDWR | O_CLOEXEC)};
      for (auto number : {fd.get(), again.get()}) {
        if (number < 0)
          continue;
        if (::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, number, 0) != MAP_FAILED)
          return "mapped for writing";
        auto* page = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, number, 0);
        if (page == MAP_FAILED)
          return "cannot even be read";
        if (::mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0)
          return "made writable";
        if (::madvise(page, 4096, MADV_REMOVE) == 0)
          return "removed";
        ::munmap(page, 4096);
        if (::pwrite(number, "x", 1, 0) == 1)
          return "written";
        if (::ftruncate(number, 4096) == 0 || ::ftruncate(number, off_t{1} << 50) == 0)
          return "another size";
        if (::fallocate(number, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0)
          return "punched";
        if (::fcntl(number, F_ADD_SEALS, F_SEAL_WRITE) == 0)
          return "sealed again";
      }
    }
    return std::to_string(files) + " files refused";
  }

  static std::string name_of(int fd) {
    auto ignored = std::error_code{};
    return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored).string();
  }

  /// "DESCRIPTORS MAPPINGS SHARED-MAPPINGS SHARED-BYTES".
  static std::string look() {
    std::vector<int> fds;
    for (const auto& x : std::filesystem::directory_iterator{"/proc/self/fd"})
      fds.push_back(std::stoi(x.path().filename().string()));
    std::uint64_t open = 0, bytes = 0, mappings = 0, shared = 0;
    for (auto fd : fds) {
      struct stat status = {};
      // The descriptor of the listing itself is closed by now.
      if (::fstat(fd, &status) != 0)
        continue;
      ++open;
      if (name_of(fd).find("memfd:troupe") != std::string::npos)
        bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
    std::ifstream maps{"/proc/self/maps"};
    for (std::string line; std::getline(maps, line); ++mappings)
      shared += line.find("memfd:troupe") == std::string::npos ? 0 : 1;
    return std::to_string(open) + " " + std::to_string(mappings) + " " + std::to_string(shared) + " " +
           std::to_string(bytes);
  }

  struct held {
    bucket_layout layout{{{dtype::f32, 20'000}, {dtype::bf16, 300}}};
    std::optional<leaf_accumulator> sums;
    std::unique_ptr<reduced_bucket> result;
  };

  std::shared_ptr<shared_pool> pool_;
  std::atomic<std::uint32_t>* progress_;
  std::unique_ptr<communicator> group_;
  std::optional<held> held_;
  std::vector<unique_fd> of_peers_;
};

} // namespace

int main() {
  try {
    return rank_process{}.run();
  } catch (const std::exception& x) {
    std::fprintf(stderr, "rank: %s\n", x.what());
    return 1;
  }
}
