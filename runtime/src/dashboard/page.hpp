#pragma once

#include <string>
#include <string_view>

namespace troupe::runtime {

/// page.html with page.css and page.js in it. @NONCE@ in it is a number that the answer's policy for scripts and styles
/// names; @DATA@ is null, or the story of one run.
[[nodiscard]] const std::string& page_template();

/// The files, which are parts of the library.
[[nodiscard]] std::string_view page_html();
[[nodiscard]] std::string_view page_css();
[[nodiscard]] std::string_view page_js();

} // namespace troupe::runtime
