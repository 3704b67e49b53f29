#include "shm/members.hpp"

#include "shm/futex.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <new>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <utility>

namespace troupe::collectives {

namespace {

enum descriptor : std::size_t { generation_file, process_file, process, descriptor_count };

std::string named(const shm_options& options) {
  return fmt::format("rank {} of {} of this host, generation {}", options.rank, options.world_size, options.generation);
}

expected<void> check_options(const shm_options& options) {
  if (options.world_size == 0 || options.world_size > shm::max_ranks || options.rank.value >= options.world_size)
    return fail(errc::invalid_argument, fmt::format("{}: a rank must be below the group's size, which is at most {}",
                                                    named(options), shm::max_ranks));
  if (!options.names.empty() && options.names.size() != options.world_size)
    return fail(errc::invalid_argument, fmt::format("{}: pass a name for each rank, or none", named(options)));
  if (options.deadline <= std::chrono::milliseconds{0} || !options.pool)
    return fail(errc::invalid_argument,
                fmt::format("{}: a group needs a positive deadline and a pool", named(options)));
  return {};
}

} // namespace

expected<mapped_file> mapped_file::make(unique_fd fd) {
  struct stat status = {};
  const auto seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.get(), &status) != 0 || status.st_size <= 0)
    return fail(
        errc::mismatch,
        "a peer's descriptor is not a memory file, or the file can shrink: the peer is not a member of this group");
  mapped_file result;
  result.size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  auto* data = ::mmap(nullptr, result.size_bytes_, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED)
    return fail(system_error("mapping a peer's memory"));
  ::madvise(data, result.size_bytes_, MADV_DONTDUMP);
  result.data_ = static_cast<const std::byte*>(data);
  result.fd_ = std::move(fd);
  return result;
}

mapped_file::mapped_file(mapped_file&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

mapped_file& mapped_file::operator=(mapped_file&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

mapped_file::~mapped_file() {
  if (data_ != nullptr)
    ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

expected<std::unique_ptr<shm_members>> shm_members::connect(const shm_options& options,
                                                            const descriptor_exchange& exchange) {
  TROUPE_TRY(check_options(options));
  // As large as the process's own pool.
  TROUPE_TRY(auto pool, shared_pool::make(options.pool->capacity_bytes(), options.results_for_devices
                                                                              ? shared_pool::peer_access::pinnable
                                                                              : shared_pool::peer_access::read_only));
  shm::control* own = nullptr;
  try {
    own = new (pool->allocate(sizeof(shm::control), alignof(shm::control))) shm::control{};
  } catch (const std::bad_alloc&) {
    return fail(errc::io_error,
                fmt::format("{}: there is no memory left to share with the peers of this host", named(options)));
  }
  own->magic_number = shm::magic;
  own->generation = options.generation.value;
  own->rank = options.rank.value;
  own->world_size = options.world_size;
  const auto process = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))};
  if (!process)
    return fail(system_error("pidfd_open of this process"));
  const int mine[descriptor_count] = {pool->fd(), options.pool->fd(), process.get()};
  TROUPE_TRY(auto descriptors, exchange(mine));
  auto result = std::unique_ptr<shm_members>{new shm_members{options, std::move(pool), own}};
  TROUPE_TRY(result->map(std::move(descriptors)));
  return result;
}

shm_members::shm_members(const shm_options& options, std::shared_ptr<shared_pool> generation_pool, shm::control* own)
    : rank_(options.rank.value),
      generation_(options.generation),
      names_(options.names),
      process_pool_(options.pool),
      generation_pool_(std::move(generation_pool)),
      own_(own),
      members_(options.world_size) {
  members_[rank_].control = own_;
}

expected<void> shm_members::map(std::vector<std::vector<unique_fd>> descriptors) {
  if (descriptors.size() != size())
    return fail(errc::mismatch, fmt::format("the exchange returned the descriptors of {} ranks; the group has {}",
                                            descriptors.size(), size()));
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (r == rank_)
      continue;
    auto& theirs = descriptors[r];
    const auto wrong = [r] {
      return fail(errc::mismatch, fmt::format("the descriptors of rank {} are not from this generation and group; "
                                              "exchange among exactly its members, in rank order",
                                              r));
    };
    if (theirs.size() != descriptor_count)
      return wrong();
    TROUPE_TRY(auto of_generation, mapped_file::make(std::move(theirs[generation_file])));
    TROUPE_TRY(auto of_process, mapped_file::make(std::move(theirs[process_file])));
    if (of_generation.size_bytes() < sizeof(shm::control))
      return wrong();
    const auto* control = reinterpret_cast<const shm::control*>(of_generation.data());
    if (control->magic_number != shm::magic || control->generation != generation_.value || control->rank != r ||
        control->world_size != size())
      return wrong();
    members_[r] = {std::move(of_generation), std::move(of_process), std::move(theirs[process]), control};
  }
  return {};
}

void shm_members::leave() noexcept {
  auto present = shm::standing::present;
  own_->state.compare_exchange_strong(present, shm::standing::left);
  wake_everybody();
}

void shm_members::wake_everybody() noexcept {
  // Also ranks that sleep on a word of another rank.
  for (const auto& x : members_) {
    if (x.control == nullptr)
      continue;
    shm::futex_wake_all(x.control->rendezvous);
    shm::futex_wake_all(x.control->channels[rank_].posted);
  }
  for (const auto& channel : own_->channels)
    shm::futex_wake_all(channel.posted);
}

std::string shm_members::describe() const {
  return fmt::format("rank {}{}, generation {}", name_of(rank_), names_.empty() ? fmt::format(" of {}", size()) : "",
                     generation_);
}

bool shm_members::is_gone(std::uint32_t peer) const {
  auto look = pollfd{members_[peer].process.get(), POLLIN, 0};
  return look.fd >= 0 && ::poll(&look, 1, 0) > 0;
}

} // namespace troupe::collectives
