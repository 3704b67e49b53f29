#pragma once

#include <string>
#include <vector>

namespace troupe {

/// Texts in one piece, each after its length (LEB128).
[[nodiscard]] std::string pack_texts(const std::vector<std::string>& texts);

/// The inverse of `pack_texts`. False if `packed` does not come from it.
[[nodiscard]] bool unpack_texts(const std::string& packed, std::vector<std::string>& into);

} // namespace troupe
