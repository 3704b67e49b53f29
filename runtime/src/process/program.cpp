#include "process/read_at.hpp"

#include <troupe/runtime/program.hpp>

#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <memory>
#include <sys/stat.h>
#include <unistd.h>

namespace troupe::runtime {

namespace {

/// More than any linker writes into the notes of one segment. Limits what a damaged header can make us allocate.
constexpr std::size_t max_notes_bytes = 1 << 20;
constexpr std::size_t max_program_headers = 4096;

std::size_t rounded_up(std::size_t n, std::size_t alignment) {
  return (n + alignment - 1) / alignment * alignment;
}

/// Finds the build id in the notes of one segment; `alignment` is the segment's.
std::optional<std::string> build_id_of_notes(std::span<const std::byte> notes, std::size_t alignment) {
  alignment = alignment == 8 ? 8 : 4;
  while (notes.size() >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr header;
    std::memcpy(&header, notes.data(), sizeof(header));
    auto name_end = sizeof(header) + std::size_t{header.n_namesz};
    auto content = rounded_up(name_end, alignment);
    auto content_end = content + std::size_t{header.n_descsz};
    if (content_end > notes.size())
      return std::nullopt;
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == sizeof(ELF_NOTE_GNU) && header.n_descsz > 0 &&
        std::memcmp(notes.data() + sizeof(header), ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0)
      return serialization::to_hex(notes.subspan(content, header.n_descsz));
    notes = notes.subspan(std::min(rounded_up(content_end, alignment), notes.size()));
  }
  return std::nullopt;
}

struct byte_range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// The parts of `whole` outside all `gaps`, which are in order.
std::vector<byte_range> without(byte_range whole, const std::vector<byte_range>& gaps) {
  std::vector<byte_range> result;
  for (const auto& gap : gaps) {
    if (gap.begin >= whole.end)
      break;
    if (gap.begin > whole.begin)
      result.push_back({whole.begin, gap.begin});
    whole.begin = std::max(whole.begin, gap.end);
  }
  if (whole.begin < whole.end)
    result.push_back(whole);
  return result;
}

bool add_range(int fd, byte_range range, std::vector<std::byte>& buffer, serialization::xxh3_stream& digest) {
  for (auto at = range.begin; at < range.end;) {
    const auto piece = std::span{buffer}.first(std::min<std::uint64_t>(buffer.size(), range.end - at));
    if (!read_at(fd, piece, at))
      return false;
    digest.update(piece);
    at += piece.size();
  }
  return true;
}

/// The digest of all code and data that an ELF file for this machine loads, without its notes, such as the linker's
/// build id, and without its headers, which say where debug information is; nothing for any other file.
std::optional<std::string> digest_of_loaded(int fd) {
  ElfW(Ehdr) header;
  if (!read_object(fd, header, 0) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != (sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32) ||
      header.e_phentsize != sizeof(ElfW(Phdr)) || header.e_phnum > max_program_headers)
    return std::nullopt;
  std::vector<byte_range> loaded;
  std::vector<byte_range> gaps{{0, sizeof(header)},
                               {header.e_phoff, header.e_phoff + header.e_phnum * sizeof(ElfW(Phdr))}};
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    ElfW(Phdr) segment;
    if (!read_object(fd, segment, header.e_phoff + i * sizeof(segment)))
      return std::nullopt;
    if (segment.p_type == PT_LOAD || segment.p_type == PT_NOTE)
      (segment.p_type == PT_LOAD ? loaded : gaps).push_back({segment.p_offset, segment.p_offset + segment.p_filesz});
  }
  std::ranges::sort(gaps, {}, &byte_range::begin);
  serialization::xxh3_stream digest;
  std::vector<std::byte> buffer(std::size_t{1} << 18);
  for (const auto& segment : loaded)
    for (const auto& range : without(segment, gaps))
      if (!add_range(fd, range, buffer, digest))
        return std::nullopt;
  return loaded.empty() ? std::nullopt : std::optional{fmt::format("xxh3:{:016x}", digest.digest())};
}

expected<std::string> digest_of_file(int fd, std::string_view path) {
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> digest{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
  if (!digest || EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) != 1)
    return fail(errc::internal, "OpenSSL provides no SHA-256: check its installation and configuration");
  std::vector<std::byte> buffer(std::size_t{1} << 18);
  for (off_t offset = 0;;) {
    auto n = pread(fd, buffer.data(), buffer.size(), offset);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return fail(system_error(path));
    if (n == 0)
      break;
    EVP_DigestUpdate(digest.get(), buffer.data(), static_cast<std::size_t>(n));
    offset += n;
  }
  std::array<std::byte, EVP_MAX_MD_SIZE> result{};
  EVP_DigestFinal_ex(digest.get(), reinterpret_cast<unsigned char*>(result.data()), nullptr);
  return "sha256:" + serialization::to_hex(std::span{result}.first(20));
}

constexpr auto own_executable = "/proc/self/exe";

/// The path of the running program, without the mark that the kernel appends if its file is gone.
std::string own_path() {
  std::string path(4096, '\0');
  auto n = readlink(own_executable, path.data(), path.size());
  if (n < 0)
    return own_executable;
  path.resize(static_cast<std::size_t>(n));
  constexpr std::string_view gone = " (deleted)";
  if (path.ends_with(gone))
    path.resize(path.size() - gone.size());
  return path;
}

expected<unique_fd> open_program(const char* location, const std::string& path) {
  unique_fd fd{::open(location, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (!fd) {
    auto reason = system_error(fmt::format("cannot open the program {}", path));
    reason.message += "; check that it is installed and readable on this host";
    return fail(std::move(reason));
  }
  return fd;
}

bool is_mapped(const dl_phdr_info& object, const ElfW(Phdr) & segment) {
  return std::any_of(object.dlpi_phdr, object.dlpi_phdr + object.dlpi_phnum, [&segment](const auto& load) {
    return load.p_type == PT_LOAD && segment.p_vaddr >= load.p_vaddr &&
           segment.p_vaddr + segment.p_memsz <= load.p_vaddr + load.p_memsz;
  });
}

/// The notes are mapped with the object, so no file is read.
std::string build_id_in_memory(const dl_phdr_info& object) {
  for (std::size_t i = 0; i < object.dlpi_phnum; ++i) {
    const auto& segment = object.dlpi_phdr[i];
    if (segment.p_type != PT_NOTE || !is_mapped(object, segment))
      continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the dynamic linker gives addresses as integers.
    const auto* notes = reinterpret_cast<const std::byte*>(object.dlpi_addr + segment.p_vaddr);
    if (auto id = build_id_of_notes({notes, segment.p_memsz}, segment.p_align))
      return *id;
  }
  return {};
}

} // namespace

expected<program_identity> identify_program(int fd, std::string path) {
  if (auto id = digest_of_loaded(fd))
    return program_identity{std::move(path), std::move(*id)};
  TROUPE_TRY(auto digest, digest_of_file(fd, path));
  return program_identity{std::move(path), std::move(digest)};
}

expected<program_identity> own_program() {
  auto path = own_path();
  TROUPE_TRY(auto fd, open_program(own_executable, path));
  return identify_program(fd.get(), std::move(path));
}

expected<program_file> program_file::open(std::string path) {
  TROUPE_TRY(auto fd, open_program(path.c_str(), path));
  struct stat status {};
  if (fstat(fd.get(), &status) != 0)
    return fail(system_error(path));
  if (!S_ISREG(status.st_mode))
    return fail(errc::invalid_argument, fmt::format("{} is not a regular file: name the program itself", path));
  if ((status.st_mode & 0111) == 0)
    return fail(errc::invalid_argument, fmt::format("{} is not executable: name a program, or chmod +x it", path));
  TROUPE_TRY(auto identity, identify_program(fd.get(), std::move(path)));
  return program_file{std::move(fd), std::move(identity)};
}

expected<program_file> program_file::own() {
  auto path = own_path();
  TROUPE_TRY(auto fd, open_program(own_executable, path));
  TROUPE_TRY(auto identity, identify_program(fd.get(), std::move(path)));
  return program_file{std::move(fd), std::move(identity)};
}

std::vector<loaded_object> loaded_objects() {
  std::vector<loaded_object> result;
  auto add = [](dl_phdr_info* object, std::size_t, void* result) {
    auto& objects = *static_cast<std::vector<loaded_object>*>(result);
    std::string name = object->dlpi_name;
    if (objects.empty() && name.empty())
      name = own_path();
    objects.push_back({std::move(name), build_id_in_memory(*object)});
    return 0;
  };
  dl_iterate_phdr(add, &result);
  return result;
}

std::optional<std::string> missing_library(std::span<const std::string> last_lines) {
  constexpr std::string_view before = "error while loading shared libraries: ";
  constexpr std::string_view after = ": cannot open shared object file";
  for (std::string_view line : last_lines) {
    auto begin = line.find(before);
    if (begin == std::string_view::npos)
      continue;
    begin += before.size();
    auto end = line.find(after, begin);
    if (end != std::string_view::npos && end > begin)
      return std::string{line.substr(begin, end - begin)};
  }
  return std::nullopt;
}

} // namespace troupe::runtime
