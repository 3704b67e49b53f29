# Makes a source file of INPUT: cmake -DINPUT=page.html -DOUTPUT=page.cpp -P EmbedFile.cmake
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "#include \"dashboard/page.hpp\"

namespace troupe::runtime {

namespace {

constexpr unsigned char bytes[] = {${bytes}};

} // namespace

std::string_view page_template() {
  return {reinterpret_cast<const char*>(bytes), sizeof(bytes)};
}

} // namespace troupe::runtime
")
