#include "images/tar_archive.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe;
  std::uint64_t end = 0;
  auto done = data::read_tar(std::as_bytes(std::span{data, size}), "input",
                             [&](const data::tar_member& member) -> expected<void> {
                               // Members follow each other, and all promised bytes exist.
                               if (member.header_offset < end || member.offset <= member.header_offset ||
                                   member.offset > size || member.bytes > size - member.offset)
                                 std::abort();
                               end = member.offset + member.bytes;
                               return {};
                             });
  if (!done && done.error().message.empty())
    std::abort();
  return 0;
}
