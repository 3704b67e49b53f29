# Makes a source file of INPUT, with a function NAME: cmake -DINPUT=page.css -DNAME=page_style -DOUTPUT=page_style.cpp -P EmbedFile.cmake
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "#include \"dashboard/page.hpp\"

namespace troupe::runtime {

namespace {

constexpr unsigned char bytes[] = {${bytes}};

} // namespace

std::string_view ${NAME}() {
  return {reinterpret_cast<const char*>(bytes), sizeof(bytes)};
}

} // namespace troupe::runtime
")
