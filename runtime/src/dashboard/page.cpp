#include "dashboard/page.hpp"

namespace troupe::runtime {

namespace {

std::string with(std::string page, std::string_view mark, std::string_view text) {
  return page.replace(page.find(mark), mark.size(), text);
}

} // namespace

const std::string& page_template() {
  static const auto page = with(with(std::string{page_html()}, "@STYLE@", page_css()), "@SCRIPT@", page_js());
  return page;
}

} // namespace troupe::runtime
